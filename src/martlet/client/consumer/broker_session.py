"""A consumer's connection to one broker, made again whenever it is lost."""

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
    """Keeps a connection to one broker, and counts the messages from there.

    Args:
        address: the broker's.
        dialer: connects.

    Attributes:
        connection: the connection, while messages can be asked for.
        attempted: done when the first attempt to connect was made.
        last_message_s: when the last message came, by ``time.monotonic``; 0 where none did.
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
        """Whether messages can be asked for now."""
        return self.connection is not None

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """How many messages came and are not answered, or not done."""

    @property
    @abstractmethod
    def received(self) -> int:
        """How many messages came from here, on all connections so far."""

    @property
    @abstractmethod
    def finished(self) -> int:
        """How many messages were finished."""

    @property
    @abstractmethod
    def requeued(self) -> int:
        """How many messages were requeued, or put off to be tried again."""

    def stats(self, ready_count: int) -> ConnectionStats:
        """The numbers of this connection, which may have so many messages in flight."""
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
        """Connect, and consume, again and again, until closed.

        Raises:
            SubscribeRefused: the broker does not let this client consume.
            ConnectRefused: it does not even take the connection.
        """

    @abstractmethod
    async def leave(self, timeout_s: float) -> None:
        """Tell the broker that no more messages are wanted, once it has all answers."""

    def mark_attempted(self) -> None:
        """Let nothing wait for the first attempt any longer."""
        if not self.attempted.done():
            self.attempted.set_result(None)

    async def close(self, timeout_s: float) -> None:
        """Close the connection for good once everything written is sent, or the time is over."""
        self._closing.set()
        connection = self.connection
        if connection is not None:
            connection.close()
            try:
                async with asyncio.timeout(timeout_s):
                    await connection.wait_lost()
            except TimeoutError:
                logger.warning("%s does not read what it is sent: hung up", self.address)
                connection.abort()
