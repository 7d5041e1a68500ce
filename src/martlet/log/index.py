"""The index of a queue: the log position of each batch.

One row of 40 bytes for each batch, ordered by first offset, little-endian::

    first offset u64 | position u64 | count u32 | length u32 | stored at i64 ns | deliver at i64 ns

("deliver at" is 0 for immediate delivery; in a batch for a single channel it is that channel's
number, negated.)

Rows are numbered from the queue's beginning and keep their number. The file
``index/<topic>-<queue>[-<first row>].idx`` is the array of rows from `first_row` on, without a
header.  The newest are in memory as tuples, which is the fastest thing to read one at a time; the
rest is in a file, mapped as a numpy array.  The file may lag behind or be lost: the log rebuilds
it.  Rows that are in the file change only when it is written for a checkpoint: until then the file
matches the checksum in the last checkpoint.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice, starmap
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from martlet.log.storage import Storage

ENTRY = np.dtype(
    [
        ("first_offset", "<u8"),
        ("position", "<u8"),
        ("count", "<u4"),
        ("length", "<u4"),
        ("stored_at_ns", "<i8"),
        ("deliver_at_ns", "<i8"),
    ]
)
_ROW = struct.Struct("<QQIIqq")
assert ENTRY.itemsize == _ROW.size == 40

MAX_ROWS_IN_MEMORY = 4096
"""Rows that are buffered in memory, of 40 bytes each, before they are written to the file."""
_ROWS_AT_ONCE = 1 << 16
"""Rows searched by one numpy call: 2.6 MB, which fits into a cache."""
_KEPT_ROWS = 256
"""Rows kept in memory when the others are written to the file: consumers read the newest."""

Rows = npt.NDArray[Any]
"""A structured array of ENTRY."""


class IndexEntry(NamedTuple):
    """A row of the index."""

    first_offset: int
    position: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    length: int
    stored_at_ns: int
    deliver_at_ns: int

    @property
    def end_offset(self) -> int:
        """The offset behind the batch's last message."""
        return self.first_offset + self.count


def _packed(entries: list[IndexEntry]) -> bytes:
    """Return some rows as the file has them; numpy takes half as long again."""
    return b"".join(starmap(_ROW.pack, entries))


def index_name(topic: int, queue: int, first_row: int) -> str:
    """Return the name of an index file in the storage."""
    suffix = f"-{first_row}" if first_row else ""
    return f"index/{topic}-{queue}{suffix}.idx"


