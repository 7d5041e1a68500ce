"""Retention: which segments are still needed, and by how much.

A queue needs every batch from its floor on, and of the older ones those that hold a pending message
(requeued, timed out, deferred), however old::

    offsets    0 ... 40 ... 100 .............. 900
    needed           40       |    all from the floor on
                  pending    floor

One log for all topics means that a single forgotten channel of a small topic could keep the
segments of all others. So a segment of which little is needed is cleaned: the needed batches are
appended again with their offsets, the index points to the copies, and the next checkpoint retires
the segment.

History, finished messages that a queue keeps for replay, needs its segments too, and that of a
small topic would keep those of all others. But it is copied only where a segment holds very little
of it: a copy is copied again when the segment around it empties, and that must not become most of
the writes. At most a sixteenth of a cleaned segment is history, so less than a fifteenth of a byte
of history is copied for each byte of new messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from martlet.log.commit_log import CommitLog
from martlet.log.index import Index, IndexEntry, Rows
from martlet.log.storage import Segment

CLEAN_BELOW = 0.25
"""Clean a segment only when less than this share of its bytes is needed: copying then writes at
most a third of what it frees.
"""
CLEAN_HISTORY_BELOW = 1 / 16
"""And only when at most this share of its bytes is history."""
CLEAN_FROM_SEGMENTS = 4
"""A log of fewer segments is not cleaned: it is small. One that has no room to grow is."""

_ROWS_AT_ONCE = 1 << 14
"""Index rows counted in one turn of the loop."""
_MOVED_AT_ONCE = 256
"""Batches copied in one turn of the loop."""


class SegmentLocator:
    """Finds the segments of positions."""

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._known = (0, -1)
        self.bases = self._ends = np.empty(0, np.uint64)

    def find(self, positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the index in `bases` of each position's segment; -1 where it was retired."""
        segments = self._segments
        state = (len(segments), segments[-1].base if segments else -1)
        if state != self._known:
            self._known = state
            self.bases = np.array([s.base for s in segments], np.uint64)
            self._ends = np.array([s.base + s.capacity for s in segments], np.uint64)
        numbers = np.searchsorted(self.bases, positions, "right") - 1
        if len(self._ends):
            numbers[positions >= self._ends[numbers]] = -1
        return numbers


class NeedCounter:
    """Counts the bytes of each segment that the batches of an index use, from one row on.

    Each row is counted when it comes and when it goes, so that the sum costs the same however many
    rows there are.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self.first_row = self.end_row = index.first_row
        self.bytes_by_base: dict[int, int] = {}

    def count(self, locator: SegmentLocator, first_row: int) -> Iterator[None]:
        """Count the rows from `first_row` on and no others, some at a time. Rows that come
        meanwhile are left to the next call.
        """
        index = self._index
        end_row = index.end_row
        first_row = max(first_row, index.first_row)
        assert self.first_row <= self.end_row <= index.end_row
        if first_row >= self.end_row:
            self.bytes_by_base.clear()
            self.first_row = self.end_row = first_row
        while self.first_row < first_row:
            end = min(first_row, self.first_row + _ROWS_AT_ONCE)
            self._add(locator, self.first_row, end, -1)
            self.first_row = end
            yield
        while self.first_row > first_row:
            start = max(first_row, self.first_row - _ROWS_AT_ONCE)
            self._add(locator, start, self.first_row, 1)
            self.first_row = start
            yield
        while self.end_row < end_row:
            end = min(end_row, self.end_row + _ROWS_AT_ONCE)
            self._add(locator, self.end_row, end, 1)
            self.end_row = end
            yield
        assert self.first_row <= self.end_row <= index.end_row

    def row_within(self, max_bytes: int) -> int:
        """Return the first row from which on all counted rows use at most `max_bytes`."""
        over = sum(self.bytes_by_base.values()) - max_bytes
        row = self.first_row
        while over > 0 and row < self.end_row:
            lengths = self._index.array(row, min(row + _ROWS_AT_ONCE, self.end_row))["length"]
            sums = np.cumsum(lengths, dtype=np.int64)
            if over <= sums[-1]:
                return row + int(np.searchsorted(sums, over)) + 1
            over -= int(sums[-1])
            row += len(lengths)
        return row

    def _add(self, locator: SegmentLocator, start: int, end: int, sign: int) -> None:
        for base, length in bytes_by_base(locator, self._index.array(start, end)).items():
            self._change(base, sign * length)

    def _change(self, base: int, length: int) -> None:
        left = self.bytes_by_base.get(base, 0) + length
        assert left >= 0, f"segment {base} has {left} bytes that are needed"
        if left:
            self.bytes_by_base[base] = left
        else:
            del self.bytes_by_base[base]

    def moved(self, row: int, length: int, before: int, after: int) -> None:
        """Move a row's batch, which was appended again, from the segment `before` to `after`."""
        if self.first_row <= row < self.end_row:
            self._change(before, -length)
            self._change(after, length)

    def forget(self, base: int) -> None:
        """Forget a segment that was retired although some of its batches are counted."""
        self.bytes_by_base.pop(base, None)


def bytes_by_base(locator: SegmentLocator, rows: Rows) -> dict[int, int]:
    """Return the bytes that the batches of some rows use, by segment base."""
    numbers = locator.find(rows["position"])
    held = numbers >= 0
    sums = np.bincount(numbers[held], rows["length"][held].astype(np.float64))
    return {int(locator.bases[number]): int(sums[number]) for number in np.flatnonzero(sums)}


