"""Iterate: an item is done when the next one is requested.

A loop that is left drops its iterator, which hands its message out again at once. So the iterator
is an object and no generator: asyncio would close a generator later, when the next loop has already
begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

from martlet.client.group.queues.ready_queues import ReadyQueues


class Handed(Protocol):
    """A message, or a batch of them."""

    @property
    def is_out(self) -> bool:
        """Whether it is handed out and not done."""

    def finish(self) -> None:
        """Mark it as done."""

    def give_back(self) -> None:
        """Have it handed out again."""


HandedT = TypeVar("HandedT", bound=Handed)


class Iteration(AsyncIterator[HandedT]):
    """One loop over messages or batches.

    Args:
        take: takes the next item; None at the end.
    """

    def __init__(
        self,
        ready_queues: ReadyQueues,
        take: Callable[[], Awaitable[HandedT | None]],
        handed_out: dict[Handed, None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready_queues = ready_queues
        self._take = take
        self._handed_out = handed_out
        self._last: HandedT | None = None

    async def __anext__(self) -> HandedT:
        last, self._last = self._last, None
        if last is not None:
            self._handed_out.pop(last, None)
            if last.is_out:
                last.finish()
        taken = await self._take()
        if taken is None:
            self._ready_queues.check()
            raise StopAsyncIteration
        self._last = taken
        self._handed_out[taken] = None
        return taken

    async def aclose(self) -> None:
        """Hand the item out again, if the loop did not finish it."""
        self._give_back()

    def _give_back(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            _give_back(last, self._handed_out)

    def __del__(self) -> None:
        if self._last is None or self._loop.is_closed():
            return
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            self._give_back()
        else:  # The garbage collector ran in another thread.
            self._loop.call_soon_threadsafe(_give_back, self._last, self._handed_out)


def _give_back(item: Handed, handed_out: dict[Handed, None]) -> None:
    handed_out.pop(item, None)
    if item.is_out:
        item.give_back()
