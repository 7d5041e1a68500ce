"""The last hour of each topic and channel: rates and depths, in steps of ten seconds.

::

    step    | depth of all series | in | out |  x 360, a ring; float32, 4.3 kB a series in all

Memory is taken step by step: a page that has just started touches one of them.
Rates come from counters, broker by broker: a broker that was started again, or that did not answer,
adds nothing to the rate of that step. Outgoing messages are not counted by nsqd's statistics; they
are what came in, less what the queue grew by.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

STEP_S = 10.0
STEPS = 360
MAX_SERIES = 20_000
"""Of more series, the further ones have no history: 86 MB is the most that it takes."""
_FIRST_SERIES = 64
_FIELDS = ("depth", "in", "out")
Floats = npt.NDArray[np.float32]


class CountHistory:
    """A ring of steps for each key."""

    def __init__(self) -> None:
        self._columns: dict[Hashable, int] = {}
        self._free: list[int] = []
        self._values: Floats = np.empty((STEPS, len(_FIELDS), _FIRST_SERIES), np.float32)
        """Of steps without a time, anything."""
        self._times_s = np.full(STEPS, np.nan)
        self._at = -1
        """The newest step."""

    def begin_step(self, now_s: float) -> bool:
        """Begin a step, if the last one is old enough; return whether `add` is to be called."""
        if self._at >= 0 and 0 <= now_s - self._times_s[self._at] < STEP_S:
            return False
        self._at = (self._at + 1) % STEPS
        self._times_s[self._at] = now_s
        self._values[self._at] = np.nan
        return True

    def add(self, key: Hashable, depth: float, in_per_s: float, out_per_s: float) -> None:
        """Set the values of a series in the step that has begun."""
        column = self._columns.get(key)
        if column is None:
            if len(self._columns) >= MAX_SERIES:
                return
            column = self._free.pop() if self._free else len(self._columns)
            if column >= self._values.shape[2]:
                self._grow()
            self._columns[key] = column
        self._values[self._at, :, column] = (depth, in_per_s, out_per_s)

    def _grow(self) -> None:
        """Make room for twice as many series."""
        count = self._values.shape[2]
        values = np.empty((STEPS, len(_FIELDS), 2 * count), np.float32)
        for step in np.flatnonzero(~np.isnan(self._times_s)):
            values[step, :, :count] = self._values[step]
            values[step, :, count:] = np.nan
        self._values = values

    def keep(self, keys: set[Hashable]) -> None:
        """Forget all series but some."""
        begun = np.flatnonzero(~np.isnan(self._times_s))
        for key in self._columns.keys() - keys:
            column = self._columns.pop(key)
            self._values[begun, :, column] = np.nan
            self._free.append(column)

    def times_s(self, steps: int = STEPS) -> list[float]:
        """Return the times of the newest steps, oldest first."""
        times_s = self._times_s[self._order(steps)]
        return [float(time_s) for time_s in times_s if not np.isnan(time_s)]

    def series(self, key: Hashable, field: str, steps: int = STEPS) -> list[float | None]:
        """Return ``depth``, or the rate ``in`` or ``out``, at `times_s`; None for a missing one."""
        order = self._order(steps)
        order = order[~np.isnan(self._times_s[order])]
        column = self._columns.get(key)
        if column is None:
            return [None] * len(order)
        values = self._values[order, _FIELDS.index(field), column]
        return [None if np.isnan(value) else round(float(value), 3) for value in values]

    def growth(self, key: Hashable, steps: int = 30) -> float:
        """Return by how much the depth has grown over the newest steps, in messages."""
        depths = [depth for depth in self.series(key, "depth", steps) if depth is not None]
        return depths[-1] - depths[0] if depths else 0.0

    def _order(self, steps: int) -> npt.NDArray[np.intp]:
        """The newest steps, oldest first."""
        steps = min(steps, STEPS)
        return np.arange(self._at - steps + 1, self._at + 1) % STEPS


class Rates:
    """Rates of counters, each the sum over brokers."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, Hashable], tuple[float, float, int]] = {}

    def rate(
        self, broker: str, key: Hashable, count: float, started_s: float, now_s: float
    ) -> float:
        """Return how fast a counter of a broker grows, a second; 0 where that is not known."""
        last = self._last.get((broker, key))
        self._last[broker, key] = (count, now_s, int(started_s))
        if last is None or last[2] != int(started_s) or now_s <= last[1]:
            return 0.0
        return (count - last[0]) / (now_s - last[1])

    def keep(self, brokers: set[str], keys: set[Hashable]) -> None:
        """Forget all counters but those of some brokers and keys."""
        self._last = {
            counter: last
            for counter, last in self._last.items()
            if counter[0] in brokers and counter[1] in keys
        }
