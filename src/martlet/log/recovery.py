"""Recovery: reading the log forward from a position to its end.

Three things can be found where a record should be:

- nothing: zeros, or the bytes of another position in a recycled segment.  The log ends here.
- a record begun and not finished, with nothing good behind it: a torn tail, as a power cut leaves
  it.  It is cut, and reported.
- something bad with good records behind it: damage.  It is skipped and reported, and what is behind
  it is kept: those messages were answered OK too.

::

    | good | good | damage | good | torn tail | zeros or stale bytes
                    report.damaged  report.cut
                                  ^ report.end_position: the next record is appended here

A good record is known by its magic, its own position and its checksum, so none of this depends on
the bytes of an earlier use of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from martlet.log.atomic_batches import batches_of
from martlet.log.record import (
    HEADER_BYTES,
    MAGIC,
    BadRecord,
    Header,
    RecordFlag,
    RecordKind,
    read_header,
    read_record,
)
from martlet.log.storage import Segment, forget_pages

_PIECE_WORDS = 1 << 16
"""How many words of 8 bytes are searched for a magic by one numpy call: half a megabyte."""
_POSITION_WORD = 2
"""Where a header has the record's position, in words of 8 bytes."""


@dataclass(frozen=True)
class LogDamage:
    """Positions from `start` up to `end` hold no good record, though there are some behind."""

    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.end - self.start} bytes from position {self.start} are lost: {self.reason}"


@dataclass
class RecoveryReport:
    """The outcome of a scan.

    Attributes:
        records: how many good records there are, but for ends of segments.
        end_position: behind the last of them: where to append.
        last_epoch: the highest epoch of a good record.
        damaged: places with good records behind them.
        cut: the torn tail, where there is one.
    """

    records: int = 0
    end_position: int = 0
    last_epoch: int = 0
    damaged: list[LogDamage] = field(default_factory=list)
    cut: LogDamage | None = None


def scan(
    segments: list[Segment], start: int, report: RecoveryReport
) -> Iterator[tuple[Header, memoryview]]:
    """Yield each good record from position `start` on, in order, and fill in the report.  Behind a
    bundle come its batches.

    `segments` are those of the log by base; `report.end_position` is where to append when the
    generator has ended.
    """
    behind_start = [s for s in segments if s.base + s.capacity > start]
    report.end_position = max(start, behind_start[0].base) if behind_start else start
    doubt: LogDamage | None = None
    for segment in behind_start:
        at = max(0, start - segment.base)
        while at + HEADER_BYTES <= segment.capacity:
            position = segment.base + at
            try:
                header, record = _read(segment, at)
            except BadRecord as error:
                doubt = doubt or LogDamage(position, segment.base + segment.capacity, str(error))
                behind = next_good(segment, at + 8)
                if behind is None:
                    break
                at = behind
                continue
            if doubt is not None:
                report.damaged.append(LogDamage(doubt.start, position, doubt.reason))
                doubt = None
            report.last_epoch = max(report.last_epoch, header.epoch)
            if header.kind == RecordKind.SEGMENT_END:
                report.end_position = position
                # The next one was lost, or, as was possible once, found no room, and this one went
                # on: what then stood here is lost, and what is behind would be found again by a
                # later start.
                behind = next_good(segment, at + header.length)
                if behind is None:
                    break
                doubt = LogDamage(
                    position, segment.base + segment.capacity, "a stale end of segment"
                )
                at = behind
                continue
            report.records += 1
            report.end_position = header.next_position
            yield header, record
            if header.kind == RecordKind.BUNDLE:
                yield from batches_of(header, record)
            at += header.length
        # Else a start after a crash would count all that it has read as its own memory.
        forget_pages(segment.view)
    if doubt is not None and _is_torn(segments, doubt.start):
        report.cut = doubt


def _read(segment: Segment, at: int) -> tuple[Header, memoryview]:
    """The record at byte `at` of a segment. Raises BadRecord."""
    position = segment.base + at
    header, record = read_record(segment.view, at, position)
    if header.flags & RecordFlag.BUNDLED:
        raise BadRecord(f"position {position}: a batch without the bundle that it belongs to")
    return header, record


def _begun(segment: Segment, at: int) -> bool:
    try:
        read_header(segment.view, at, segment.base + at)
    except BadRecord:
        return False
    return True


def _is_torn(segments: list[Segment], position: int) -> bool:
    for segment in segments:
        if segment.base <= position < segment.base + segment.capacity:
            return _begun(segment, position - segment.base)
    return False


def next_good(segment: Segment, at: int) -> int | None:
    """The place of the next good record of this segment at or behind byte `at`."""
    words = np.frombuffer(segment.view, "<u8", segment.capacity // 8)
    first_halves = np.frombuffer(segment.view, "<u4", segment.capacity // 4)[::2]
    end = len(words) - HEADER_BYTES // 8 + 1
    # A piece at a time: the unwritten rest of a segment is long, and every start searches it.
    for start in range(at // 8, end, _PIECE_WORDS):
        likely = np.flatnonzero(first_halves[start : min(start + _PIECE_WORDS, end)] == MAGIC)
        likely += start
        positions = words[likely + _POSITION_WORD].astype(np.int64)
        for number in likely[positions == likely * 8 + segment.base].tolist():
            place = 8 * number
            try:
                _read(segment, place)
            except BadRecord:
                continue
            return int(place)
    return None