class Index:
    """The rows of one queue.

    Args:
        topic, queue: the queue's numbers; they name the file.
        first_row: the number of the file's first row.
        stored: the number of valid rows in the file.
        crc: their checksum.
    """

    def __init__(
        self,
        storage: Storage,
        topic: int,
        queue: int,
        first_row: int = 0,
        stored: int = 0,
        crc: int = 0,
    ) -> None:
        self._storage = storage
        self._topic = topic
        self._queue = queue
        self.first_row = first_row
        self._stored_end = first_row + stored
        self._tail: list[IndexEntry] = []
        self._tail_row = self._stored_end
        self._mapped: Rows | None = None
        self._moved: dict[int, IndexEntry] = {}
        """Rows in the file that have changed since."""
        self._crc: int | None = crc
        self._newest_ns: int | None = None
        self._sorted_row = 0
        """From this row on, none was stored before an earlier one."""
        self._raised: tuple[int, npt.NDArray[np.int64]] | None = None
        """The first row, and for each row up to `_sorted_row` the latest time up to it."""
        self.synced = True
        """Whether the file is unchanged since it was last made durable."""

    @property
    def name(self) -> str:
        """The file's name in the storage."""
        return index_name(self._topic, self._queue, self.first_row)

    @property
    def end_row(self) -> int:
        """The number behind the last row."""
        return self._tail_row + len(self._tail)

    @property
    def stored(self) -> int:
        """The number of rows in the file."""
        return self._stored_end - self.first_row

    def add(self, entry: IndexEntry) -> None:
        """Append a row; its offsets follow those of all other rows.

        If the disk is full, the rows stay in memory; a start rebuilds them from the log.
        """
        self._tail.append(entry)
        newest_ns = self._newest_ns
        if newest_ns is not None:
            if entry[4] < newest_ns:
                self._sorted_row, self._raised = self.end_row, None
            else:
                self._newest_ns = entry[4]
        if len(self._tail) % MAX_ROWS_IN_MEMORY == 0:
            with suppress(OSError):
                self.write_new()

    def write(self) -> None:
        """Write all rows that the file lacks; keep the newest in memory too. Raises OSError."""
        numbers = np.array(sorted(self._moved), np.int64)
        assert not len(numbers) or self.first_row <= numbers[0] <= numbers[-1] < self._stored_end
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1):
            if not len(run):
                continue
            rows = _packed([self._moved[number] for number in run.tolist()])
            self._mapped = self._crc = None
            self.synced = False
            at = (int(run[0]) - self.first_row) * ENTRY.itemsize
            self._storage.write_at(self.name, rows, at)
        self._moved.clear()
        self.write_new()
        assert self.first_row <= self._tail_row <= self._stored_end == self.end_row

    @property
    def has_unwritten(self) -> bool:
        """Whether there are rows that are not yet in the file."""
        return self._stored_end < self.end_row

    def write_new(self) -> None:
        """Write new rows only, none that the last checkpoint's checksum covers. Raises OSError."""
        unwritten = self._tail[self._stored_end - self._tail_row :]
        if unwritten:
            rows = _packed(unwritten)
            assert _rises(np.frombuffer(rows, ENTRY)), f"the rows of {self.name} overlap"
            at = (self._stored_end - self.first_row) * ENTRY.itemsize
            self._storage.write_at(self.name, rows, at)
            self.synced = False
            if self._crc is not None:
                self._crc = crc32c(rows, self._crc)
            self._stored_end += len(unwritten)
            self._mapped = None
            assert self._stored_end == self.end_row
        surplus = len(self._tail) - _KEPT_ROWS
        if surplus > 0:
            del self._tail[:surplus]
            self._tail_row += surplus

    def row(self, number: int) -> IndexEntry:
        """Return one row. Raises IndexError for numbers below `first_row` or from `end_row` on."""
        at = number - self._tail_row
        if at >= 0:
            return self._tail[at]
        if number < self.first_row:
            raise IndexError(f"row {number} has gone, the first is {self.first_row}")
        moved = self._moved.get(number)
        if moved is not None:
            return moved
        return IndexEntry._make(self._file_rows()[number - self.first_row].item())

    def rows(self, start: int, end: int) -> list[IndexEntry]:
        """Return the existing rows from `start` up to `end`."""
        end = min(end, self.end_row)
        start = max(start, self.first_row)
        if start >= self._tail_row:
            return list(islice(self._tail, start - self._tail_row, end - self._tail_row))
        return [IndexEntry._make(row) for row in self.array(start, end).tolist()]

    def array(self, start: int, end: int) -> Rows:
        """Return the rows from `start` up to `end` as a structured array, copied."""
        end = min(end, self.end_row)
        start = max(start, self.first_row)
        if start >= end:
            return np.empty(0, ENTRY)
        pieces = []
        if start < self._tail_row:
            stop = min(end, self._tail_row)
            rows = self._file_rows()[start - self.first_row : stop - self.first_row]
            if self._moved:
                rows = rows.copy()
                for number, entry in self._moved.items():
                    if start <= number < stop:
                        rows[number - start] = entry
            pieces.append(rows)
        if end > self._tail_row:
            begin = max(start, self._tail_row)
            tail = self._tail[begin - self._tail_row : end - self._tail_row]
            pieces.append(np.frombuffer(_packed(tail), ENTRY))
        return np.concatenate(pieces)

    def times(self, start: int, end: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return first offsets and times of storage of the rows from `start` up to `end`."""
        if start >= self._tail_row:
            tail = self._tail[start - self._tail_row : end - self._tail_row]
            firsts, stored = [row[0] for row in tail], [row[4] for row in tail]
            return np.array(firsts, np.int64), np.array(stored, np.int64)
        rows = self.array(start, end)
        return rows["first_offset"].astype(np.int64), rows["stored_at_ns"]

    def _file_rows(self) -> Rows:
        if self._mapped is None:
            data = self._storage.map(self.name)
            if data is None or len(data) < self.stored * ENTRY.itemsize:
                raise OSError(f"the index file {self.name} was cut or removed by another process")
            self._mapped = np.frombuffer(data, ENTRY, self.stored)
        return self._mapped

    def find(self, offset: int) -> int:
        """Return the number of the row that holds an offset, else of the first row behind it."""
        number = self._last_not_above("first_offset", offset)
        if number >= self.first_row and self.row(number).end_offset > offset:
            return number
        return number + 1

    def holding(self, offsets: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int64], Rows]:
        """Return the rows that hold any of some rising offsets, and their numbers."""
        begins = np.array([entry.first_offset for entry in self._tail], np.uint64)
        numbers = self._tail_row + np.searchsorted(begins, offsets, "right") - 1
        if self._tail_row > self.first_row:
            stored = self._file_rows()["first_offset"][: self._tail_row - self.first_row]
            in_file = self.first_row + np.searchsorted(stored, offsets, "right") - 1
            numbers = np.where(numbers < self._tail_row, in_file, numbers)
        numbers = np.unique(numbers[numbers >= self.first_row])
        stored_count = int(np.searchsorted(numbers, self._tail_row))
        rows = np.empty(len(numbers), ENTRY)
        if stored_count:
            rows[:stored_count] = self._file_rows()[numbers[:stored_count] - self.first_row]
            for number in self._moved.keys() & set(numbers[:stored_count].tolist()):
                rows[np.searchsorted(numbers, number)] = self._moved[number]
        for index in range(stored_count, len(numbers)):
            rows[index] = self._tail[int(numbers[index]) - self._tail_row]
        ends = rows["first_offset"] + rows["count"]
        at = np.searchsorted(offsets, rows["first_offset"])
        held = (at < len(offsets)) & (offsets[np.minimum(at, len(offsets) - 1)] < ends)
        return numbers[held], rows[held]

    def deferred(self, first: int, end: int, but: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the offsets of deferred messages from `first` up to `end`, as (first, end) ranges,
        without batches whose time is the mark `but`.
        """
        for begins, ends in self._timed(first, end, lambda times: (times != 0) & (times != but)):
            yield from zip(begins.tolist(), ends.tolist(), strict=True)

    def count_deferred(self, first: int, end: int) -> int:
        """Count the deferred messages from offset `first` up to `end`."""
        ranges = self._timed(first, end, lambda times: times != 0)
        return sum(int((ends - begins).sum()) for begins, ends in ranges)

    def count_marked(self, first: int, end: int, mark: int) -> int:
        """Count the messages from offset `first` up to `end` whose time is this mark."""
        ranges = self._timed(first, end, lambda times: times == mark)
        return sum(int((ends - begins).sum()) for begins, ends in ranges)

    def _timed(
        self, first: int, end: int, selects: Callable[[Rows], Rows]
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield the offsets from `first` up to `end` in batches whose time `selects` chooses."""
        if first >= end:
            return
        stop = min(self.find(end) + 1, self.end_row)
        for number in range(self.find(first), stop, _ROWS_AT_ONCE):
            rows = self.array(number, min(number + _ROWS_AT_ONCE, stop))
            rows = rows[selects(rows["deliver_at_ns"])]
            begins = np.maximum(rows["first_offset"].astype(np.int64), first)
            ends = np.minimum(rows["first_offset"].astype(np.int64) + rows["count"], end)
            yield begins[begins < ends], ends[begins < ends]

    @property
    def newest_ns(self) -> int:
        """The latest time at which a row was stored; 0 without rows.

        It need not be that of the last row: earlier versions went by a clock that was set back.
        """
        if self._newest_ns is None:
            times = self._raised_times(self.end_row)
            self._newest_ns = int(times[-1]) if len(times) else 0
            behind = np.flatnonzero(self._stored_times(self.end_row) < times)
            self._sorted_row = self.first_row + int(behind[-1]) + 1 if len(behind) else 0
        return self._newest_ns

    def find_time(self, stored_at_ns: int) -> int:
        """Return the first row stored at or after a time: all rows before it are older."""
        if stored_at_ns > self.newest_ns:
            return self.end_row
        if self.first_row < self._sorted_row:
            if self._raised is None or self._raised[0] != self.first_row:
                self._raised = self.first_row, self._raised_times(self._sorted_row)
            times = self._raised[1]
            number = int(np.searchsorted(times, stored_at_ns))
            if number < len(times):
                return self.first_row + number
        return self._last_not_above("stored_at_ns", stored_at_ns - 1) + 1

    def _stored_times(self, end: int) -> npt.NDArray[np.int64]:
        """Return when the rows up to `end` were stored."""
        stop = min(end, self._tail_row) - self.first_row
        times = [row[4] for row in self._tail[: max(0, end - self._tail_row)]]
        if stop <= 0:
            return np.array(times, np.int64)
        return np.concatenate((self._file_rows()["stored_at_ns"][:stop], np.array(times, np.int64)))

    def _raised_times(self, end: int) -> npt.NDArray[np.int64]:
        """Return for each row up to `end` the latest time of it and the rows before it."""
        return np.maximum.accumulate(self._stored_times(end))

    def _last_not_above(self, field: str, value: int) -> int:
        """Return the number of the last row whose field is <= value; one below `first_row` for
        none. Behind it the field must be above the value, and before it nowhere.
        """
        which = ENTRY.names.index(field) if ENTRY.names else 0
        if self._tail and self._tail[0][which] <= value:
            return self._tail_row + bisect_right(self._tail, value, key=lambda e: e[which]) - 1
        if self._tail_row == self.first_row:
            return self.first_row - 1
        column = self._file_rows()[field][: self._tail_row - self.first_row]
        limit = column.dtype.type(min(value, np.iinfo(column.dtype).max)) if value >= 0 else None
        if limit is None:
            return self.first_row - 1
        return self.first_row + int(np.searchsorted(column, limit, "right")) - 1

    def move(self, first_offset: int, position: int) -> bool:
        """Set the position of the batch that begins at an offset; False where there is none."""
        number = self._last_not_above("first_offset", first_offset)
        if number < self.first_row or self.row(number).first_offset != first_offset:
            return False
        moved = self.row(number)._replace(position=position)
        at = number - self._tail_row
        if at >= 0:
            self._tail[at] = moved
        if number < self._stored_end:
            self._moved[number] = moved
        return True

    @property
    def crc(self) -> int:
        """The checksum of the rows in the file."""
        if self._crc is None:
            self._crc = crc32c(self._file_rows().tobytes()) if self.stored else 0
        return self._crc

    def verify(self) -> bool:
        """Whether the file matches its row count and checksum."""
        try:
            return not self.stored or crc32c(self._file_rows().tobytes()) == self._crc
        except OSError:
            return False

    def fill(self, rows: Rows) -> None:
        """Replace all rows; they stay in memory if the disk is full."""
        self._tail = []
        self._moved.clear()
        self.first_row = self._stored_end = self._tail_row = 0
        self._mapped = self._newest_ns = None
        self._raised = None
        self._sorted_row = 0
        self._crc = 0
        try:
            self._storage.write_at(self.name, rows.tobytes(), 0)
        except OSError:
            self._tail = [IndexEntry._make(row) for row in rows.tolist()]
            return
        self._stored_end = self._tail_row = len(rows)
        self._crc = crc32c(rows.tobytes())
        self.synced = False

    def drop_before(self, number: int) -> None:
        """Drop the rows below `number`: the remaining ones go to a file of another name.

        The old file must stay until a checkpoint that names the new one is durable.
        """
        assert self.first_row <= number <= self.end_row
        self.write()
        kept = self.array(number, self.end_row)
        name = index_name(self._topic, self._queue, number)
        self._storage.write_at(name, kept.tobytes(), 0)
        self.first_row = number
        self._tail = self._tail[max(0, number - self._tail_row) :]
        self._tail_row = max(self._tail_row, number)
        self._mapped = None
        self._stored_end = number + len(kept)
        self._crc = crc32c(kept.tobytes())
        self.synced = False
        assert self.first_row <= self._tail_row <= self._stored_end == self.end_row


def _rises(rows: Rows) -> bool:
    """Whether the offsets of each row follow those of the row before."""
    ends = rows["first_offset"][:-1] + rows["count"][:-1]
    return bool((ends <= rows["first_offset"][1:]).all())
