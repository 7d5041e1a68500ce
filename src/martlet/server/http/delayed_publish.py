"""Delaying what is published by HTTP.

A publish says in the header ``X-Martlet-Deliver-At`` when its messages are to be delivered: in
milliseconds since 1970, or as ISO 8601 tells it, with a time zone.  As with SEND's
``deliver_at_ms`` a time that has passed is now.  The answer is SEND's::

    POST /pub?topic=t    X-Martlet-Deliver-At: 2026-12-24T18:00:00+01:00
    {"status":"OK","queue":0,"offset":null,"count":1,"id":"00c0ffee00c0ffee"}
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from martlet.server.delivery_time import deliver_at_ns
from martlet.server.http.request import HttpError
from martlet.server.rpc.arguments import CallArguments, CallError

if TYPE_CHECKING:
    from martlet.broker.topic.topic import Topic
    from martlet.server.http.request import Request
    from martlet.server.server import Server

_HEADER = "X-Martlet-Deliver-At"
_MILLISECONDS = re.compile(r"[0-9]{1,18}")


def asked_time_ns(request: Request, server: Server) -> int | None:
    """When messages are to be delivered: 0 for at once, None where that is not said.

    Raises:
        HttpError: 400 INVALID_DELIVER_AT and why.
    """
    told = request.headers(_HEADER)
    if not told:
        return None
    if len(told) > 1 or "defer" in request.query:
        raise _invalid(f"say when once: one {_HEADER}, and no defer beside it")
    try:
        return deliver_at_ns(CallArguments({"deliver_at_ms": _milliseconds(told[0])}), server)
    except CallError as error:
        raise _invalid(str(error).replace("'deliver_at_ms'", _HEADER)) from None


def _milliseconds(text: str) -> int:
    text = text.strip()
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _invalid(
            f"{text[:40]!r} is no time; write milliseconds since 1970, or 2026-01-31T12:00:00+01:00"
        ) from None
    if moment.tzinfo is None:
        raise _invalid(f"{text[:40]!r} has no time zone; add Z, or one as +01:00")
    return max(0, round(moment.timestamp() * 1000))


def _invalid(why: str) -> HttpError:
    return HttpError(400, f"INVALID_DELIVER_AT: {why}")


async def store_for_later(
    server: Server, topic: Topic, bodies: list[bytes], at_ns: int, entries: list[tuple[int, bytes]]
) -> dict[str, object]:
    """Store messages of a topic for a time, or for now. Returns what is answered.

    Raises WritesRefused, also where too many wait.
    """
    place = server.broker.delays.bucket(topic, at_ns, len(bodies)) if at_ns else topic
    first = place.next_offset
    id = place.queue.message_id(first).decode()
    await server.settled(place.stage(bodies, at_ns, entries))
    return {
        "status": "OK",
        "queue": topic.number,
        "offset": None if at_ns else first,
        "count": len(bodies),
        "id": id,
    }
