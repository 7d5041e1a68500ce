"""The brokers of a consumer: those configured, and those found by lookup daemons.

A configured broker is retried for ever. A found one is retried until all lookup daemons answer and
none names it any more. A broker that refuses this client is dropped. If it was configured, the
consumer fails. If it was found, the consumer continues without it while there are others, and tries
it again when a lookup daemon names it the next time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from martlet.addresses import Address
from martlet.client.consumer.broker_session import BrokerSession
from martlet.client.errors import Closed, ConnectRefused
from martlet.client.transport.discovery import Discovery

logger = logging.getLogger("martlet.client")

REVIVAL_S = 1.0


SessionT = TypeVar("SessionT", bound=BrokerSession)


class ConsumerBrokers(Generic[SessionT]):
    """Keep a session at each broker.

    Args:
        given: the configured ones.
        make_session: makes the session at a broker.
        on_failure: called with the error of a broker that is not tried any more.

    Attributes:
        sessions: by broker, connected or not.
        received, finished, requeued: the numbers of messages at brokers that have gone.
        is_closed: whether all are closed.
    """

    def __init__(
        self,
        given: Sequence[Address],
        make_session: Callable[[Address], SessionT],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.sessions: list[SessionT] = []
        self.received = self.finished = self.requeued = 0
        self._given = list(given)
        self._make_session = make_session
        self._on_failure = on_failure
        self._found: dict[Address, SessionT] = {}
        self._keepers: dict[SessionT, asyncio.Task[None]] = {}
        self._discovery: Discovery | None = None
        self._on_trouble: Callable[[str], object] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._revival: asyncio.TimerHandle | None = None
        self.is_closed = False

    @property
    def connected_count(self) -> int:
        """The number of connected brokers."""
        return sum(each.is_connected for each in self.sessions)

    def discover(self, discovery: Discovery, on_trouble: Callable[[str], object]) -> None:
        """Discover brokers too, once opened; `on_trouble` is called if discovery itself fails."""
        self._discovery = discovery
        self._on_trouble = on_trouble

    async def open(self) -> None:
        """Connect to configured brokers, start discovery, and wait until each known broker has been
        tried once.

        Raises:
            Closed: the consumer was closed meanwhile.
        """
        for address in self._given:
            self._keep(address)
        self._look()
        if self._discovery is not None:
            await self._discovery.first_found()
        if self.sessions:
            await asyncio.wait([each.attempted for each in self.sessions])
        if self.is_closed:
            raise Closed("the consumer was closed while it was connecting")

    def seek(self, lost: SessionT) -> None:
        """Look for a broker at other addresses, as a connection to it is lost."""
        for session in self.sessions:
            if session is not lost and not session.is_connected:
                session.hasten()
        if self._discovery is not None:
            self._discovery.poll_now()

    def _look(self) -> None:
        if self._discovery is not None:
            self._watch = asyncio.create_task(self._discovery.watch(), name="martlet lookup")
            self._watch.add_done_callback(self._on_look_ended)

    def _on_look_ended(self, watch: asyncio.Task[None]) -> None:
        error = None if watch.cancelled() else watch.exception()
        if error is not None and not self.is_closed:
            logger.error(
                "discovery of brokers failed unexpectedly, and begins again", exc_info=error
            )
            if self._on_trouble is not None:
                self._on_trouble(f"discovery of brokers failed unexpectedly: {error!r}")
            loop = asyncio.get_running_loop()
            self._revival = loop.call_later(REVIVAL_S, self._look)

    def found(self, addresses: Sequence[Address], is_all: bool) -> None:
        """Connect to brokers that lookup daemons named; ``is_all`` if there are no others."""
        if self.is_closed:
            return
        for address in addresses:
            if address not in self._found and address not in self._given:
                logger.info("found a broker at %s", address)
                self._found[address] = self._keep(address)
        if is_all:
            for address in self._found.keys() - set(addresses):
                if not self._found[address].is_connected:
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
        session = self._found.pop(address)
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
        for address, session in self._found.items():
            if self._keepers[session] is keeper and len(self.sessions) > 1:
                self._drop(address)
                return True
        return False

    async def leave(self, timeout_s: float) -> None:
        """Ask all brokers to stop sending, and wait until they have all answers."""
        self.is_closed = True
        if self.sessions:
            await asyncio.gather(*(each.leave(timeout_s) for each in self.sessions))

    async def close(self, timeout_s: float) -> None:
        """Close all connections."""
        self.is_closed = True
        if self._revival is not None:
            self._revival.cancel()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        if self.sessions:
            await asyncio.gather(*(each.close(timeout_s) for each in self.sessions))
        for keeper in self._keepers.values():
            keeper.cancel()
        for session in self.sessions:
            session.mark_attempted()
        if self._keepers:
            await asyncio.wait(self._keepers.values())
