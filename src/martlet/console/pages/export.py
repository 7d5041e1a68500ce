"""Downloads: JSON lines of messages, and single bodies."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from typing import Any

from aiohttp import web

from martlet.console.guard import RefusalReason, user_of
from martlet.console.site import SITE

_LINES = "application/x-ndjson"
_OCTETS = "application/octet-stream"


def check_may_download(request: web.Request) -> None:
    """Refuse users who may not download. Raises HTTPForbidden; the audit has it."""
    site, user = request.app[SITE], user_of(request)
    why = ""
    if not site.options.export:
        why = "nothing is downloaded from this page: see --export"
    elif not user.sees_bodies:
        why = "this user does not see bodies: see --reader-user"
    if why:
        site.audit.refused(request, user, RefusalReason.ROLE, why)
        raise web.HTTPForbidden(text=why)


async def send_lines(
    request: web.Request, name: str, rows: AsyncIterator[Mapping[str, Any]], **where: str
) -> web.StreamResponse:
    """Answer rows as JSON lines, as a file; the audit has their number, but for viewers of numbers.

    An error on the way becomes the last line, and breaks the download off.
    """
    site, user = request.app[SITE], user_of(request)
    headers = _headers(_LINES, f"{name}.jsonl")
    if request.method == "HEAD":
        return web.Response(headers=headers)
    first = await anext(rows, None)
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    count = 0
    if first is not None:
        await response.write(_line(first))
        count = 1
        async for row in rows:
            await response.write(_line(row))
            count += 1
    if user.sees_texts:  # Others, who may be strangers, got no more than a page shows.
        action = f"export_{name.replace('-', '_')}"
        site.audit.done(request, user, action, f"{count} lines", **where)
    await response.write_eof()
    return response


def send_body(request: web.Request, body: bytes, name: str, **where: str) -> web.Response:
    """Answer a body as a file that no browser opens; the audit has it."""
    site, user = request.app[SITE], user_of(request)
    site.audit.done(request, user, "download_body", name, **where)
    return web.Response(body=body, headers=_headers(_OCTETS, f"{name}.bin"))


def body_fields(body: bytes) -> dict[str, str]:
    """Return the field of a body, as brokers name it: text, or in base 64."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


def _headers(kind: str, file: str) -> dict[str, str]:
    return {
        "Content-Type": kind,
        "Content-Disposition": f'attachment; filename="{file}"',
        "X-Content-Type-Options": "nosniff",
    }
