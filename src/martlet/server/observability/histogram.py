"""Durations counted in buckets for a monitoring system: of operations, and of the loop's lag."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from time import monotonic

from martlet.server.observability import prometheus

DISK_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Bounds for operations of a disk."""
INTERVAL_S = 0.1
"""The time between two measurements. A loop that stands still for longer counts once, in full."""
_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


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

    def lines(self, name: str, help_text: str) -> str:
        """Return the lines for Prometheus."""
        bounds = [f"{bound_s:g}" for bound_s in self.bounds_s]
        return prometheus.head(name, "histogram", help_text) + prometheus.histogram(
            name, "", bounds, self.counts, self.sum_s
        )


class LoopLag:
    """Measures how late one loop calls a timer, as all that waits for it is late."""

    def __init__(self) -> None:
        self.lags = Histogram(_BOUNDS_S)
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        """Measure the running loop."""
        self._due_s = monotonic() + INTERVAL_S
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._measure)

    def _measure(self) -> None:
        self.lags.add(max(0.0, monotonic() - self._due_s))
        self.start()

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()

    def metrics(self) -> str:
        """Return the lines for Prometheus."""
        return self.lags.lines(
            "martlet_event_loop_lag_seconds",
            f"How late the event loop calls a timer, measured every {INTERVAL_S:g} s.",
        )
