"""The clients connected over TCP."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.server.nsq.connection import ClientConnection
    from martlet.server.observability.event_log import EventLog


class Clients:
    """The open connections.

    Args:
        max_count: the maximum number of connections, 0 for no limit.
    """

    def __init__(self, max_count: int, events: EventLog, log: logging.Logger) -> None:
        self._max_count = max_count
        self._events = events
        self._log = log
        self.connections: set[ClientConnection] = set()
        """All open ones."""
        self.is_stopping = False
        """Whether the broker is closing them to stop."""
        self._empty: asyncio.Event | None = None

    def opened(self, connection: ClientConnection) -> None:
        """Count a new connection, or abort one beyond the limit or while the broker stops."""
        self.connections.add(connection)
        if self.is_stopping:
            connection.abort()
        elif self._max_count and len(self.connections) > self._max_count:
            self._log.warning(
                "TCP: refusing %s: --max-connections is %d",
                connection.remote_address,
                self._max_count,
            )
            connection.abort()
        else:
            self._events.opened(connection.remote_address)

    def closed(self, connection: ClientConnection, error: Exception | None) -> None:
        """Uncount a closed connection."""
        self.connections.discard(connection)
        if self._empty is not None and not self.connections:
            self._empty.set()
        if connection.greeted:
            self._events.closed(connection.remote_address, error)

    async def stop(self) -> None:
        """Close all connections, and wait for it."""
        self.is_stopping = True
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)
        for connection in list(self.connections):
            connection.abort()
        if self.connections:
            self._empty = asyncio.Event()
            await self._empty.wait()
