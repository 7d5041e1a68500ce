"""Event loop lag: how late the loop calls a timer, as all that waits for the loop is late."""

from __future__ import annotations

import asyncio
from time import monotonic

from martlet.server.observability import prometheus
from martlet.server.observability.histogram import Histogram

INTERVAL_S = 0.1
"""The time between two measurements. A loop that stands still for longer counts once, in full."""
_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_NAME = "martlet_event_loop_lag_seconds"


class LoopLag:
    """Measures the lag of one loop, from `start` to `stop`."""

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
        bounds = [f"{bound_s:g}" for bound_s in _BOUNDS_S]
        text = f"How late the event loop calls a timer, measured every {INTERVAL_S:g} s."
        return prometheus.head(_NAME, "histogram", text) + prometheus.histogram(
            _NAME, "", bounds, self.lags.counts, self.lags.sum_s
        )
