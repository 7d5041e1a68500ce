"""Recovery: reading the log forward from a position to its end, in full or by headers alone.

The scan distinguishes three cases where a record should be:

- nothing: zeros, or the bytes of another position in a recycled segment.  The log ends here.
- a record begun and not finished, with nothing good behind it: a torn tail, as a power cut leaves
  it.  It is cut, and reported.
- an invalid record with good records behind it: damage. It is skipped and reported, and the records
  behind it are kept: those messages were answered OK too.

::

    | good | good | damage | good | torn tail | zeros or stale bytes
                    report.damaged  report.cut
                                  ^ report.end_position: the next record is appended here

A good record is recognised by its magic, its own position and its checksum, so none of this depends
on the bytes of an earlier use of the file. Its epoch is not lower than that of the records before
it: a lower one was cut off when another replica's log was found to count.

To find a few records among many, `heads` reads headers alone: a header has the length of its
record, so the bytes between are neither read from the disk nor verified. The caller verifies the
records that it uses, by `martlet.log.record.read_record`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from martlet.log.epochs import EpochRange, Epochs
from martlet.log.record import (
    HEADER_BYTES,
    HEADER_STRUCT,
    MAGIC,
    BadRecord,
    Header,
    RecordFlag,
    RecordKind,
    batches_of,
    read_header,
    read_record,
)
from martlet.log.storage import Segment, forget_pages

_PIECE_WORDS = 1 << 16
"""Words of 8 bytes searched for a magic by one numpy call: half a megabyte."""
_POSITION_WORD = 2
"""The offset in a header of the record's position, in words of 8 bytes."""


@dataclass(frozen=True)
class LogDamage:
    """Positions from `start` up to `end` hold no good record, but later ones do."""

    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.end - self.start} bytes from position {self.start} are lost: {self.reason}"


@dataclass
class RecoveryReport:
    """The outcome of a scan."""

    records: int = 0
    """The number of good records, SEGMENT_END excluded."""
    end_position: int = 0
    """Behind the last of them; the next append goes there."""
    last_epoch: int = 0
    epochs: Epochs = field(default_factory=Epochs)
    damaged: list[LogDamage] = field(default_factory=list)
    """Invalid ranges with good records behind them."""
    cut: LogDamage | None = None
    """The torn tail, if any."""


def scan(
    segments: list[Segment], start: int, report: RecoveryReport
) -> Iterator[tuple[Header, memoryview]]:
    """Yield each good record from position `start` on, in order, and fill in the report.

    The batches of a bundle follow it. `segments` are those of the log, by base position;
    `report.end_position` is the position to append at once the generator has ended.
    """
    behind_start = [s for s in segments if s.base + s.capacity > start]
    report.end_position = max(start, behind_start[0].base) if behind_start else start
    damage: LogDamage | None = None
    epoch: EpochRange | None = None
    for segment in behind_start:
        at = max(0, start - segment.base)
        while at + HEADER_BYTES <= segment.capacity:
            position = segment.base + at
            try:
                header, record = read_good(segment, at, report.last_epoch)
            except BadRecord as error:
                damage = damage or LogDamage(position, segment.base + segment.capacity, str(error))
                behind = next_good(segment, at + 8, report.last_epoch)
                if behind is None:
                    break
                at = behind
                continue
            if damage is not None:
                report.damaged.append(LogDamage(damage.start, position, damage.reason))
                damage = None
            report.last_epoch = header.epoch
            if header.kind == RecordKind.SEGMENT_END:
                report.end_position = position
                # Good records behind the end of a segment: the next segment was lost (or an early
                # version failed to allocate it), appends went on here, and the record that
                # replaced the end is lost. If the scan stopped here, a later start would find
                # those records again.
                behind = next_good(segment, at + header.length, report.last_epoch)
                if behind is None:
                    break
                damage = LogDamage(
                    position, segment.base + segment.capacity, "a stale end of segment"
                )
                at = behind
                continue
            report.records += 1
            report.end_position = end = header.next_position
            if epoch is not None and epoch.epoch == header.epoch:
                epoch.end = end
            else:
                epoch = report.epochs.add(header.epoch, position, end)
            yield header, record
            if header.kind == RecordKind.BUNDLE:
                yield from batches_of(header, record)
            at += header.length
        # Otherwise the pages of the log that a start has read count as the process's memory.
        forget_pages(segment.view)
    if damage is not None and _is_torn(segments, damage.start):
        report.cut = damage


def read_good(segment: Segment, at: int, last_epoch: int) -> tuple[Header, memoryview]:
    """Read the record at byte `at` of a segment, behind records of an epoch. Raises BadRecord."""
    header, record = read_record(segment.view, at, segment.base + at)
    check_order(header, last_epoch)
    return header, record


def check_order(header: Header, last_epoch: int) -> None:
    """Check that a record may stand in a log, behind records of an epoch. Raises BadRecord."""
    if header.epoch < last_epoch:
        raise BadRecord(
            f"position {header.position}: epoch {header.epoch} behind epoch {last_epoch}"
        )
    if header.flags & RecordFlag.BUNDLED:
        raise BadRecord(
            f"position {header.position}: a batch without the bundle that it belongs to"
        )


