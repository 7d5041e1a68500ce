"""A consumer's connection to one broker, remade whenever it is lost."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from martlet.addresses import Address
from martlet.client.consumer.stats import ConnectionStats
from martlet.client.transport.connection import Connection
from martlet.client.transport.dialer import Dialer

logger = logging.getLogger("martlet.client")


class BrokerSession(ABC):
    """Keep a connection to one broker, and count its messages.

    Args:
        address: the broker's.
        dialer: connects.

    Attributes:
        connection: the connection, while messages can be requested.
        attempted: done after the first attempt to connect.
        last_message_s: when the last message came, by ``time.monotonic``; 0 if none did.
    """

    def __init__(self, address: Address, dialer: Dialer) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.attempted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last_message_s = 0.0
        self._dialer = dialer
        self._dialer.on_failure = self.mark_attempted
        self._closing = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether messages can be requested now."""
        return self.connection is not None

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """The number of messages received and not answered, or not done."""

    @property
    @abstractmethod
    def received(self) -> int:
        """The number of messages received from this broker, on all connections so far."""

    @property
    @abstractmethod
    def finished(self) -> int:
        """The number of messages finished."""

    @property
    @abstractmethod
    def requeued(self) -> int:
        """The number of messages requeued, or delayed to be tried again."""

    def stats(self, ready_count: int) -> ConnectionStats:
        """Return the state of this connection, with the given ready count."""
        return ConnectionStats(
            address=str(self.address),
            is_connected=self.is_connected,
            ready_count=ready_count,
            in_flight=self.in_flight,
            received=self.received,
            finished=self.finished,
            requeued=self.requeued,
            last_message_s=self.last_message_s,
            last_error=str(self._dialer.last_error or ""),
        )

    @abstractmethod
    async def keep(self) -> None:
        """Connect and consume, reconnecting until closed.

        Raises:
            SubscribeRefused: the broker does not allow this client to consume. ConnectRefused: the
            broker refuses the connection.
        """

    @abstractmethod
    async def leave(self, timeout_s: float) -> None:
        """Ask the broker to stop sending, after it has all answers."""

    def hasten(self) -> None:
        """Try again to connect, soon: a broker that was lost elsewhere may be here now."""
        self._dialer.hasten()

    def mark_attempted(self) -> None:
        """End all waits for the first attempt."""
        if not self.attempted.done():
            self.attempted.set_result(None)

    async def close(self, timeout_s: float) -> None:
        """Close the connection for good after all output is sent, or the time is over."""
        self._closing.set()
        connection = self.connection
        if connection is not None:
            connection.close()
            try:
                async with asyncio.timeout(timeout_s):
                    await connection.wait_lost()
            except TimeoutError:
                logger.warning("%s does not read its input: connection closed", self.address)
                connection.abort()
