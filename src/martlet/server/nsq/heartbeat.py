"""The heartbeat of a connection, which detects clients that are silently gone.

As with nsqd, the broker sends a heartbeat at the interval that the client asked for, also on a busy
connection, and drops a client that does not answer two of them. Any complete command counts as an
answer. A client whose commands the broker holds up is not silent, and neither is one while the
broker itself was stopped: what it sent meanwhile is read before it is judged.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.server.nsq.connection import ClientConnection

_LATE_S = 0.5
"""A heartbeat that is later was held up by the broker."""
_GRACE_S = 0.1
"""The time in which the loop reads what came meanwhile."""


class Heartbeat:
    """The heartbeat of one connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None
        self._silent = 0
        self._due_s = 0.0
        self._is_held_up = False

    def start(self) -> None:
        """Restart with the client's current interval, unless it wants no heartbeats."""
        self.stop()
        interval_ns = self._connection.identity.heartbeat_interval_ns
        if interval_ns:
            self._silent = 0
            self._connection.has_received = False
            self._beat_after(interval_ns / 1e9)

    def _beat_after(self, seconds: float) -> None:
        self._due_s = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._due_s, self._beat)

    def stop(self) -> None:
        """Stop the heartbeats."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        """Send a heartbeat, or drop a client that was silent for two."""
        was_held_up, self._is_held_up = self._is_held_up, False
        if not was_held_up and self._loop.time() - self._due_s > _LATE_S:
            self._is_held_up = True
            self._beat_after(_GRACE_S)
            return
        connection = self._connection
        self._silent = (
            0 if connection.has_received or connection.input.is_held_up else self._silent + 1
        )
        connection.has_received = False
        if self._silent >= 2:
            connection.drop("was silent for two heartbeats")
            return
        connection.beat()
        self._beat_after(connection.identity.heartbeat_interval_ns / 1e9)
