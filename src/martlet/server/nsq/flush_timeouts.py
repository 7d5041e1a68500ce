"""Late flushes: who waits for one is told after a while that his messages are stored, no more."""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.server.nsq.connection import ClientConnection
    from martlet.server.nsq.send import StoredSend
    from martlet.server.server import Server

_GRAIN_S = 0.01
"""Who is to be told within so much time of another is told with him."""


class FlushTimeouts:
    """The sends that wait for a flush.

    Args:
        server: whose.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._waiting: list[tuple[float, int, ClientConnection, StoredSend]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, connection: ClientConnection, stored: StoredSend, timeout_ms: int) -> None:
        """Tell a client after so long, if it has not been told by then."""
        loop = self._server.loop
        waiting = self._waiting
        while waiting and waiting[0][3].is_answered:
            heappop(waiting)
        deadline_s = loop.time() + timeout_ms / 1000
        heappush(waiting, (deadline_s, next(self._numbers), connection, stored))
        if self._timer is None or waiting[0][3] is stored:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._waiting:
            self._timer = self._server.loop.call_at(self._waiting[0][0], self._look)

    def _look(self) -> None:
        now_s = self._server.loop.time() + _GRAIN_S
        late: dict[ClientConnection, None] = {}
        while self._waiting and (self._waiting[0][0] <= now_s or self._waiting[0][3].is_answered):
            _, _, connection, stored = heappop(self._waiting)
            if not stored.is_answered and connection in self._server.connections:
                stored.hurry()
                late[connection] = None
        for connection in late:
            connection.settle(self._server.durable_position)
        self._set_timer()

    def close(self) -> None:
        """Tell nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
