"""Latency: how long messages take from being published to being finished.

A histogram whose buckets are powers of two, each divided into 32 of equal width, so that a value is
exact within 1.6 %.  A float already has this form: its exponent and the first five bits of its
fraction, read as one integer, number the buckets::

    | sign 1 | exponent 11 | fraction 52 |
             '------- 16 bits ----'

Two histograms alternate, each for half of the window: the result covers all of the last half and
the existing part of the other, as in nsqd. `martlet.broker.tracing.finish_ages` measures the
latency of each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

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
