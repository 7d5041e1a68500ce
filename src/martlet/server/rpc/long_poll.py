"""The long poll: a call that waits until something happens, or its time is over."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class LongPoll:
    """A wait with an end, which may be gone into again and again until then.

    It can stand wherever somebody is told that messages have arrived.

    Args:
        wait_ms: how long in all.
    """

    def __init__(self, wait_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + wait_ms / 1000
        self._rung = asyncio.Event()
        self.is_waiting = False
        """Whether it stands where it is told of what happens."""

    @property
    def is_over(self) -> bool:
        """Whether its time is over."""
        return self._loop.time() >= self._ends_at

    def ring(self) -> None:
        """Something has happened."""
        self._rung.set()

    def pump(self) -> None:
        """Messages have arrived."""
        self._rung.set()

    def pump_lone(self, offset: int, frame: memoryview) -> None:
        """A message has arrived."""
        self._rung.set()

    def clear(self) -> None:
        """What has happened so far is known."""
        self._rung.clear()

    async def wait(self) -> None:
        """Return when something has happened since it was cleared, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._ends_at):
                await self._rung.wait()
