"""The brokers that a consumer is subscribed at: those that were given, and those that are found.

A broker that was given is tried for ever.  One that a lookup daemon told of is tried until all of
them answer and none tells of it any more.  One that refuses this client is left: what was given is
missed then, and the consumer fails; what was found is done without while there are others, and
tried again when a lookup daemon tells of it the next time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from martlet.addresses import Address
from martlet.client.errors import Closed, ConnectRefused
from martlet.client.transport.discovery import Discovery

logger = logging.getLogger("martlet.client")

REVIVAL_S = 1.0


class Kept(Protocol):
    """A consumer's place at one broker, such as a `Subscription`."""

    attempted: asyncio.Future[None]

    @property
    def is_connected(self) -> bool:
        """Whether the broker has taken us."""

    @property
    def received(self) -> int:
        """How many messages came from there."""

    @property
    def finished(self) -> int:
        """How many of them were finished."""

    @property
    def requeued(self) -> int:
        """How many were requeued."""

    async def keep(self) -> None:
        """Be there until closed. Raises what ends that."""

    def mark_attempted(self) -> None:
        """Nobody is to wait for the first attempt any longer."""

    async def leave(self, timeout_s: float) -> None:
        """Tell the broker that nothing more is wanted."""

    async def close(self, timeout_s: float) -> None:
        """Hang up for good."""


KeptT = TypeVar("KeptT", bound=Kept)


class ConsumerBrokers(Generic[KeptT]):
    """Keeps a subscription at each.

    Args:
        given: those that are there from the start.
        subscribe: makes the subscription at one.
        on_failure: told why one is not tried any more.

    Attributes:
        subscriptions: one at each broker, connected or not.
        received, finished, requeued: how many messages were, at brokers that have gone.
        is_closed: whether it is left, for good.
    """

    def __init__(
        self,
        given: Sequence[Address],
        subscribe: Callable[[Address], KeptT],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.subscriptions: list[KeptT] = []
        self.received = self.finished = self.requeued = 0
        self._given = list(given)
        self._subscribe = subscribe
        self._on_failure = on_failure
        self._found: dict[Address, KeptT] = {}
        self._keepers: dict[KeptT, asyncio.Task[None]] = {}
        self._discovery: Discovery | None = None
        self._on_trouble: Callable[[str], object] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._revival: asyncio.TimerHandle | None = None
        self.is_closed = False

    @property
    def connected_count(self) -> int:
        """How many are connected now."""
        return sum(each.is_connected for each in self.subscriptions)

    def discover(self, discovery: Discovery, on_trouble: Callable[[str], object]) -> None:
        """Look for others too, once begun; to be told where looking itself breaks."""
        self._discovery = discovery
        self._on_trouble = on_trouble

    async def open(self) -> None:
        """Connect to those that were given, look for others, and wait until each has been tried
        once, if any was found.

        Raises:
            Closed: they were left meanwhile.
        """
        for address in self._given:
            self._keep(address)
        self._look()
        if self._discovery is not None:
            await self._discovery.first_found()
        if self.subscriptions:
            await asyncio.wait([each.attempted for each in self.subscriptions])
        if self.is_closed:
            raise Closed("the consumer was closed while it was connecting")

    def look_again(self) -> None:
        """Look for others at once."""
        if self._discovery is not None:
            self._discovery.look_again()

    def _look(self) -> None:
        if self._discovery is not None:
            self._watch = asyncio.create_task(self._discovery.watch(), name="martlet lookup")
            self._watch.add_done_callback(self._on_look_ended)

    def _on_look_ended(self, watch: asyncio.Task[None]) -> None:
        error = None if watch.cancelled() else watch.exception()
        if error is not None and not self.is_closed:
            logger.error("looking for brokers broke, and begins again", exc_info=error)
            if self._on_trouble is not None:
                self._on_trouble(f"looking for brokers broke: {error!r}")
            loop = asyncio.get_running_loop()
            self._revival = loop.call_later(REVIVAL_S, self._look)

    def found(self, addresses: Sequence[Address], is_all: bool) -> None:
        """Lookup daemons told of these; ``is_all`` where there are no others."""
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

    def _keep(self, address: Address) -> KeptT:
        subscription = self._subscribe(address)
        self.subscriptions.append(subscription)
        keeper = asyncio.create_task(subscription.keep(), name=f"martlet consumer {address}")
        keeper.add_done_callback(self._on_keeper_done)
        self._keepers[subscription] = keeper
        return subscription

    def _drop(self, address: Address) -> None:
        """Do not try a broker again that is not connected."""
        subscription = self._found.pop(address)
        self.subscriptions.remove(subscription)
        subscription.mark_attempted()
        self.received += subscription.received
        self.finished += subscription.finished
        self.requeued += subscription.requeued
        self._keepers.pop(subscription).cancel()

    def _on_keeper_done(self, keeper: asyncio.Task[None]) -> None:
        error = None if keeper.cancelled() else keeper.exception()
        if isinstance(error, ConnectRefused) and self._does_without(keeper):
            logger.error("going on without a broker: %s", error)
        elif isinstance(error, Exception):
            self._on_failure(error)
            for subscription in self.subscriptions:
                subscription.mark_attempted()

    def _does_without(self, keeper: asyncio.Task[None]) -> bool:
        """Leave the broker of this keeper, if it was found and is not the last."""
        for address, subscription in self._found.items():
            if self._keepers[subscription] is keeper and len(self.subscriptions) > 1:
                self._drop(address)
                return True
        return False

    async def leave(self, timeout_s: float) -> None:
        """Tell all to send no more, and wait until they have taken all answers."""
        self.is_closed = True
        if self.subscriptions:
            await asyncio.gather(*(each.leave(timeout_s) for each in self.subscriptions))

    async def close(self, timeout_s: float) -> None:
        """Hang up everywhere."""
        self.is_closed = True
        if self._revival is not None:
            self._revival.cancel()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        if self.subscriptions:
            await asyncio.gather(*(each.close(timeout_s) for each in self.subscriptions))
        for keeper in self._keepers.values():
            keeper.cancel()
        for subscription in self.subscriptions:
            subscription.mark_attempted()
        if self._keepers:
            await asyncio.wait(self._keepers.values())
