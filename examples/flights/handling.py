"""Handling the flights: four consumers of one channel, whose handler fails now and then.

The handler keeps its results as an application would: by the message's own key, so that a
message that comes twice counts once.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

from examples.flights.board import Mark
from examples.flights.flights import KEY
from examples.flights.report import CarrierLine, Report
from martlet.client import Backoff, Consumer, FailureBackoff, Message

TOPIC = "flights"
CHANNEL = "delays"
CONSUMERS = 4
IN_FLIGHT = 500
"""The messages that one consumer may have in flight."""
ONE_IN = 100
"""One flight in a hundred fails the first time."""


class DemoHandlerFailed(Exception):
    """The handler's failure on purpose."""


class DemoHandling:
    """Four consumers, and the ledger of what they handled.

    Attributes:
        deliveries: how many messages the handler was called with.
        failures: how many of these calls failed, on purpose.
        finished: the mark of how many flights were handled to the end.
        count: how many there are.
        consumers: the consumers.
    """

    def __init__(self, address: str, count: int) -> None:
        self.deliveries = 0
        self.failures = 0
        self.finished = Mark()
        self.count = count
        self.consumers = [
            Consumer(
                TOPIC,
                CHANNEL,
                address,
                max_in_flight=IN_FLIGHT,
                failure_backoff=FailureBackoff(max_s=0),  # one that fails says nothing of others
                retry=Backoff(first_s=1, max_s=60),
            )
            for _ in range(CONSUMERS)
        ]
        self._subscribed: AsyncExitStack
        self._failed = bytearray(count)
        self._finished = bytearray(count)
        self._sums: dict[str, list[int]] = {}

    async def __aenter__(self) -> DemoHandling:
        """Subscribe.

        As with NSQ, a channel that is not the first of its topic gets what is published from then
        on; so nothing may be published before.
        """
        async with AsyncExitStack() as stack:
            for consumer in self.consumers:
                await stack.enter_async_context(consumer)
            self._subscribed = stack.pop_all()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._subscribed.aclose()

    async def run(self) -> None:
        """Handle messages until the consumers are stopped."""
        async with asyncio.TaskGroup() as group:
            for consumer in self.consumers:
                group.create_task(consumer.run(self.handle))

    def stop(self) -> None:
        """Stop the consumers."""
        for consumer in self.consumers:
            consumer.stop()

    def handle(self, message: Message) -> None:
        """Handle a message; it is finished when this returns, and comes back when this raises."""
        self.deliveries += 1
        flight = json.loads(message.body)
        row = flight[KEY]
        if row % ONE_IN == 0 and not self._failed[row]:
            self._failed[row] = 1
            self.failures += 1
            raise DemoHandlerFailed(f"flight {row}: one in {ONE_IN} fails the first time")
        if self._finished[row]:
            return
        self._finished[row] = 1
        self.finished.rise(self.finished.count + 1)
        self._add(flight["carrier"], flight["dep_delay"])

    def _add(self, carrier: str, delay_min: int | None) -> None:
        sums = self._sums.setdefault(carrier, [0, 0, 0])
        sums[0] += 1
        if delay_min is not None:
            sums[1] += 1
            sums[2] += delay_min

    @property
    def done(self) -> bytes:
        """For each flight, whether it is finished."""
        return bytes(self._finished)

    def report(self) -> Report:
        """Add up the handled flights."""
        return {carrier: CarrierLine.of(*sums) for carrier, sums in self._sums.items()}
