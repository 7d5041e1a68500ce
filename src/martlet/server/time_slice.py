"""The pace: work that takes long is done in slices, between which others have their turn."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns

from martlet.durations import MILLISECOND_NS

SLICE_NS = 2 * MILLISECOND_NS


class TimeSlice:
    """The slices of one piece of work; the first begins when this is made.

    ``await pace.rest()`` stands where the work may be interrupted, which is after each step that
    takes some microseconds.  What is counted in one slice may have changed by the next.
    """

    __slots__ = ("_until_ns",)

    def __init__(self) -> None:
        self._until_ns = perf_counter_ns() + SLICE_NS

    @property
    def over(self) -> bool:
        """Whether the slice is over."""
        return perf_counter_ns() > self._until_ns

    async def rest(self) -> None:
        """Let others have their turn, if the slice is over."""
        if perf_counter_ns() > self._until_ns:
            await asyncio.sleep(0)
            self._until_ns = perf_counter_ns() + SLICE_NS
