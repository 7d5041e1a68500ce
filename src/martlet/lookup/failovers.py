"""Failovers: lookups wait for the next primary of a broker that has replicas.

A consumer of NSQ asks a lookup daemon as soon as it loses a connection, and then not again for its
poll interval, a minute by default. Without the wait it would be told of no broker in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

HOLD_S = 1.5
"""How long a lookup waits after a loss, in seconds: pynsq gives up after 2 s by default."""
MAX_LOST = 100
"""How many lost brokers are remembered."""
MAX_HELD = 1000
"""How many lookups wait at the same time; others are answered at once."""


@dataclass(slots=True)
class _LostBroker:
    """A broker without a primary."""

    ends_s: float
    """Until when lookups wait for it."""
    topics: dict[str, asyncio.Event | None]
    """Those that it has not registered again, with an event where a lookup waits."""

    async def returned(self, topic: str, left_s: float) -> None:
        event = self.topics[topic] or asyncio.Event()
        self.topics[topic] = event
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await event.wait()


class Failovers:
    """The brokers whose primary has just gone.

    Args:
        clock_s: seconds, monotonic.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._lost: dict[str, _LostBroker] = {}
        """By the id of the broker, the earliest loss first."""
        self._held = 0

    def lost(self, broker: str, topics: Iterable[str]) -> None:
        """Handle that the registrations of a broker's primary were removed."""
        self._forget()
        before = self._lost.pop(broker, None)
        awaited = dict.fromkeys(topics) | (before.topics if before is not None else {})
        if awaited:
            if len(self._lost) == MAX_LOST:
                del self._lost[next(iter(self._lost))]
            self._lost[broker] = _LostBroker(self._clock_s() + HOLD_S, awaited)

    def registered(self, broker: str, topic: str) -> None:
        """A primary of the broker has registered a topic."""
        lost = self._lost.get(broker)
        if lost is None:
            return
        event = lost.topics.pop(topic, None)
        if event is not None:
            event.set()
        if not lost.topics:
            del self._lost[broker]

    async def returned(self, topic: str) -> None:
        """Wait until all lost brokers of a topic have registered it again, or for `HOLD_S`."""
        self._forget()
        lost = [broker for broker in self._lost.values() if topic in broker.topics]
        if not lost or self._held == MAX_HELD:
            return
        self._held += 1
        try:
            for broker in lost:
                left_s = broker.ends_s - self._clock_s()
                if topic in broker.topics and left_s > 0:
                    await broker.returned(topic, left_s)
        finally:
            self._held -= 1

    def _forget(self) -> None:
        now_s = self._clock_s()
        while self._lost:
            broker, lost = next(iter(self._lost.items()))
            if lost.ends_s > now_s:
                return
            del self._lost[broker]
