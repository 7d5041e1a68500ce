"""The HTTP endpoint for monitoring systems: ``GET /metrics``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from martlet.server.http.request import Request, Routes
from martlet.server.observability.prometheus import CONTENT_TYPE

if TYPE_CHECKING:
    from martlet.server.observability.metrics import BrokerMetrics


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
