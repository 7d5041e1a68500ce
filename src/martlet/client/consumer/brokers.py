"""The brokers of a consumer: those configured, and those found by lookup daemons.

A configured broker is retried for ever. A found one is retried until all lookup daemons answer and
none names it any more. A broker that refuses this client is dropped. If it was configured, the
consumer fails. If it was found, the consumer continues without it while there are others, and tries
it again when a lookup daemon names it the next time.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from martlet.addresses import Address
from martlet.client.consumer.stats import ConnectionStats
from martlet.client.errors import Closed, ConnectRefused
from martlet.client.transport.connection import Connection
from martlet.client.transport.dialer import Dialer
from martlet.client.transport.discovery import Discovery

logger = logging.getLogger("martlet.client")

REVIVAL_S = 1.0
"""The pause before discovery begins again after an unexpected error."""


class BrokerSession(ABC):
    """Keep a connection to one broker, remade whenever it is lost, and count its messages."""

    def __init__(self, address: Address, dialer: Dialer) -> None:
        self.address = address
        self.connection: Connection | None = None
        """The connection, while messages can be requested."""
        self.attempted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done after the first attempt to connect."""
        self.last_message_s = 0.0
        """When the last message came, by ``time.monotonic``; 0 if none did."""
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
        """Return the state of this connection."""
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


SessionT = TypeVar("SessionT", bound=BrokerSession)


class ConsumerBrokers(Generic[SessionT]):
    """Keep a session at each broker.

    Args:
        on_failure: called with the error of a broker that is not tried any more.
    """

    def __init__(
        self,
        configured: Sequence[Address],
        make_session: Callable[[Address], SessionT],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.sessions: list[SessionT] = []
        """Of all brokers, connected or not."""
        self.received = self.finished = self.requeued = 0
        """The numbers of messages at brokers that have gone."""
        self._configured = list(configured)
        self._make_session = make_session
        self._on_failure = on_failure
        self._discovered: dict[Address, SessionT] = {}
        self._keepers: dict[SessionT, asyncio.Task[None]] = {}
        self._discovery: Discovery | None = None
        self._on_trouble: Callable[[str], object] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._revival: asyncio.TimerHandle | None = None
        self.is_closed = False

    @property
    def connected_count(self) -> int:
        """The number of connected brokers."""
        return sum(session.is_connected for session in self.sessions)

    def discover(self, discovery: Discovery, on_trouble: Callable[[str], object]) -> None:
        """Discover brokers too, once opened; `on_trouble` is called if discovery itself fails."""
        self._discovery = discovery
        self._on_trouble = on_trouble

    async def open(self) -> None:
        """Connect to configured brokers, start discovery, and wait until each known broker has been
        tried once. Raises Closed: the consumer was closed meanwhile.
        """
        for address in self._configured:
            self._keep(address)
        self._watch_lookups()
        if self._discovery is not None:
            await self._discovery.first_found()
        if self.sessions:
            await asyncio.wait([session.attempted for session in self.sessions])
        if self.is_closed:
            raise Closed("the consumer was closed while it was connecting")

    def seek(self, lost: SessionT) -> None:
        """Look for a broker at other addresses, as a connection to it is lost."""
        for session in self.sessions:
            if session is not lost and not session.is_connected:
                session.hasten()
        if self._discovery is not None:
            self._discovery.poll_now()

    def _watch_lookups(self) -> None:
        if self._discovery is not None:
            self._watch = asyncio.create_task(self._discovery.watch(), name="martlet lookup")
            self._watch.add_done_callback(self._on_watch_ended)

    def _on_watch_ended(self, watch: asyncio.Task[None]) -> None:
        error = None if watch.cancelled() else watch.exception()
        if error is not None and not self.is_closed:
            logger.error(
                "discovery of brokers failed unexpectedly, and begins again", exc_info=error
            )
            if self._on_trouble is not None:
                self._on_trouble(f"discovery of brokers failed unexpectedly: {error!r}")
            loop = asyncio.get_running_loop()
            self._revival = loop.call_later(REVIVAL_S, self._watch_lookups)

    def discovered(self, addresses: Sequence[Address], is_all: bool) -> None:
        """Connect to brokers that lookup daemons named; ``is_all`` if there are no others."""
        if self.is_closed:
            return
        for address in addresses:
            if address not in self._discovered and address not in self._configured:
                logger.info("found a broker at %s", address)
                self._discovered[address] = self._keep(address)
        if is_all:
            for address in self._discovered.keys() - set(addresses):
                if not self._discovered[address].is_connected:
                    logger.info("the broker at %s has gone", address)
                    self._drop(address)

    def _keep(self, address: Address) -> SessionT:
        session = self._make_session(address)
        self.sessions.append(session)
        keeper = asyncio.create_task(session.keep(), name=f"martlet consumer {address}")
        keeper.add_done_callback(self._on_keeper_done)
        self._keepers[session] = keeper
        return session

    def _drop(self, address: Address) -> None:
        """Stop trying a broker that is not connected."""
        session = self._discovered.pop(address)
        self.sessions.remove(session)
        session.mark_attempted()
        self.received += session.received
        self.finished += session.finished
        self.requeued += session.requeued
        self._keepers.pop(session).cancel()

    def _on_keeper_done(self, keeper: asyncio.Task[None]) -> None:
        error = None if keeper.cancelled() else keeper.exception()
        if isinstance(error, ConnectRefused) and self._goes_on_without(keeper):
            logger.error("going on without a broker: %s", error)
        elif isinstance(error, Exception):
            self._on_failure(error)
            for session in self.sessions:
                session.mark_attempted()

    def _goes_on_without(self, keeper: asyncio.Task[None]) -> bool:
        """Drop a broker that refused, if it was found and is not the last one."""
        for address, session in self._discovered.items():
            if self._keepers[session] is keeper and len(self.sessions) > 1:
                self._drop(address)
                return True
        return False

    async def leave(self, timeout_s: float) -> None:
        """Ask all brokers to stop sending, and wait until they have all answers."""
        self.is_closed = True
        if self.sessions:
            await asyncio.gather(*(session.leave(timeout_s) for session in self.sessions))

    async def close(self, timeout_s: float) -> None:
        """Close all connections."""
        self.is_closed = True
        if self._revival is not None:
            self._revival.cancel()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        if self.sessions:
            await asyncio.gather(*(session.close(timeout_s) for session in self.sessions))
        for keeper in self._keepers.values():
            keeper.cancel()
        for session in self.sessions:
            session.mark_attempted()
        if self._keepers:
            await asyncio.wait(self._keepers.values())
