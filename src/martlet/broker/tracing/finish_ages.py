"""Finish ages: the ages of messages when they were finished, in buckets since the start.

::

    bound      0.5 ms   1 ms   2.5 ms   ...   2 h
    count    |   3    |  17  |   240  | ... |  0  | 0 |      the last one for longer times

A monitoring system adds these up over brokers and time, so the bounds are fixed round numbers.  A
batch was stored in one instant, so a run of FINs costs one step for each batch that it touches.

`Latency` has the percentiles of a time window: a histogram whose buckets are powers of two, each
divided into 32 of equal width, so that a value is exact within 1.6 %.  A float has this form: its
exponent and the first five bits of its fraction, read as one integer, number the buckets::

    | sign 1 | exponent 11 | fraction 52 |
             '------- 16 bits ----'

Two histograms alternate, each for half of the window: the result covers all of the last half and
the existing part of the other, as in nsqd.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from martlet.broker.offset_ranges import Offsets
from martlet.log.index import Index, IndexEntry

_FRACTION_BITS = 5
_SHIFT = 52 - _FRACTION_BITS
_BIAS = 1023
_MIN_NS = 1 << 10
_MAX_NS = 1 << 52
"""Seven weeks; longer times count as this."""

Counts = npt.NDArray[np.int64]


def _codes(values_ns: npt.NDArray[np.int64]) -> Counts:
    clipped = np.clip(values_ns, _MIN_NS, _MAX_NS).astype(np.float64)
    return clipped.view(np.int64) >> _SHIFT


def _code(value_ns: int) -> int:
    """Return the bucket of one value."""
    value_ns = min(max(value_ns, _MIN_NS), _MAX_NS)
    exponent = value_ns.bit_length() - 1
    fraction = value_ns >> (exponent - _FRACTION_BITS)
    # The implicit leading bit of the fraction counts once too often in the exponent.
    return ((_BIAS + exponent - 1) << _FRACTION_BITS) + fraction


_FIRST = int(_codes(np.array([_MIN_NS]))[0])
_BUCKETS = int(_codes(np.array([_MAX_NS]))[0]) - _FIRST + 1


class Latency:
    """The latencies of a channel's messages within a window of time."""

    def __init__(self, clock: Callable[[], int], window_ns: int) -> None:
        self._clock = clock
        self._half_ns = max(1, window_ns // 2)
        self._began_ns = clock()
        self._current: Counts | None = None
        self._previous: Counts | None = None

    def add(self, latency_ns: int, count: int, now_ns: int) -> None:
        """Record that `count` messages with one latency were finished now."""
        self._counts_now(now_ns)[_code(latency_ns) - _FIRST] += count

    def add_many(self, latencies_ns: Counts, counts: Counts, now_ns: int) -> None:
        """Record that messages of several batches were finished now: their latencies, and how many
        have each.
        """
        np.add.at(self._counts_now(now_ns), _codes(latencies_ns) - _FIRST, counts)

    def _counts_now(self, now_ns: int) -> Counts:
        self._turn(now_ns)
        if self._current is None:
            self._current = np.zeros(_BUCKETS, np.int64)
        return self._current

    def _turn(self, now_ns: int) -> None:
        """Drop the histogram that is too old."""
        self._began_ns = min(self._began_ns, now_ns)  # The wall clock may have been set back.
        passed = (now_ns - self._began_ns) // self._half_ns
        if passed > 0:
            self._began_ns += passed * self._half_ns
            self._previous = self._current if passed == 1 else None
            self._current = None

    def counts(self) -> Counts | None:
        """Return the number of messages in each bucket; None where there are none."""
        self._turn(self._clock())
        if self._current is None or self._previous is None:
            return self._current if self._previous is None else self._previous
        return self._current + self._previous


class Together:
    """The sum of the latencies of several channels."""

    def __init__(self) -> None:
        self.some = False
        """Whether there is any channel whose latency is measured."""
        self._counts: Counts | None = None

    def add(self, latency: Latency | Together) -> None:
        """Add one channel's."""
        self.some = True
        counts = latency.counts()
        if counts is not None:
            self._counts = counts if self._counts is None else self._counts + counts

    def counts(self) -> Counts | None:
        """Return the number of messages in each bucket; None where there are none."""
        return self._counts


def quantiles(
    channels: Iterable[Latency | Together], levels: Sequence[float]
) -> tuple[int, list[int]]:
    """Return the number of messages of some channels, and their latency in nanoseconds at each
    level, over 0 and at most 1; 0 where there are no messages.
    """
    measured = [counts for latency in channels if (counts := latency.counts()) is not None]
    if not measured:
        return 0, [0] * len(levels)
    sums = np.cumsum(np.sum(measured, axis=0))
    total = int(sums[-1])
    # The quantile q of n values is the value number ceil(q * n), counted from 1.
    ranks = np.clip(np.ceil(np.array(levels) * total), 1, total)
    buckets = np.searchsorted(sums, ranks) + _FIRST
    edges = np.stack([buckets, buckets + 1]).astype(np.int64) << _SHIFT
    return total, [int(middle) for middle in edges.view(np.float64).mean(axis=0)]


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
