"""A mark: a count that grows, and whoever waits until it has reached a number."""

from __future__ import annotations

import asyncio


class Mark:
    """A count that somebody may wait for; one at a time.

    Attributes:
        count: how much it is now.
    """

    __slots__ = ("_reached", "_target", "count")

    def __init__(self) -> None:
        self.count = 0
        self._target = 0
        self._reached = asyncio.Event()

    def rise(self, count: int) -> None:
        """It is so much now."""
        self.count = count
        if count >= self._target:
            self._reached.set()

    async def reach(self, target: int) -> None:
        """Wait until it is as much as that."""
        if self.count < target:
            self._target = target
            self._reached.clear()
            await self._reached.wait()
