"""The histogram: durations counted in buckets for a monitoring system."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

DISK_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Bounds for operations of a disk."""


class Histogram:
    """Counts of durations.

    Args:
        bounds_s: the maximum duration of each bucket, in seconds, rising; longer durations than the
            last count in a bucket of their own.
    """

    def __init__(self, bounds_s: Sequence[float] = DISK_BOUNDS_S) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(self.bounds_s, duration_s)] += 1
        self.sum_s += duration_s

    def quantile_s(self, level: float) -> float | None:
        """Return a bound that this part of the durations keeps; None without one.

        Args:
            level: over 0 and at most 1.
        """
        rank = level * sum(self.counts)
        reached = 0
        for bound_s, count in zip(self.bounds_s, self.counts, strict=False):
            reached += count
            if 0 < rank <= reached:
                return bound_s
        return None
