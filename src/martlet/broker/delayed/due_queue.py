"""The due queue: the rows of an unsorted index that are due next, in memory.

::

    due        now        horizon                                  the index's rows
    ------------|-------------|--------------------------------->  by when they are due
     done       | in memory:  | on disk alone
                | the slice   |
                | and `fresh` |

The slice has exactly the rows up to the horizon, ordered by time. When it is nearly used up, a scan
of the index finds the next slice. The scan runs in pieces, so that it does not block the loop. A
slice is large enough that each row is scanned a few dozen times in all. A later row that is
due before the horizon goes into a heap, `fresh`; one due behind it is found by a scan. A large heap
is merged into the slice. So memory, 16 bytes a row, is bounded by the rows that are overdue or due
within a minute, and not by all waiting ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from martlet.log.index import Index, Rows

MIN_ROWS = 1 << 15
"""A slice holds this many rows if there are as many, or a fraction of all if that is more."""
MAX_SCANS = 64
"""About how often a row is scanned."""
AHEAD_NS = 60 * 10**9
"""The maximum time span of a slice."""
_BEFORE_NS = AHEAD_NS // 2
"""How long before its rows are due a scan begins."""
_PIECE_ROWS = 1 << 15
MAX_FRESH = 1 << 14
"""The maximum number of rows in the heap; each takes a hundred bytes and more there."""
_NEVER = 1 << 62
_BEFORE_ALL = (-1, -1)

Key = tuple[int, int]
"""The due time of a row, and its first offset."""


class DueQueue:
    """The rows of an index that are due next, from a first one on and without those done."""

    def __init__(
        self,
        index: Index,
        first_row: Callable[[], int],
        is_done: Callable[[Rows], npt.NDArray[np.bool_]],
    ) -> None:
        self._index = index
        self._first_row = first_row
        self._is_done = is_done
        self._due: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._first: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._fresh: list[Key] = []
        self._horizon: Key = _BEFORE_ALL
        self._beyond_ns = _NEVER
        """When the first row behind the horizon is due, or earlier."""
        self._running_scan: Iterator[None] | None = None

    def __len__(self) -> int:
        return len(self._due) + len(self._fresh)

    def add(self, due_ns: int, first_offset: int) -> int:
        """Add a row. Returns when to scan or to take because of it."""
        if (due_ns, first_offset) <= self._horizon:
            heappush(self._fresh, (due_ns, first_offset))
            if len(self._fresh) > MAX_FRESH:
                self.put_back(self._fresh)
                self._fresh = []
            return due_ns
        self._beyond_ns = min(self._beyond_ns, due_ns)
        return due_ns - _BEFORE_NS

    def expect(self, due_ns: int) -> None:
        """Note that rows exist already, none of which is due before a time."""
        self._beyond_ns = due_ns

    @property
    def next_ns(self) -> int | None:
        """When to scan or to take; None for never."""
        if self._running_scan is not None:
            return 0
        times = [due_ns for due_ns, _ in self._fresh[:1]] + self._due[:1].tolist()
        if self._beyond_ns != _NEVER and not self._is_full:
            times.append(self._beyond_ns - _BEFORE_NS)
        return min(times, default=None)

    @property
    def _max_count(self) -> int:
        rows = self._index.end_row - self._index.first_row
        return max(MIN_ROWS, rows // MAX_SCANS)

    @property
    def _is_full(self) -> bool:
        return len(self._due) > self._max_count // 2

    def scan(self, now_ns: int) -> None:
        """Scan a piece of the index, if it is time for that."""
        if self._running_scan is None:
            if self._is_full or self._beyond_ns - _BEFORE_NS > now_ns:
                return
            self._running_scan = self._scan(now_ns + AHEAD_NS, self._max_count)
        if next(self._running_scan, self) is self:
            self._running_scan = None

    def _scan(self, until_ns: int, max_count: int) -> Iterator[None]:
        """Find the next slice: rows due after the horizon and up to a time."""
        due: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        first: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        new_horizon: Key = (until_ns, _NEVER)
        beyond_ns = _NEVER
        row = self._first_row()
        while row < self._index.end_row:
            row = max(row, self._index.first_row)
            rows = self._index.array(row, row + _PIECE_ROWS)
            row += len(rows)
            rows = rows[~self._is_done(rows)]
            times, firsts = rows["deliver_at_ns"], rows["first_offset"].astype(np.int64)
            ahead = times > self._horizon[0]
            ahead |= (times == self._horizon[0]) & (firsts > self._horizon[1])
            inside = ahead & (times <= new_horizon[0])
            behind = times[ahead & ~inside]
            if len(behind):
                beyond_ns = min(beyond_ns, int(behind.min()))
            due = np.concatenate([due, times[inside]])
            first = np.concatenate([first, firsts[inside]])
            if len(due) > 2 * max_count:
                due, first, left_ns = _earliest(due, first, max_count)
                beyond_ns = min(beyond_ns, left_ns)
                # Later rows have higher offsets, so among equal times they sort behind.
                new_horizon = (int(due[-1]), int(first[-1]))
            if row < self._index.end_row:
                yield
        if len(due) > max_count:
            due, first, left_ns = _earliest(due, first, max_count)
            beyond_ns = min(beyond_ns, left_ns)
            new_horizon = (int(due[-1]), int(first[-1]))
        else:
            order = np.argsort(due, kind="stable")
            due, first = due[order], first[order]
        self._due = np.concatenate([self._due, due])
        self._first = np.concatenate([self._first, first])
        self._horizon = max(self._horizon, new_horizon)
        self._beyond_ns = beyond_ns

    def take(self, now_ns: int, max_count: int) -> list[Key]:
        """Remove and return the due rows, the earliest first."""
        taken: list[Key] = []
        end = min(int(np.searchsorted(self._due, now_ns, "right")), max_count)
        if end:
            taken = list(zip(self._due[:end].tolist(), self._first[:end].tolist(), strict=True))
            self._due, self._first = self._due[end:], self._first[end:]
        if self._fresh and self._fresh[0][0] <= now_ns:
            while self._fresh and self._fresh[0][0] <= now_ns and len(taken) < 2 * max_count:
                taken.append(heappop(self._fresh))
            taken.sort()
        return taken

    def put_back(self, keys: list[Key]) -> None:
        """Put back rows that were taken."""
        if not keys:
            return
        keys.sort()
        behind = len(self._due) > 0 and keys[-1] > (int(self._due[0]), int(self._first[0]))
        due, first = np.array(keys, np.int64).T
        self._due = np.concatenate([due, self._due])
        self._first = np.concatenate([first, self._first])
        if behind:
            order = np.lexsort((self._first, self._due))
            self._due, self._first = self._due[order], self._first[order]


def _earliest(
    due: npt.NDArray[np.int64], first: npt.NDArray[np.int64], max_count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Return the first of some rows by time, in order, and the time of the first one left out."""
    order = np.argsort(due, kind="stable")
    return due[order[:max_count]], first[order[:max_count]], int(due[order[max_count]])
