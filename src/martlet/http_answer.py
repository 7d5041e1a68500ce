"""The answer of an HTTP server that somebody else runs: read no further than its limit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp


async def read_answer(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """The whole body, whether its size is announced or not.

    Raises:
        ValueError: there is more than that.
        aiohttp.ClientError: it broke off.
        TimeoutError: it took longer than the session allows.
    """
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > max_bytes:
            raise ValueError(f"an answer of more than {max_bytes} bytes")
    return bytes(body)


async def read_json(response: aiohttp.ClientResponse, max_bytes: int) -> Any:
    """What the body says; raises as `read_answer`, and ValueError where it is no JSON."""
    body = await read_answer(response, max_bytes)
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("an answer too deep to be read") from None
