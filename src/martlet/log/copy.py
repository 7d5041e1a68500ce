"""The copy of a log that another replica writes: the same bytes at the same positions.

::

    primary   | r | r | r | r | r | r |
    copy      | r | r | r | r | r   |
                                ^ position          verified, to be acknowledged
                                    ^ received_position   the next bytes go here

Bytes come in pieces of any length and are written at once; a record counts when it is whole and its
checksum is right. The checksum is that of the received bytes, piece by piece behind the write of
each: they are in the processor's cache then, and the mapped segment need not be read. A SEGMENT_END
never counts: a primary that is started again may write over it.

The primary tells each of its segments before the first bytes in it. Where positions are missing
before a segment, the primary has retired what was there: batches that it moved from there come
behind later ones, so a state that was built record by record must be built anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from crc32c import crc32c

from martlet.log import fsync_marker
from martlet.log.cut import CutTail, cut_off, finish_cut
from martlet.log.epochs import EpochRange, Epochs
from martlet.log.record import (
    CHECKED_FROM,
    HEADER_BYTES,
    BadRecord,
    Header,
    RecordKind,
    batches_of,
    check_checksum,
    read_header,
    read_record,
)
from martlet.log.recovery import RecoveryReport, check_order, scan
from martlet.log.segmented import SegmentedLog
from martlet.log.storage import FULL, Segment, Storage, key_index_name

_PIECE_BYTES = 1 << 20


class CopyRefused(Exception):
    """What was received does not continue the copy; the text says why. The copy is unchanged, and
    goes on at its `position`.
    """


def open_copy(
    storage: Storage, start: int = 0, *, epochs: Iterable[EpochRange] = ()
) -> tuple[CopiedLog, RecoveryReport]:
    """Open the log of a replica that is to copy, from a position on, such as a checkpoint's.

    What is damaged, by the disk or by a power cut, is to be repaired by another replica's bytes;
    the records behind it are kept. `epochs` are those known of the log: segments of theirs may be
    retired. Raises CopyRefused and OSError where the disk failed.
    """
    segments = storage.segments()
    finish_cut(storage, segments)
    report = RecoveryReport()
    for _ in scan(segments, start, report):
        pass
    end = report.epochs.ranges[-1].end if report.epochs.ranges else start
    while segments and segments[-1].base > end:  # Begun, but without a good record.
        storage.retire(segments.pop())
    fsync_marker.settle_doubtful(storage, segments, end)
    report.epochs.remember(epochs)
    # Behind the last record, damage may lie before the end of the segment.
    damaged = [(damage.start, damage.end) for damage in report.damaged if damage.end <= end]
    ranges = _within(damaged, segments)
    copy = CopiedLog(storage, segments, end, report.epochs, damaged=ranges)
    if segments:
        # The end of a segment may be there, in which the primary may have gone on.
        written = max([report.end_position, *(damage.end for damage in report.damaged)])
        copy.received_position = max(end, min(written + HEADER_BYTES, _end_of(segments[-1])))
    copy.restart()
    return copy, report


class CopiedLog(SegmentedLog):
    """A log that another replica writes. What is behind `position` in its segment was never
    acknowledged and is written over.

    Args, beside those of `SegmentedLog`:
        epochs: those of the records up to `position`.
        damaged: the ranges up to there that no replica has undamaged, in order.
    """

    def __init__(
        self,
        storage: Storage,
        segments: list[Segment],
        position: int,
        epochs: Epochs,
        durable_position: int = 0,
        damaged: Iterable[tuple[int, int]] = (),
    ) -> None:
        super().__init__(storage, segments, position, durable_position)
        assert not segments or segments[-1].base <= position <= _end_of(segments[-1])
        assert not epochs.ranges or epochs.ranges[-1].end <= position
        self.epochs = epochs
        self.damaged.extend(damaged)
        self.received_position = position
        self.on_cut: Callable[[CutTail], None] = lambda tail: None
        """Called with what a cut took off."""
        self.gap_count = 0
        """The segments that began behind missing positions."""
        self._begun: Header | None = None
        """The header of the record at `position`, once it is received."""
        self._checksum = 0
        """That of the record's bytes before `received_position`."""
        self._has_ended = False
        """Whether the end of the last segment was received."""
        self._ends_before: dict[int, int] = {}
        """By the base of each segment that was begun: where the records before it end. Only those
        at or behind the durable position are of use.
        """

    def begin_segment(self, base: int, capacity: int) -> None:
        """Begin a segment as the primary did.

        Raises:
            CopyRefused: it is not the next one.
            StorageFull: no space for it.
            OSError: it cannot be made.
        """
        self._check_open()
        last = self.segments[-1] if self.segments else None
        if last is not None:
            end = _end_of(last)
            if base < end:
                raise CopyRefused(f"a segment at {base} where the last one ends at {end}")
            if end - self.position >= HEADER_BYTES and not self._has_ended:
                raise CopyRefused(f"a segment at {base}, but the one before it goes on")
        if base < self.position or capacity <= 0 or base % 8 or capacity % 8:
            raise CopyRefused(f"a segment of {capacity} bytes at {base}")
        segment = self.storage.create(base, capacity)
        if last is not None:
            # Its end moved no position, so a flush under way may have taken it for flushed.
            self._written(last)
        self._ends_before = {
            begun: end for begun, end in self._ends_before.items() if begun >= self.durable_position
        }
        self._ends_before[base] = self.end_position
        self._add(segment)
        if last is not None and base > _end_of(last):
            self.gap_count += 1
        self._begin_at_position()

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes that follow those received so far.

        Raises:
            CopyRefused: they do not, or are no good records; what is behind `position` is cleared.
        """
        self._check_open()
        last = self.segments[-1] if self.segments else None
        if last is None or position != self.received_position:
            raise CopyRefused(f"bytes at {position} where {self.received_position} comes next")
        if self._has_ended:
            raise CopyRefused(f"bytes at {position} behind the segment's end")
        if position + len(data) > _end_of(last):
            raise CopyRefused(f"bytes up to {position + len(data)} behind {_end_of(last)}")
        self._put(last, data, position)
        self.received_position += len(data)
        try:
            self._verify(last, position, memoryview(data))
        except BadRecord as error:
            self.restart()
            raise CopyRefused(f"a bad record was received: {error}") from error

    def write_damaged(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes that are damaged at all replicas, between two records. Raises CopyRefused."""
        self._check_open()
        last = self.segments[-1] if self.segments else None
        if last is None or not position == self.position == self.received_position:
            raise CopyRefused(f"damaged bytes at {position} where {self.position} comes next")
        if len(data) % 8 or position + len(data) > _end_of(last):
            raise CopyRefused(f"damaged bytes up to {position + len(data)}")
        self._put(last, data, position)
        self.position += len(data)
        self.damaged.append((position, self.position))
        self._begin_at_position()

    def repair(self, start: int, data: bytes) -> None:
        """Write, durably, the undamaged bytes of a damaged range. Then open the copy again.

        Raises:
            CopyRefused: those are no good records, or the disk failed.
            OSError: the disk failed.
        """
        self._check_open()
        segment = self.find(start)
        if segment is None or not any(first <= start < stop for first, stop in self.damaged):
            raise CopyRefused(f"bytes at {start}, where nothing is to be repaired")
        at = 0
        while at + HEADER_BYTES <= len(data):
            try:
                header, _ = read_record(data, at, start + at)
            except BadRecord as error:
                raise CopyRefused(f"a bad record was received: {error}") from error
            at += header.length
            if header.kind == RecordKind.SEGMENT_END:
                break
        if start + at > _end_of(segment):
            raise CopyRefused(f"bytes up to {start + at} behind {_end_of(segment)}")
        self._put(segment, data[:at], start)
        try:
            segment.flush()
        except OSError as error:
            self.flush_failed(error)
            raise
        self.storage.remove(key_index_name(segment.base))

    def retire(self, segment: Segment) -> None:
        """Remove a segment that the primary has retired, the last one included."""
        if segment is self.segments[-1]:
            self._begin_at_position()
        self._drop(segment)
        self.damaged = _within(self.damaged, self.segments)
        self._dirty = [dirty for dirty in self._dirty if dirty is not segment]
        self.storage.retire(segment)

    def cut(self, position: int, epoch: int) -> CutTail:
        """Cut off, durably, what the log of the primary of an epoch does not have. Returns what
        went. No checkpoint may be of a position behind the cut: it was not confirmed.

        Raises OSError: nothing is cut, or the next start does it; the copy takes no writes.
        """
        self._check_open()
        assert position <= self.position
        self.cut_count += 1
        try:
            tail = cut_off(self.storage, self.segments, position, self.received_position, epoch)
        except OSError as error:
            self.flush_failed(error)
            self.may_recover = False  # The next start ends the cut.
            raise
        finally:
            self._bases = [segment.base for segment in self.segments]
            self._dirty = [segment for segment in self._dirty if segment in self.segments]
            self.has_properties = True
        self.position = min(position, _end_of(self.segments[-1])) if self.segments else 0
        self.durable_position = min(self.durable_position, self.position)
        self.epochs.cut(self.position)
        self.damaged = [
            (start, min(end, self.position)) for start, end in self.damaged if start < self.position
        ]
        self._begin_at_position()
        if tail.written_bytes:
            self.on_cut(tail)
        return tail

    def restart(self) -> None:
        """Forget, durably, what was received behind `position`: a new connection sends it again, or
        its primary has something else there. Raises CopyRefused: the disk failed.
        """
        if self.received_position > self.position:
            for at in range(self.position, self.received_position, _PIECE_BYTES):
                zeros = bytes(min(_PIECE_BYTES, self.received_position - at))
                self._put(self.segments[-1], zeros, at)
            # Flushed: a power cut could bring back the end of the segment, or a record of which
            # only zeros were missing, over what is written next, and keep what follows that.
            try:
                self.segments[-1].flush()
            except OSError as error:
                self.flush_failed(error)
                raise CopyRefused(self.failed) from error
        self._begin_at_position()

    @property
    def end_position(self) -> int:
        """Behind the last verified record: what is acknowledged. A later start finds as much, where
        `position` may be the beginning of a segment without records.
        """
        return self.epochs.ranges[-1].end if self.epochs.ranges else 0

    @property
    def durable_end_position(self) -> int:
        """Behind the last verified record that is durable: a start after a power cut finds as much.
        `durable_position` may be the beginning of a segment without durable records.
        """
        durable = min(self.durable_position, self.end_position)
        return self._ends_before.get(durable, durable)

    def records(self, start: int, end: int) -> Iterator[tuple[Header, memoryview]]:
        """Yield each verified record from position `start` up to `end`, without checking it again,
        and the batches of a bundle behind it.
        """
        assert end <= self.position
        for segment in list(self.segments):
            at = max(start, segment.base)
            stop = min(end, _end_of(segment))
            while at + HEADER_BYTES <= stop:
                if self.damaged and (behind := self._behind_damage(at)) > at:
                    at = behind
                    continue
                header = read_header(segment.view, at - segment.base, at)
                if header.kind == RecordKind.SEGMENT_END:
                    break
                record = segment.view[at - segment.base : header.next_position - segment.base]
                yield header, record
                if header.kind == RecordKind.BUNDLE:
                    yield from batches_of(header, record)
                at = header.next_position

    def _behind_damage(self, position: int) -> int:
        """Return the end of the damaged range that holds a position; else the position."""
        return next((end for start, end in self.damaged if start <= position < end), position)

    def _check_open(self) -> None:
        if self.failed is not None:
            raise CopyRefused(self.failed)

    def _put(self, segment: Segment, data: bytes | bytearray | memoryview, position: int) -> None:
        try:
            segment.write(data, position - segment.base)
        except OSError as error:
            # Some of it may be there, behind what is received.
            self.received_position = max(self.received_position, position + len(data))
            if error.errno in FULL:
                raise CopyRefused(
                    f"writing to the log failed: {error}; it is tried again"
                ) from error
            self.failed = f"writing to the log failed: {error}; nothing more is copied"
            raise CopyRefused(self.failed) from error
        self._written(segment)

    def _begin_at_position(self) -> None:
        self.received_position = self.position
        self._begun = None
        self._has_ended = False

    def _verify(self, segment: Segment, start: int, data: memoryview) -> None:
        """Count the records that are whole with the bytes received last, which are written from
        position `start` on. Raises BadRecord.
        """
        received = self.received_position
        assert start + len(data) == received
        while received - self.position >= HEADER_BYTES:
            position, header = self.position, self._begun
            if header is None:
                if position >= start:
                    header = read_header(data, position - start, position)
                else:
                    header = read_header(segment.view, position - segment.base, position)
                if header.next_position > _end_of(segment):
                    raise BadRecord(f"position {position}: a record beyond the segment's end")
                check_order(header, self.epochs.last)
                self._begun, self._checksum = header, 0
                position += CHECKED_FROM
                if position < start:  # The header came in two pieces.
                    at = position - segment.base
                    self._checksum = crc32c(segment.view[at : start - segment.base])
            end = header.next_position
            piece = data[max(0, position - start) : end - start]
            self._checksum = crc32c(piece, self._checksum)
            if end > received:
                return
            self._begun = None
            check_checksum(header, self._checksum)
            if header.kind == RecordKind.SEGMENT_END:
                if end != received:
                    raise BadRecord(f"position {self.position}: bytes behind the segment's end")
                self._has_ended = True
                return
            self.epochs.add(header.epoch, self.position, end)
            self.position = end
            if header.properties_length or header.kind == RecordKind.BUNDLE:
                self.has_properties = True


def _end_of(segment: Segment) -> int:
    return segment.base + segment.capacity


def _within(ranges: Iterable[tuple[int, int]], segments: list[Segment]) -> list[tuple[int, int]]:
    """Return ranges as far as they lie in segments."""
    return [
        (max(start, segment.base), min(end, _end_of(segment)))
        for start, end in ranges
        for segment in segments
        if start < _end_of(segment) and segment.base < end
    ]
