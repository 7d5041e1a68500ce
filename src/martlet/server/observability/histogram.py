"""The histogram: how long something took, counted in buckets for a monitoring system."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

DISK_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""For what a disk does."""


class Histogram:
    """Counts of durations.

    Args:
        bounds_s: the longest duration of each bucket, in seconds, rising; what takes longer than
            the last has a bucket of its own.
    """

    def __init__(self, bounds_s: Sequence[float] = DISK_BOUNDS_S) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count one more."""
        self.counts[bisect_left(self.bounds_s, duration_s)] += 1
        self.sum_s += duration_s
