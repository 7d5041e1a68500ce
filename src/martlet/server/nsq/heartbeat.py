"""The heartbeat of a connection: it tells a client that is silent from one that has gone.

As nsqd does, a heartbeat is sent every interval that the client asked for, also while it is busy,
and who says nothing for two of them is cut off.  Any whole command counts.  One whose commands are
not read, for one reason or another, can not be called silent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.server.nsq.connection import ClientConnection


class Heartbeat:
    """The heartbeat of one connection.

    Args:
        loop: the event loop.
        connection: whose.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: ClientConnection) -> None:
        self._loop = loop
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None
        self._silent = 0

    def start(self) -> None:
        """Begin anew, with the interval that the client has now; none, where it wants none."""
        self.stop()
        interval_ns = self._connection.identity.heartbeat_interval_ns
        if interval_ns:
            self._silent = 0
            self._connection.heard = False
            self._timer = self._loop.call_later(interval_ns / 1e9, self._beat)

    def stop(self) -> None:
        """Send no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        """Send a heartbeat; close on a client that was silent for two."""
        connection = self._connection
        self._silent = 0 if connection.heard or connection.held_up else self._silent + 1
        connection.heard = False
        if self._silent >= 2:
            connection.drop("was silent for two heartbeats")
            return
        connection.beat()
        interval_ns = connection.identity.heartbeat_interval_ns
        self._timer = self._loop.call_later(interval_ns / 1e9, self._beat)
