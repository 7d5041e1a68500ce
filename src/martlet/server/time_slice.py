"""Cooperative time slices: long work yields to the event loop between slices."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns

from martlet.text import MILLISECOND_NS

SLICE_NS = 2 * MILLISECOND_NS


class TimeSlice:
    """The time slices of one job; the first begins at once.

    Put ``await pace.rest()`` where the job may be interrupted: after each step of some
    microseconds. A count taken in one slice may be outdated by the next.
    """

    __slots__ = ("_until_ns",)

    def __init__(self) -> None:
        self._until_ns = perf_counter_ns() + SLICE_NS

    @property
    def over(self) -> bool:
        """Return whether the slice is over."""
        return perf_counter_ns() > self._until_ns

    async def rest(self) -> None:
        """Yield to the event loop if the slice is over."""
        if perf_counter_ns() > self._until_ns:
            await asyncio.sleep(0)
            self._until_ns = perf_counter_ns() + SLICE_NS
