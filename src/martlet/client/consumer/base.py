"""The base of all consumers: connect to brokers, run handlers, stop and close."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self

from martlet.addresses import Address
from martlet.client.consumer.brokers import ConsumerBrokers, SessionT
from martlet.client.consumer.handling.worker import WorkerPool
from martlet.client.consumer.settings import HandlerSettings
from martlet.client.consumer.waiters import SharedRate, Waiters, rate_limit_of
from martlet.client.errors import Closed
from martlet.client.names import check_name
from martlet.client.settings import Addresses, ConnectionSettings, parse_addresses
from martlet.client.transport.dialer import Dialer
from martlet.client.transport.discovery import Discovery

GOODBYE_S = 1.0
"""The time for closing connections after handlers have used up the close timeout."""


class ConsumerBase(ABC, Generic[SessionT]):
    """Keep a session at each broker, and hand out the delivered messages.

    Args:
        name: of the channel or the group; None for none.
        addresses: of the brokers; None for 127.0.0.1:4150, or for those that lookup daemons name.
        source: hands messages out.
        handling: the time limit of closing, and the rate.
    """

    def __init__(
        self,
        topic: str,
        name: str | None,
        addresses: Addresses | None,
        connection: ConnectionSettings,
        *,
        source: Waiters,
        workers: WorkerPool[Any],
        handling: HandlerSettings,
    ) -> None:
        self._topic = check_name(topic, "topic")
        self._name = "" if name is None else check_name(name, "channel")
        self._connection = connection
        self._hooks = connection.hooks.guarded()
        self._source = source
        self._workers = workers
        self._close_timeout_s = handling.close_timeout_s
        source.limit_rate(rate_limit_of(handling.rate_per_s, handling.rate_burst))
        if self._hooks.has_handling:
            workers.wrap = partial(self._hooks.handler, topic, self._name)
        daemons = connection.lookup_daemons
        if addresses is None and daemons is None:
            addresses = "127.0.0.1:4150"
        self._configured = parse_addresses(addresses) if addresses is not None else []
        self._brokers = ConsumerBrokers(self._configured, self._make_session, self._on_failure)
        if daemons is not None:
            poll_s = connection.lookup_poll_s
            discovery = Discovery(self._topic, daemons, poll_s, self._brokers.discovered)
            self._brokers.discover(discovery, on_trouble=self._on_trouble)
        self._entered = False

    # implemented by each kind of consumer

    @abstractmethod
    def _make_session(self, address: Address) -> SessionT:
        """Make the session at one broker."""

    def _on_failure(self, error: Exception) -> None:
        """End the consumer, since the client has given up a broker."""
        self._source.close(error)

    def _on_trouble(self, cause: str) -> None:
        """Handle a stall of the consumer."""

    async def _drain(self, timeout_s: float, besides: Iterable[asyncio.Task[object]]) -> None:
        """Wait for handlers other than these, and give back unanswered messages."""
        await self._workers.end(timeout_s, besides)

    def _on_left(self) -> None:
        """Clean up after the brokers have stopped sending."""

    async def _hang_up(self, timeout_s: float) -> None:
        """Stop background tasks, and close the connections."""
        await self._brokers.close(timeout_s)

    # connecting

    def _dialer(self, address: Address) -> Dialer:
        is_found = address not in self._configured
        return self._connection.dialer(address, is_found=is_found, hooks=self._hooks)

    async def __aenter__(self) -> Self:
        """Connect; retry unreachable brokers in the background.

        Raises:
            SubscribeRefused: a broker does not allow this client to consume. ConnectRefused: a
            configured broker, or all that were found, refuse the connection; see there. Closed: it
            was connected or closed before; make a new one.
        """
        if self._entered or self._brokers.is_closed:
            raise Closed("a consumer is used once: make a new one")
        self._entered = True
        try:
            await self._brokers.open()
            self._source.check()
        except BaseException:
            await self._hang_up(GOODBYE_S)
            raise
        return self

    def _check_entered(self) -> None:
        if not self._entered:
            raise Closed(f"use 'async with {type(self).__name__}(...)'")

    @property
    def connected_count(self) -> int:
        """The number of connected brokers."""
        return self._brokers.connected_count

    def change_rate(self, rate_per_s: float | SharedRate, burst: int = 0) -> None:
        """Change the maximum number of messages handed out in a second; 0 for no limit.

        Args:
            rate_per_s, burst: as ``rate_per_s`` and ``rate_burst`` of the settings.

        Raises:
            ValueError: one of them is out of its limits.
        """
        self._source.limit_rate(rate_limit_of(rate_per_s, burst))

    # closing

    def stop(self) -> None:
        """Stop handing out messages: iterators end, and ``run`` returns after its handlers."""
        self._source.close()

    async def close(self) -> None:
        """Stop, wait for running handlers, unsubscribe, and close the connections.

        It takes at most ``close_timeout_s``. Messages unanswered by then are redelivered at once,
        here or to other consumers: those not handed out, those in running handlers, and those that
        you took by iterating or in batches.
        """
        await self._close()

    async def _close(self, besides: Iterable[asyncio.Task[object]] = ()) -> None:
        """Close without waiting for those workers, since their handlers wait for this call."""
        self.stop()
        ends_at_s = time.monotonic() + self._close_timeout_s
        goodbye_s = min(GOODBYE_S, self._close_timeout_s / 4)
        try:
            await self._drain(self._close_timeout_s - 2 * goodbye_s, besides)
            left_s = ends_at_s - goodbye_s - time.monotonic()
            await self._brokers.leave(max(goodbye_s, left_s))
            self._on_left()
        finally:
            await self._hang_up(goodbye_s)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
