"""The last hour of each topic and channel: rates and depths, in steps of ten seconds.

::

    row of a series    | depth | in | out |  x 360 steps, a ring; float32, 4.3 kB a series

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
_FIRST_ROWS = 64
_FIELDS = ("depth", "in", "out")
Floats = npt.NDArray[np.float32]


class CountHistory:
    """A ring of steps for each key."""

    def __init__(self) -> None:
        self._rows: dict[Hashable, int] = {}
        self._free: list[int] = []
        self._values: Floats = np.full((_FIRST_ROWS, len(_FIELDS), STEPS), np.nan, np.float32)
        self._times_s = np.full(STEPS, np.nan)
        self._at = -1
        """The column of the newest step."""

    def begin_step(self, now_s: float) -> bool:
        """Begin a step, if the last one is old enough; return whether `add` is to be called.

        Args:
            now_s: the time in seconds since 1970.
        """
        if self._at >= 0 and 0 <= now_s - self._times_s[self._at] < STEP_S:
            return False
        self._at = (self._at + 1) % STEPS
        self._times_s[self._at] = now_s
        self._values[:, :, self._at] = np.nan
        return True

    def add(self, key: Hashable, depth: float, in_per_s: float, out_per_s: float) -> None:
        """Set the values of a series in the step that has begun."""
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= MAX_SERIES:
                return
            row = self._free.pop() if self._free else len(self._rows)
            if row >= len(self._values):
                more = np.full_like(self._values, np.nan)
                self._values = np.concatenate((self._values, more))
            self._rows[key] = row
        self._values[row, :, self._at] = (depth, in_per_s, out_per_s)

    def keep(self, keys: set[Hashable]) -> None:
        """Forget all series but some."""
        for key in self._rows.keys() - keys:
            row = self._rows.pop(key)
            self._values[row] = np.nan
            self._free.append(row)

    def times_s(self, steps: int = STEPS) -> list[float]:
        """Return the times of the newest steps, oldest first."""
        found = self._times_s[self._order(steps)]
        return [float(each) for each in found if not np.isnan(each)]

    def series(self, key: Hashable, field: str, steps: int = STEPS) -> list[float | None]:
        """Return the values of a series at `times_s`; None for a missing one.

        Args:
            key: of the series.
            field: ``depth``, ``in`` or ``out``, the rates in messages a second.
            steps: how many, at most.
        """
        order = self._order(steps)
        order = order[~np.isnan(self._times_s[order])]
        row = self._rows.get(key)
        if row is None:
            return [None] * len(order)
        found = self._values[row, _FIELDS.index(field), order]
        return [None if np.isnan(each) else round(float(each), 3) for each in found]

    def growth(self, key: Hashable, steps: int = 30) -> float:
        """Return by how much the depth has grown over the newest steps, in messages."""
        known = [each for each in self.series(key, "depth", steps) if each is not None]
        return known[-1] - known[0] if known else 0.0

    def _order(self, steps: int) -> npt.NDArray[np.intp]:
        """The columns of the newest steps, oldest first."""
        steps = min(steps, STEPS)
        return np.arange(self._at - steps + 1, self._at + 1) % STEPS


class Rates:
    """Rates of counters, each the sum over brokers."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, Hashable], tuple[float, float, int]] = {}

    def rate(
        self, broker: str, key: Hashable, count: float, started_s: float, now_s: float
    ) -> float:
        """Return how fast a counter of a broker grows, a second; 0 where that is not known.

        Args:
            broker: its URL.
            key: of the counter.
            count: what it stands at.
            started_s: when the broker was started.
            now_s: when it was counted. An answer may take a good part of the time between looks.
        """
        last = self._last.get((broker, key))
        self._last[broker, key] = (count, now_s, int(started_s))
        if last is None or last[2] != int(started_s) or now_s <= last[1]:
            return 0.0
        return (count - last[0]) / (now_s - last[1])

    def keep(self, brokers: set[str], keys: set[Hashable]) -> None:
        """Forget all counters but those of some brokers and keys."""
        self._last = {
            found: last
            for found, last in self._last.items()
            if found[0] in brokers and found[1] in keys
        }