@dataclass(frozen=True)
class Need:
    """The batches that a queue needs: those that reach beyond an offset, and those that hold some
    offsets below it.
    """

    index: Index
    counter: NeedCounter
    """Counts the bytes of the former."""
    below: npt.NDArray[np.uint64]
    """The offsets that the latter hold, rising."""
    other: NeedCounter | None = None
    """Another counter of the index, updated when a batch moves."""

    def moved(self, row: int, length: int, before: int, after: int) -> None:
        """As `NeedCounter.moved`."""
        self.counter.moved(row, length, before, after)
        if self.other is not None:
            self.other.moved(row, length, before, after)

    def single_rows(self) -> tuple[npt.NDArray[np.int64], Rows]:
        """Return the rows of the batches that hold `below`, and their numbers."""
        if not len(self.below):
            return np.empty(0, np.int64), self.index.array(0, 0)
        numbers, rows = self.index.holding(self.below)
        single = numbers < self.counter.first_row
        return numbers[single], rows[single]

    def bytes_by_base(self, locator: SegmentLocator) -> Mapping[int, int]:
        """Return the bytes needed of each segment."""
        total = self.counter.bytes_by_base
        if len(self.below):
            total = dict(total)
            for base, length in bytes_by_base(locator, self.single_rows()[1]).items():
                total[base] = total.get(base, 0) + length
        return total

    def rows_in(self, segment: Segment) -> Rows:
        """Return the rows of all needed batches in a segment."""
        pieces = [self.single_rows()[1]]
        counter = self.counter
        left = counter.bytes_by_base.get(segment.base, 0)
        row = counter.first_row
        while left and row < counter.end_row:
            rows = self.index.array(row, min(row + _ROWS_AT_ONCE, counter.end_row))
            pieces.append(rows[_inside(segment, rows)])
            left -= int(pieces[-1]["length"].sum())
            row += len(rows)
        pieces[0] = pieces[0][_inside(segment, pieces[0])]
        return np.concatenate(pieces)


def _inside(segment: Segment, rows: Rows) -> npt.NDArray[np.bool_]:
    end = segment.base + segment.capacity
    inside: npt.NDArray[np.bool_] = (rows["position"] >= segment.base) & (rows["position"] < end)
    return inside


def needed_bytes(segments: list[Segment], needs: Iterable[Need]) -> list[int]:
    """Return the bytes needed of each segment, by counted needs."""
    total: dict[int, int] = {}
    locator = SegmentLocator(segments)
    for need in needs:
        for base, length in need.bytes_by_base(locator).items():
            total[base] = total.get(base, 0) + length
    return [total.get(segment.base, 0) for segment in segments]


def worth_cleaning(
    log: CommitLog,
    needed: list[int],
    not_cleanable: Collection[int] = (),
    history: list[int] | None = None,
) -> Segment | None:
    """Return the segment that frees the most space for the least copying, if any is worth it.

    `needed` are the bytes needed of each segment of the log, and `history` how many of them are
    needed only as history, where that is kept. Segments whose base is in `not_cleanable` are not
    considered.
    """
    segments = log.segments
    if len(segments) < CLEAN_FROM_SEGMENTS and not log.is_tight:
        return None
    candidates = [
        (bytes_needed / segment.capacity, number)
        for number, (segment, bytes_needed) in enumerate(zip(segments, needed, strict=True))
        if bytes_needed
        and segment.base + segment.capacity <= log.position
        and segment.base not in not_cleanable
        and (history is None or history[number] <= CLEAN_HISTORY_BELOW * segment.capacity)
    ]
    share, number = min(candidates, default=(1.0, 0))
    return segments[number] if share < CLEAN_BELOW else None


def clean(log: CommitLog, segment: Segment, needs: Iterable[Need]) -> Iterator[None]:
    """Append the needed batches of a segment again, some rows at a time.

    Raises:
        BadRecord: a batch does not verify.
        WritesRefused: there is no space.
    """
    for need in needs:
        yield from _move(log, segment, need, *need.single_rows())
        counter = need.counter
        row, end = counter.first_row, counter.end_row
        while row < end and segment.base in counter.bytes_by_base:
            rows = need.index.array(row, min(end, row + _ROWS_AT_ONCE))
            yield from _move(log, segment, need, np.arange(row, row + len(rows)), rows)
            row += len(rows)
            yield


def _move(
    log: CommitLog, segment: Segment, need: Need, numbers: npt.NDArray[np.int64], rows: Rows
) -> Iterator[None]:
    """Append those of some rows' batches that are in a segment again."""
    inside = _inside(segment, rows)
    inside_rows = zip(numbers[inside].tolist(), rows[inside].tolist(), strict=True)
    for count, (number, row) in enumerate(inside_rows, 1):
        entry = IndexEntry._make(row)
        at = entry.position - segment.base
        position = log.append_again(bytearray(segment.view[at : at + entry.length]))
        need.index.move(entry.first_offset, position)
        now_in = log.find(position)
        assert now_in is not None and now_in is not segment
        need.moved(number, entry.length, segment.base, now_in.base)
        if count % _MOVED_AT_ONCE == 0:
            yield
