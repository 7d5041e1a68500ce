"""The HTTP endpoints for orchestrators, which restart a process or send it no clients.

=====================  ===========================================================================
``GET /health/live``   200 as long as the event loop turns: else restart the process
``GET /health/ready``  200 while clients can publish and consume here, else 503 with the reason: a
                       standby is ready while it follows a primary, to which it carries clients on
=====================  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Callable

from martlet.server.http.request import Request, Routes
from martlet.server.http.response import respond


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
