r"""The fast path of ``POST /pub``: a request that comes whole, with common headers alone.

::

    POST /pub?topic=NAME HTTP/1.1\r\n
    Host: ...\r\n            each of `_HEADERS` at most once
    Content-Length: N\r\n
    \r\n
    N bytes, and nothing behind them

A client that publishes by HTTP sends the same head again and again, so heads are parsed once. Any
other request is aiohttp's, and so are all that follow it on its connection: what is still due there
is known to aiohttp alone.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

MAX_HEAD_BYTES = 1024
"""A longer head is not cached, and left to aiohttp."""
BEGINNING = b"POST /pub?topic="
_HEADERS = frozenset(
    {
        b"host",
        b"user-agent",
        b"accept",
        b"accept-encoding",
        b"connection",
        b"content-type",
        b"content-length",
    }
)
_REQUEST_LINE = re.compile(rb"POST /pub\?topic=([.a-zA-Z0-9_-]{1,64}) HTTP/1\.1")
_HEADER = re.compile(rb"([A-Za-z-]+):[\t ]*([\x20-\x7e]*)")
_LENGTH = re.compile(rb"[1-9][0-9]{0,9}")


class LoneRequest(NamedTuple):
    """A request to publish one message."""

    topic: str
    body: bytes


@lru_cache(maxsize=1024)
def _parse_head(head: bytes) -> tuple[str, int] | None:
    """Return the topic and the size of the body; None for a head that aiohttp has to read."""
    first, *lines = head.split(b"\r\n")
    request_line = _REQUEST_LINE.fullmatch(first)
    fields: dict[bytes, bytes] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None or (name := header[1].lower()) in fields or name not in _HEADERS:
            return None
        fields[name] = header[2].strip()
    length = fields.get(b"content-length", b"")
    stays = fields.get(b"connection", b"keep-alive").lower() == b"keep-alive"
    if request_line is None or b"host" not in fields or not stays or not _LENGTH.fullmatch(length):
        return None
    return request_line[1].decode(), int(length)


def parse(data: bytes) -> LoneRequest | None:
    """Parse received bytes; None unless they are one whole request of this kind."""
    if not data.startswith(BEGINNING):
        return None
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    head = _parse_head(data[:end]) if end > 0 else None
    if head is None or len(data) - end - 4 != head[1]:
        return None
    return LoneRequest(head[0], data[end + 4 :])
