"""Read the answer of an HTTP server that is not ours, up to a size limit."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_answer(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Read the complete body, whether its size is announced or not.

    Raises:
        ValueError: it is longer than `max_bytes`.
        aiohttp.ClientError: the connection was lost.
        TimeoutError: it took longer than the session allows.
    """
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > max_bytes:
            raise ValueError(f"an answer of more than {max_bytes} bytes")
    return bytes(body)


async def read_json(response: aiohttp.ClientResponse, max_bytes: int) -> Any:
    """Parse the body as JSON; raises as `read_answer`, and ValueError where it is not JSON.

    Half a surrogate pair is a character in JSON and none in UTF-8; each is replaced by ``?``.
    """
    body = await read_answer(response, max_bytes)
    try:
        found = json.loads(body.decode())
        if _SURROGATE.search(body):
            found = json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
        return found
    except RecursionError:
        raise ValueError("an answer too deep to be read") from None
