"""Finish ages: the ages of messages when they were finished, in buckets since the start.

::

    bound      0.5 ms   1 ms   2.5 ms   ...   2 h
    count    |   3    |  17  |   240  | ... |  0  | 0 |      the last one for longer times

A monitoring system adds these up over brokers and time, so the bounds are fixed round numbers;
`martlet.broker.tracing.latency` has the percentiles of a time window.  A batch was stored in one
instant, so a run of FINs costs one step for each batch that it touches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from martlet.broker.offset_ranges import Offsets
from martlet.broker.tracing.latency import Latency
from martlet.log.index import Index, IndexEntry

_MILLISECOND_NS = 1_000_000
BOUNDS_NS = tuple(
    int(bound_ms * _MILLISECOND_NS)
    for bound_ms in (
        *(0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000),
        *(30_000, 60_000, 300_000, 1_800_000, 7_200_000),
    )
)
"""A bucket counts times up to its bound, and above the bound before."""
_BOUNDS = np.array(BOUNDS_NS)
_FEW_ROWS = 6
"""Up to this many batches are counted one by one, before numpy does it in bulk."""
_NOWHERE = IndexEntry(0, 0, 0, 0, 0, 0)


class FinishAges:
    """The counts of one channel, by the index of its queue, which has the times of storage."""

    __slots__ = ("_clock", "_entry", "_index", "_row", "counts", "latency", "sum_ns")

    def __init__(self, index: Index, clock: Callable[[], int]) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        """The count of each bucket; the last one has no bound."""
        self.sum_ns = 0
        """The sum of all times."""
        self.latency: Latency | None = None
        """Also records each finish, if percentiles are measured."""
        self._index = index
        self._clock = clock
        self._entry = _NOWHERE
        self._row = index.end_row

    @property
    def count(self) -> int:
        """The number of finished messages."""
        return sum(self.counts)

    def note(self, offset: int) -> None:
        """Record that the message at an offset was finished now."""
        entry = self._entry
        if not entry[0] <= offset < entry[0] + entry[2]:
            entry = self._move(offset)
        now_ns = self._clock()
        latency_ns = now_ns - entry[4]
        self.counts[bisect_left(BOUNDS_NS, latency_ns)] += 1
        if latency_ns > 0:
            self.sum_ns += latency_ns
        if self.latency is not None:
            self.latency.add(latency_ns, 1, now_ns)

    def note_run(self, offsets: Offsets) -> None:
        """Record that the messages at these strictly rising offsets were finished now."""
        count = len(offsets)
        first, last = offsets.item(0), offsets.item(count - 1)
        now_ns = self._clock()
        entry = self._entry
        if not entry[0] <= first < entry[0] + entry[2]:
            entry = self._move(first)
        if last >= entry[0] + _FEW_ROWS * entry[2]:
            self._add_many(offsets, now_ns)
            return
        done = 0
        for _ in range(_FEW_ROWS):
            end = entry[0] + entry[2]
            if last < end:
                self._add(now_ns, entry[4], count - done)
                return
            until = int(offsets.searchsorted(end))
            self._add(now_ns, entry[4], until - done)
            done = until
            entry = self._move(offsets.item(done))
        self._add_many(offsets[done:], now_ns)

    def _move(self, offset: int) -> IndexEntry:
        """Move to the batch of an offset, usually the next; of a message in flight, it is there."""
        index = self._index
        self._row += 1
        try:
            self._entry = entry = index.row(self._row)
            if entry[0] <= offset < entry[0] + entry[2]:
                return entry
        except IndexError:
            pass  # It was at the end, or its row was dropped.
        self._row = index.find(offset)
        self._entry = entry = index.row(self._row)
        return entry

    def _add(self, now_ns: int, stored_at_ns: int, count: int) -> None:
        # Negative if the clock was set back while the broker was down.
        latency_ns = max(now_ns - stored_at_ns, 0)
        self.counts[bisect_left(BOUNDS_NS, latency_ns)] += count
        self.sum_ns += latency_ns * count
        if self.latency is not None:
            self.latency.add(latency_ns, count, now_ns)

    def _add_many(self, offsets: Offsets, now_ns: int) -> None:
        index = self._index
        row = self._row
        self._move(offsets.item(len(offsets) - 1))
        first_offsets, stored_at_ns = index.times(row, self._row + 1)
        begins = np.searchsorted(offsets, first_offsets)
        begins[0] = 0
        counts = np.diff(begins, append=len(offsets))
        latencies_ns = np.maximum(now_ns - stored_at_ns, 0)
        buckets = np.searchsorted(_BOUNDS, latencies_ns)
        added = np.bincount(buckets, counts, len(self.counts))
        self.counts = [have + int(more) for have, more in zip(self.counts, added, strict=True)]
        self.sum_ns += int((latencies_ns * counts).sum())
        if self.latency is not None:
            self.latency.add_many(latencies_ns, counts, now_ns)
