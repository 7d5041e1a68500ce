"""The HTTP endpoints about the process: ``GET /metrics`` for monitoring systems, nsqd's below
``/debug`` that make sense in Python, and two for orchestrators:

=====================  ===========================================================================
``GET /health/live``   200 as long as the event loop turns: else restart the process
``GET /health/ready``  200 while clients can publish and consume here, else 503 with the reason: a
                       standby is ready while it follows a primary, to which it carries clients on
=====================  ===========================================================================
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import re
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web

from martlet.server.http.request import HttpError, Request, Routes
from martlet.server.http.response import TEXT, respond
from martlet.server.observability.metrics import BrokerMetrics
from martlet.server.observability.prometheus import CONTENT_TYPE

_DECIMAL = re.compile(r"[+-]?[0-9]+")


class HealthApi:
    """The endpoints over a broker or a standby.

    Args:
        obstacle: returns why it cannot take clients; empty if it can.
    """

    def __init__(self, obstacle: Callable[[], str]) -> None:
        self._obstacle = obstacle

    def routes(self) -> Routes:
        """The endpoint of each path and method."""
        return {"/health/live": {"GET": self.live}, "/health/ready": {"GET": self.ready}}

    async def live(self, request: Request) -> object:
        """Answer that the event loop turns."""
        return {"live": True}

    async def ready(self, request: Request) -> object:
        """Answer whether clients can publish and consume here; 503 with the reason if not."""
        reason = self._obstacle()
        return respond(503 if reason else 200, {"ready": not reason, "reason": reason})


class MetricsApi:
    """The endpoint over a broker's metrics."""

    def __init__(self, metrics: BrokerMetrics) -> None:
        self._metrics = metrics

    def routes(self) -> Routes:
        """The endpoint of each path and method."""
        return {"/metrics": {"GET": self.metrics}}

    async def metrics(self, request: Request) -> object:
        """Answer all metrics in Prometheus's text format."""
        text = await self._metrics.text()
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})


class DebugApi:
    """nsqd's ``/debug`` endpoints over this process, but for Go's profiles."""

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
