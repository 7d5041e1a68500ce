"""Ask an HTTP server that is not ours, and read its answer up to a size limit."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def load_aiohttp() -> None:
    """Import aiohttp in a thread, unless it is there.

    That takes half a second, and much more on a busy machine, for which an import in the event loop
    would stop all connections of it.
    """
    module = sys.modules.get("aiohttp")
    if module is None or getattr(module.__spec__, "_initializing", False):
        await asyncio.to_thread(import_module, "aiohttp")


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
