"""The heartbeat of a connection, which detects clients that are silently gone.

As with nsqd, the broker sends a heartbeat at the interval that the client asked for, also on a busy
connection, and drops a client that does not answer two of them. Any complete command counts as an
answer. A client whose commands the broker holds up is not silent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from martlet.protocol.nsq.negotiation import ClientIdentity


class BeatingConnection(Protocol):
    """A connection with a heartbeat.

    Attributes:
        identity: has the interval.
        heard: whether a command has come since the last heartbeat.
    """

    identity: ClientIdentity
    heard: bool

    @property
    def held_up(self) -> bool:
        """Whether reading of the client's commands is paused."""

    def beat(self) -> None:
        """Send a heartbeat."""

    def drop(self, reason: str) -> None:
        """Close at once: the client is gone."""


class Heartbeat:
    """The heartbeat of one connection.

    Args:
        connection: the connection.
    """

    def __init__(self, connection: BeatingConnection) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None
        self._silent = 0

    def start(self) -> None:
        """Restart with the client's current interval, unless it wants no heartbeats."""
        self.stop()
        interval_ns = self._connection.identity.heartbeat_interval_ns
        if interval_ns:
            self._silent = 0
            self._connection.heard = False
            self._timer = self._loop.call_later(interval_ns / 1e9, self._beat)

    def stop(self) -> None:
        """Stop the heartbeats."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        """Send a heartbeat, or drop a client that was silent for two."""
        connection = self._connection
        self._silent = 0 if connection.heard or connection.held_up else self._silent + 1
        connection.heard = False
        if self._silent >= 2:
            connection.drop("was silent for two heartbeats")
            return
        connection.beat()
        interval_ns = connection.identity.heartbeat_interval_ns
        self._timer = self._loop.call_later(interval_ns / 1e9, self._beat)
