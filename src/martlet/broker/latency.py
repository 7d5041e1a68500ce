"""Latency: how long messages take from being published to being finished.

A histogram with buckets that are powers of two, each cut into 32 of one width, so that a value is
told within 1.6 %.  A float already is such a number: its exponent and the first five bits of its
fraction, taken as one integer, count the buckets::

    | sign 1 | exponent 11 | fraction 52 |
             '------- 16 bits ----'

Two histograms take turns, each for half of the window: what is told covers the whole of the last
half and as much of the other as there is, as nsqd does it.  When a message was published says the
index, once for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from martlet.broker.window import Offsets
    from martlet.log.index import Index

_FRACTION_BITS = 5
_SHIFT = 52 - _FRACTION_BITS
_SHORTEST_NS = 1 << 10
_LONGEST_NS = 1 << 52
"""Seven weeks; what takes longer counts as this."""

Counts = npt.NDArray[np.int64]


def _codes(values_ns: npt.NDArray[np.int64]) -> Counts:
    clipped = np.clip(values_ns, _SHORTEST_NS, _LONGEST_NS).astype(np.float64)
    return clipped.view(np.int64) >> _SHIFT


_FIRST = int(_codes(np.array([_SHORTEST_NS]))[0])
_BUCKETS = int(_codes(np.array([_LONGEST_NS]))[0]) - _FIRST + 1


class Latency:
    """The latencies of a channel's messages within a window of time.

    Args:
        index: of the queue that the channel reads.
        clock: nanoseconds since 1970.
        window_ns: how far back it looks.
    """

    def __init__(self, index: Index, clock: Callable[[], int], window_ns: int) -> None:
        self._index = index
        self._clock = clock
        self._half_ns = max(1, window_ns // 2)
        self._began_ns = clock()
        self._current: Counts | None = None
        self._previous: Counts | None = None

    def note(self, offset: int) -> None:
        """The message at an offset was finished now."""
        index = self._index
        row = index.row(index.find(offset))
        self._add(np.array([row.stored_at_ns]), np.ones(1, np.int64))

    def note_run(self, offsets: Offsets) -> None:
        """The messages at these strictly rising offsets were finished now."""
        index = self._index
        first = index.find(int(offsets[0]))
        row = index.row(first)
        if row.end_offset > int(offsets[-1]):
            self._add(np.array([row.stored_at_ns]), np.array([len(offsets)]))
            return
        rows = index.array(first, index.find(int(offsets[-1])) + 1)
        begins = np.searchsorted(offsets, rows["first_offset"].astype(np.int64))
        self._add(rows["stored_at_ns"], np.diff(begins, append=len(offsets)))

    def _add(self, stored_at_ns: npt.NDArray[np.int64], counts: Counts) -> None:
        now_ns = self._clock()
        self._turn(now_ns)
        if self._current is None:
            self._current = np.zeros(_BUCKETS, np.int64)
        np.add.at(self._current, _codes(now_ns - stored_at_ns) - _FIRST, counts)

    def _turn(self, now_ns: int) -> None:
        """Drop what is too old."""
        passed = (now_ns - self._began_ns) // self._half_ns
        if passed > 0:
            self._began_ns += passed * self._half_ns
            self._previous = self._current if passed == 1 else None
            self._current = None

    def counts(self) -> Counts | None:
        """How many messages each bucket holds; None where there are none."""
        self._turn(self._clock())
        if self._current is None or self._previous is None:
            return self._current if self._previous is None else self._previous
        return self._current + self._previous


class Together:
    """The latencies of several channels, taken one by one.

    Attributes:
        some: whether there is any channel whose latency is measured.
    """

    def __init__(self) -> None:
        self.some = False
        self._counts: Counts | None = None

    def add(self, latency: Latency) -> None:
        """Take one channel's."""
        self.some = True
        counts = latency.counts()
        if counts is not None:
            self._counts = counts if self._counts is None else self._counts + counts

    def counts(self) -> Counts | None:
        """How many messages each bucket holds; None where there are none."""
        return self._counts


def quantiles(
    channels: Iterable[Latency | Together], levels: Sequence[float]
) -> tuple[int, list[int]]:
    """The latencies, in nanoseconds, below which these parts of all messages lie.

    Args:
        channels: whose messages.
        levels: over 0 and at most 1.

    Returns:
        how many messages there were, and the latency at each level: 0 where there were none.
    """
    found = [counts for each in channels if (counts := each.counts()) is not None]
    if not found:
        return 0, [0] * len(levels)
    sums = np.cumsum(np.sum(found, axis=0))
    total = int(sums[-1])
    # Of n values the level q stands at the one number ceil(q * n), counted from 1.
    ranks = np.clip(np.ceil(np.array(levels) * total), 1, total)
    buckets = np.searchsorted(sums, ranks) + _FIRST
    edges = np.stack([buckets, buckets + 1]).astype(np.int64) << _SHIFT
    return total, [int(middle) for middle in edges.view(np.float64).mean(axis=0)]
