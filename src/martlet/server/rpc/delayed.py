"""The calls that list and cancel delayed messages."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from martlet.broker.delayed.delayed_messages import ListingPosition
from martlet.durations import MILLISECOND_NS
from martlet.properties.model import Properties
from martlet.server.rpc.arguments import CallError

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.delayed.bucket import Delayed
    from martlet.server.rpc.arguments import CallArguments
    from martlet.server.rpc.registry import Answer, Caller, Methods

MAX_LISTED = 1000
_FROM = re.compile(r"(\d{1,19})-(\d{1,10})-(\d{1,19})")


class DelayCalls:
    """The calls about delayed messages."""

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker

    def methods(self) -> Methods:
        """The method of each name."""
        return {"delay.list": self.list, "delay.cancel": self.cancel}

    async def list(self, caller: Caller, arguments: CallArguments) -> Answer:
        """List the delayed messages of a topic, the earliest due first.

        `from` is the `next` of an earlier answer, which is empty at the end. A batch sent as one is
        listed as one, so there may be more messages than `limit`.
        """
        arguments.only("topic", "from", "limit")
        delays = self._broker.delays
        topic = arguments.topic(self._broker)
        behind = _position(arguments.text("from", ""))
        max_count = arguments.number("limit", 100, min_value=1, max_value=MAX_LISTED)
        found: list[tuple[ListingPosition, Delayed]] = []
        for some in delays.look(topic, behind, max_count):
            if some is not None:
                found = some
            await asyncio.sleep(0)
        last = found[-1][0] if len(found) >= max_count else None
        return {
            "topic": topic.name,
            "pending_count": sum(delays.pending_of(part.id) for part in topic.parts),
            "messages": [_to_json(each) for _, each in found],
            "next": "-".join(map(str, last)) if last else "",
        }

    def cancel(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Cancel delayed messages of a topic by their ids: `id`, or many as `ids`.

        Answers which of them were waiting and are cancelled; the others are unknown, delivered, or
        cancelled already.
        """
        arguments.only("topic", "id", "ids")
        broker = self._broker
        topic = arguments.topic(broker)
        if len(arguments.selecting("id", "ids")) > 1:
            raise CallError("BAD_ARGUMENT", "give 'id' or 'ids', not both")
        wanted = arguments.ids("ids") if "ids" in arguments else [arguments.id("id")]
        cancelled = broker.delays.cancel(
            topic, [message_id.encode() for message_id in dict.fromkeys(wanted)]
        )
        return {
            "cancelled": [message_id for message_id in wanted if message_id.encode() in cancelled],
            "not_waiting": [
                message_id for message_id in wanted if message_id.encode() not in cancelled
            ],
        }


def _position(text: str) -> ListingPosition | None:
    if not text:
        return None
    match = _FROM.fullmatch(text)
    if match is None:
        raise CallError("BAD_ARGUMENT", f"'from' must be what 'next' was, not {text[:80]!r}")
    return ListingPosition(*map(int, match.groups()))


def _to_json(message: Delayed) -> dict[str, object]:
    properties = Properties.unpack(message.properties)
    return {
        "id": message.id,
        "deliver_at_ms": -(-message.deliver_at_ns // MILLISECOND_NS),
        "stored_at_ms": message.stored_at_ns // MILLISECOND_NS,
        "size_bytes": message.size_bytes,
        "tag": properties.tag,
        "keys": list(properties.keys),
    }
