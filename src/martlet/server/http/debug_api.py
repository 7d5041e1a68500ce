"""The endpoints below ``/debug`` that make sense in Python, at nsqd's paths.

Go's profiles below ``/debug/pprof`` do not: `martlet.server.http.server` answers 404 there.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import re
from contextlib import suppress

from aiohttp import web

from martlet.server.http.request import HttpError, Request, Routes
from martlet.server.http.response import TEXT

_DECIMAL = re.compile(r"[+-]?[0-9]+")


class DebugApi:
    """nsqd's ``/debug`` endpoints over this process."""

    def routes(self) -> Routes:
        """The endpoint of each path and method."""
        return {
            "/debug/setblockrate": {"PUT": self.set_block_rate},
            "/debug/freememory": {"POST": self.free_memory},
        }

    async def set_block_rate(self, request: Request) -> object:
        """Check the rate, and set nothing: there is no Go scheduler."""
        rate = request.query.get("rate", "")
        if not _DECIMAL.fullmatch(rate):
            raise HttpError(400, f"invalid block rate : {rate!r} is not a number", plain=True)
        return _text("no effect: Python does not report where its threads wait for locks\n")

    async def free_memory(self, request: Request) -> object:
        """Give unused memory back to the system."""
        # The collection stops all threads wherever it runs; the rest runs beside the broker.
        gc.collect()
        await asyncio.to_thread(_trim)
        return _text("")


def _trim() -> None:
    with suppress(AttributeError):  # a C library without malloc_trim returns memory by itself
        ctypes.CDLL(None).malloc_trim(0)


def _text(text: str) -> web.Response:
    return web.Response(body=text.encode(), headers={"Content-Type": TEXT})