def _is_torn(segments: list[Segment], position: int) -> bool:
    """Whether a record was begun at a position."""
    for segment in segments:
        if segment.base <= position < segment.base + segment.capacity:
            try:
                read_header(segment.view, position - segment.base, position)
            except BadRecord:
                return False
            return True
    return False


def next_good(segment: Segment, at: int, last_epoch: int = 0) -> int | None:
    """Return the byte of the next good record at or behind `at`, behind records of an epoch."""
    words = np.frombuffer(segment.view, "<u8", segment.capacity // 8)
    first_halves = np.frombuffer(segment.view, "<u4", segment.capacity // 4)[::2]
    end = len(words) - HEADER_BYTES // 8 + 1
    # In pieces: the unwritten rest of a segment is long, and every start searches it.
    for start in range(at // 8, end, _PIECE_WORDS):
        likely = np.flatnonzero(first_halves[start : min(start + _PIECE_WORDS, end)] == MAGIC)
        likely += start
        positions = words[likely + _POSITION_WORD].astype(np.int64)
        for number in likely[positions == likely * 8 + segment.base].tolist():
            at = 8 * number
            try:
                read_good(segment, at, last_epoch)
            except BadRecord:
                continue
            return int(at)
    return None


_LENGTH, _KIND, _POSITION = 2, 4, 6
"""The offsets of those fields in a header."""
_BATCH, _END, _BUNDLE = int(RecordKind.BATCH), int(RecordKind.SEGMENT_END), int(RecordKind.BUNDLE)
_CLOCK_EVERY_RECORDS = 256
"""`is_over` is called once for this many records."""
_UNKNOWN_NS = 1 << 62
"""For a segment that does not say when it began."""


def heads(
    segments: list[Segment],
    start: int,
    kinds: Collection[RecordKind],
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Header, Segment]]:
    """Yield the header and the segment of each record of some kinds from position `start` on.

    Batches inside bundles are included. Damage is skipped. Ends early when `is_over` returns True.
    """
    unpack = HEADER_STRUCT.unpack_from
    kind_numbers = frozenset(map(int, kinds))
    count = 0
    for segment in segments:
        base, view, capacity = segment.base, segment.view, segment.capacity
        if base + capacity <= start:
            continue
        at = max(0, start - base)
        while at + HEADER_BYTES <= capacity:
            fields = unpack(view, at)
            length, kind = fields[_LENGTH], fields[_KIND]
            if fields[0] != MAGIC or fields[_POSITION] != base + at or length < HEADER_BYTES:
                behind = None if segment is segments[-1] else next_good(segment, at + 8)
                if behind is None:
                    break
                at = behind
                continue
            if kind in kind_numbers:
                yield Header._make(fields), segment
            if kind == _END:
                break
            if kind == _BUNDLE and _BATCH in kind_numbers:
                yield from ((header, segment) for header in _bundled(fields, view, at))
            at += length
            count += 1
            if not count % _CLOCK_EVERY_RECORDS and is_over():
                return
        forget_pages(view)


def content_end(segment: Segment, start: int, damaged: Iterable[tuple[int, int]] = ()) -> int:
    """Return the position behind the last record of a segment, a SEGMENT_END included, from the
    record at `start` on. Damaged ranges, which hold no good records, count too.
    """
    unpack = HEADER_STRUCT.unpack_from
    base, view, capacity = segment.base, segment.view, segment.capacity
    within = [(first, stop) for first, stop in damaged if first < base + capacity and base < stop]
    at = start - base
    while at + HEADER_BYTES <= capacity:
        behind = [stop for first, stop in within if first <= base + at < stop]
        if behind:
            at = behind[0] - base
            continue
        fields = unpack(view, at)
        length = fields[_LENGTH]
        if fields[0] != MAGIC or fields[_POSITION] != base + at or length < HEADER_BYTES:
            break
        at += length
        if fields[_KIND] == _END:
            break
    return base + min(at, capacity)


def _bundled(fields: tuple[Any, ...], view: memoryview, at: int) -> Iterator[Header]:
    header = Header._make(fields)
    with suppress(BadRecord):
        for inner, _ in batches_of(header, view[at : at + header.length]):
            yield inner


def segments_since(segments: list[Segment], time_ns: int) -> list[Segment]:
    """Return the segments that may hold records written at a time or later.

    The beginning of a segment does not count if the one before began later: earlier versions used a
    clock that could be set back.
    """
    since = newest_ns = 0
    for number, segment in enumerate(segments):
        begun_ns = _begun_at_ns(segment)
        if newest_ns <= begun_ns <= time_ns:
            since = number
        if begun_ns != _UNKNOWN_NS:
            newest_ns = max(newest_ns, begun_ns)
    return segments[since:]


def begun_at_ns(segments: list[Segment]) -> int:
    """Return when the first of some segments began; 0 for an empty list."""
    return _begun_at_ns(segments[0]) if segments else 0


def _begun_at_ns(segment: Segment) -> int:
    fields = Header._make(HEADER_STRUCT.unpack_from(segment.view))
    is_one = fields.magic == MAGIC and fields.position == segment.base
    return fields.stored_at_ns if is_one else _UNKNOWN_NS
