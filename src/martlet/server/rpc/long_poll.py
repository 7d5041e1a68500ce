"""The long poll: a call that waits for an event, or until its time is over."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class LongPoll:
    """A wait with a deadline, which may be repeated until then.

    It can be registered in the place of a consumer, to be notified of messages.

    Args:
        wait_ms: the maximum time in all.
    """

    def __init__(self, wait_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + wait_ms / 1000
        self._rung = asyncio.Event()
        self.is_waiting = False
        """Whether it is registered to be notified."""

    @property
    def is_over(self) -> bool:
        """Return whether its time is over."""
        return self._loop.time() >= self._ends_at

    def ring(self) -> None:
        """Wake the caller."""
        self._rung.set()

    def pump(self) -> None:
        """Wake the caller: messages have arrived."""
        self._rung.set()

    def pump_lone(self, offset: int, frame: memoryview) -> None:
        """Wake the caller: a message has arrived."""
        self._rung.set()

    def clear(self) -> None:
        """Forget earlier events."""
        self._rung.clear()

    async def wait(self) -> None:
        """Wait for an event since the last `clear`, or until the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._ends_at):
                await self._rung.wait()
