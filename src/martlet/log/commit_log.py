"""The commit log: one append-only sequence of records for all topics of a broker.

A record never crosses the end of a segment (see `martlet.log.segmented`): the rest of a full one is
closed by a SEGMENT_END record, or is too short for a header. A segment begins with its head, the
full journal, so that older segments can be retired.

The log reads no clock and starts no thread. It hands out a flush as a job; the server runs it in a
thread that may block, and reports the outcome.
"""

from __future__ import annotations

import errno
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from martlet.log.record import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    BatchSlot,
    Contents,
    Lone,
    RecordFlag,
    RecordKind,
    align8,
    begin_bundle,
    bundle_length,
    journal_record,
    lone_length,
    read_record,
    seal,
    seal_again,
    write_batches,
)
from martlet.log.segmented import SegmentedLog
from martlet.log.storage import FULL, Segment, Storage, StorageFull

_BATCH = int(RecordKind.BATCH)
_HEAD_GROWTH_BYTES = 1024
"""An estimate of how much longer the next segment's head is than the last one's, in bytes."""


class WritesRefused(Exception):
    """The log accepts no writes, for now or until a restart; the text says why and what to do."""


class CommitLog(SegmentedLog):
    """An opened log, ready for appends at `position`.

    Args, beside those of `SegmentedLog`:
        epoch: the number of this run of the broker; each record carries it.
        segment_bytes: the capacity of new segments.
    """

    def __init__(
        self,
        storage: Storage,
        segments: list[Segment],
        position: int,
        epoch: int,
        segment_bytes: int,
        durable_position: int = 0,
    ) -> None:
        assert segment_bytes % 8 == 0
        super().__init__(storage, segments, position, durable_position)
        self.epoch = epoch
        self.full: str | None = None
        self.is_tight = False
        """Whether the last attempt to reserve segments for messages found no room for all."""
        self.refusal: str | None = None
        """With replicas: why the log takes no writes, although it has not failed."""
        self.on_roll: Callable[[], None] = lambda: None
        """Called when a segment begins, to write the full journal at its head."""
        self.on_full: Callable[[], bool] = lambda: False
        """Called when no segment can be allocated for a batch. Returns whether it freed space. It
        may retire segments, and leave a spent one, but appends nothing else. May raise StorageFull,
        which counts as False.
        """
        self.on_refused: Callable[[str], None] = lambda reason: None
        """Called when a write is refused."""
        self.refuse_percent = 0
        """Above this percentage of disk usage no segment begins for messages; 0 for no limit."""
        self.begun_count = 0
        """The number of segments begun; the retention code may count it down."""
        self.refused_count = 0
        """The number of refused appends."""
        self.condemned: list[Segment] | None = None
        """Retired segments whose RETIRED entry is not written yet; None without replicas."""
        self._kept: list[Segment] = []
        """With replicas: retired segments whose files stay until `remove`, by base position."""
        self.segment_bytes = segment_bytes
        self._rolling = False
        self._doubtful_end: int | None = None
        """Where bytes of writes end that a full disk broke off, behind `position`."""
        self._kept_end = 0
        """What `_end` is once those bytes are cleared."""
        self._wanted_bytes = 0
        """The length of the last record that needed another segment."""
        self._copied_to = position
        """Copies of batches whose originals may be retired lie below this position."""
        self._lone = Lone()
        self._head_bytes = 0
        self._head_end = -1
        """Behind the head of the last segment; -1 where it has none, or an incomplete one."""
        self._heads_from = 0
        """The heads of segments before this position are not trusted."""
        self.checkpointed_position = durable_position
        """The position of the newest checkpoint; the broker raises it."""
        if not segments or position > segments[-1].base + segments[-1].capacity:
            self._begin_segment(storage.create(position, segment_bytes))
        else:
            self._head_end = position
        self._current = self.segments[-1]
        self._end = self._current.base + self._current.capacity
        assert self._current.base <= position <= self._current.base + self._current.capacity
        with suppress(StorageFull):
            storage.reserve(segment_bytes, 1)

    def append_batch(self, record: memoryview, flags: int, contents: Contents) -> int:
        """Seal a batch laid out in `record` and write it. Returns its position.

        Raises:
            WritesRefused: the disk is full, or a write or a flush has failed.
        """
        if self.failed is not None or self.position + len(record) > self._end:
            self.make_room(len(record), journal=False)
        position = self.position
        if contents.properties_length:
            self.has_properties = True
        seal(record, _BATCH, flags, position, self.epoch, contents)
        self._write(record)
        assert self._current.base <= position < self.position <= self._end
        return position

    def append_lone(
        self,
        body: bytes | memoryview,
        id: int,
        topic: int,
        queue: int,
        offset: int,
        stored_at_ns: int,
    ) -> tuple[int, int, memoryview]:
        """Lay out, seal and write a batch of one message. Returns its position, its length and its
        frame, as stored in the log.

        Raises:
            WritesRefused: as `append_batch`.
        """
        length = lone_length(len(body))
        if self.failed is not None or self.position + length > self._end:
            self.make_room(length, journal=False)
        position = self.position
        self._write(
            self._lone.record(body, id, position, self.epoch, topic, queue, offset, stored_at_ns)
        )
        at = position - self._current.base + HEADER_BYTES
        return position, length, self._current.view[at : at + FRAME_HEADER_BYTES + len(body)]

    def append_journal(
        self,
        kind: RecordKind,
        payload: bytes,
        *,
        topic: int,
        stored_at_ns: int,
        needed: bool = True,
    ) -> int:
        """Write a journal entry. Returns its position.

        The journal may use the reserved segment, so that consumers can go on, and free space, while
        publishers are refused; an entry that is not `needed` for that may not begin it.

        Raises:
            WritesRefused: as `append_batch`.
        """
        self.make_room(align8(HEADER_BYTES + len(payload)), journal=needed)
        position = self.position
        record = journal_record(
            kind,
            payload,
            position=position,
            epoch=self.epoch,
            topic=topic,
            stored_at_ns=stored_at_ns,
        )
        self._write(record)
        return position

    def append_entries(
        self, kind: RecordKind, entries: Sequence[tuple[int, bytes]], stored_at_ns: int
    ) -> None:
        """Write journal entries, each with its topic's number, in one write: all or none. Raises
        WritesRefused, as `append_journal`.
        """
        self.make_room(sum(align8(HEADER_BYTES + len(e)) for _, e in entries), journal=True)
        position = self.position
        records = bytearray()
        for topic, payload in entries:
            records += journal_record(
                kind,
                payload,
                position=position + len(records),
                epoch=self.epoch,
                topic=topic,
                stored_at_ns=stored_at_ns,
            )
        self._write(records)

    def append_bundle(
        self, entry: bytes, lengths: Sequence[int], slots: Iterable[BatchSlot], stored_at_ns: int
    ) -> list[int]:
        """Write batches of these lengths, all or none, with the journal entry that they depend on.
        Returns their positions.

        `slots` yields them one after the other, so that only one is in memory; where it raises an
        error, the log stays unchanged. Raises WritesRefused.
        """
        length = bundle_length(entry, lengths)
        self.make_room(length, journal=False)
        position = self.position
        top = begin_bundle(entry, lengths, position, self.epoch, stored_at_ns)
        positions = write_batches(top, self._noted(slots), position, self.epoch, self._write_at)
        self._write(top)  # Last: only the header makes the bundle valid.
        self.position = position + length
        assert not positions or position < positions[0] <= positions[-1] < self.position
        assert self.position <= self._end
        return positions

    def _noted(self, slots: Iterable[BatchSlot]) -> Iterator[BatchSlot]:
        """Yield the batches, and note whether any has properties."""
        for slot in slots:
            if slot.contents.properties_length:
                self.has_properties = True
            yield slot

    def append_again(self, record: bytearray) -> int:
        """Write a copy of an older record, offsets included. Returns its position.

        Raises:
            BadRecord: the copy does not verify.
            WritesRefused: as `append_journal`.
        """
        header, _ = read_record(record, 0, int.from_bytes(record[16:24], "little"))
        self.make_room(len(record), journal=True)
        position = self.position
        flags = (header.flags | RecordFlag.RELOCATED) & ~RecordFlag.BUNDLED
        seal_again(record, position=position, epoch=self.epoch, flags=flags)
        if header.properties_length:
            self.has_properties = True
        self._write(record)
        self._copied_to = self.position
        return position

    def distrust_heads(self) -> None:
        """Trust no head so far, as it may be damaged; begin a segment if there is space."""
        self._heads_from = self.position
        self._head_end = -1
        with suppress(WritesRefused):
            self._roll(0, journal=True)

    def end_segment(self) -> None:
        """Make the next record begin a segment: `on_roll` then writes into its head the state that
        could not be written before.
        """
        self._end = self._kept_end = self.position

    def refuse_writes(self, reason: str) -> None:
        """Take no more writes, as another replica is to take over from here."""
        self.refusal = reason
        self._end = self._kept_end = self.position  # So that each write asks for room first.

    def accept_writes(self) -> None:
        """Take writes again, from a new segment on, as no other replica took over."""
        self.refusal = None

    def make_room(self, length: int, *, journal: bool) -> None:
        """Make a record of `length` bytes fit at `position`, in a new segment if necessary."""
        reason = self.failed or self.refusal
        if reason is not None:
            raise self._refuse(reason)
        if self._doubtful_end is not None:
            self._clear_doubtful(self._doubtful_end)
        while self.position + length > self._end:
            self._roll(length, journal=journal)
        assert self._current.base <= self.position <= self._end - length

    def _roll(self, length: int, *, journal: bool) -> None:
        """Begin a segment with space for its head and for `length` bytes more."""
        capacity = self.segment_bytes
        if align8(length) + self._head_bytes > capacity:
            capacity = align8(length) + self._head_bytes + _HEAD_GROWTH_BYTES
        self._wanted_bytes = align8(length)
        while True:
            try:
                if not journal:
                    self._reserve()
                segment = self.storage.create(self._current.base + self._current.capacity, capacity)
                break
            except StorageFull as error:
                # Making room may need a segment too, and meets the same limit.
                with suppress(StorageFull):
                    # What is condemned frees space only once that is confirmed.
                    if not journal and not self.condemned and self.on_full():
                        if self.position + length <= self._end:
                            return  # The spent segment was left.
                        continue
                if self.failed is not None:
                    raise self._refuse(self.failed) from error
                self.full = self._why_full(error)
                raise self._refuse(self.full) from error
            except OSError as error:
                self.full = (
                    f"no segment could be begun: {error}; it is tried again with each message"
                )
                raise self._refuse(self.full) from error
        self._go_on_in(segment)

    def _why_full(self, error: StorageFull) -> str:
        """Say why messages are refused, and what makes room for them."""
        is_limit = error.errno == errno.EDQUOT
        way_out = "the limit is raised" if is_limit else "room is made on the disk"
        free = "" if is_limit else ", or a smaller --min-free-bytes, what it leaves free"
        return (
            f"the disk is full: {error.strerror}; messages are accepted again when consuming what"
            f" is stored has freed segments, or when {way_out}. A broker that is started again with"
            f" a smaller --max-bytes-per-file, the size of a segment{free}, needs less room"
        )

    @property
    def is_spent(self) -> bool:
        """Whether the current segment has no room for what is refused, and an empty one has."""
        if self.failed is not None or self.refusal is not None or self._doubtful_end is not None:
            return False
        return self.left_bytes < self._wanted_bytes <= self.segment_bytes - self._head_bytes

    def leave_segment(self) -> bool:
        """Begin a segment, if need be the one that is reserved for the journal, so that the spent
        one can be retired. Returns False where there is none.
        """
        base = self._current.base + self._current.capacity
        try:
            segment = self.storage.create(base, self.segment_bytes)
        except OSError:
            return False  # `full` says why messages are refused.
        self._go_on_in(segment)
        return True

    def _go_on_in(self, segment: Segment) -> None:
        """Close the current segment and begin another one, with the full journal as its head."""
        # Only now: as long as no segment could be allocated, shorter records may still fit into
        # the old one.
        try:
            self._close_segment()
        except WritesRefused:
            self.storage.retire(segment)
            raise
        self._begin_segment(segment)
        self.full = None
        if not self._rolling:
            base = self.position
            self._rolling = True
            try:
                self.on_roll()
            except WritesRefused:
                self._heads_from = segment.base + segment.capacity  # This one is incomplete.
                raise
            finally:
                self._rolling = False
            assert base <= self.position <= self._end
            self._head_bytes = self.position - base
            self._head_end = self.position

    def _refuse(self, reason: str) -> WritesRefused:
        self.refused_count += 1
        self.on_refused(reason)
        return WritesRefused(reason)

    def _reserve(self) -> None:
        """Reserve space for one more segment, and for one that only the journal may use."""
        self.is_tight = True
        if self.refuse_percent:
            percent = self.storage.fill().percent
            if percent > self.refuse_percent:
                raise StorageFull(
                    errno.EDQUOT,
                    f"{percent:.1f} % are used, and no segment is begun for messages above"
                    f" {self.refuse_percent} % (--disk-refuse-percent)",
                )
        self.storage.reserve(self.segment_bytes, 2)
        self.is_tight = False

    def refresh_full(self) -> None:
        """Update `full`: a disk that was full may have free space again."""
        if self.full is not None:
            with suppress(OSError):
                self._reserve()
                self.full = None

    def _close_segment(self) -> None:
        left = self._current.base + self._current.capacity - self.position
        if left >= HEADER_BYTES:
            end = journal_record(
                RecordKind.SEGMENT_END,
                b"",
                position=self.position,
                epoch=self.epoch,
                topic=0,
                stored_at_ns=0,
            )
            self._write(end)
            self.position -= len(end)
            assert left == self._current.base + self._current.capacity - self.position

    def _begin_segment(self, segment: Segment) -> None:
        self._add(segment)
        self.begun_count += 1
        self._current = segment
        self._end = segment.base + segment.capacity
        self._head_end = -1
        self._doubtful_end = None

    def _write(self, record: memoryview | bytearray) -> None:
        current = self._current
        try:
            current.write(record, self.position - current.base)
        except OSError as error:
            raise self._fail(error, self.position + len(record)) from error
        self.written(len(record))

    def written(self, length: int) -> None:
        """Note that a record of a length was written at the end of the log."""
        self.position += length
        if not self._dirty or self._dirty[-1] is not self._current:
            self._dirty.append(self._current)

    def _write_at(self, record: memoryview, position: int) -> None:
        """Write bytes that become valid only when the bytes before them are written."""
        try:
            self._current.write(record, position - self._current.base)
        except OSError as error:
            raise self._fail(error, position + len(record)) from error

    def _fail(self, error: OSError, end: int) -> WritesRefused:
        """Take no more writes after one failed; if only space was missing, try the next one."""
        if error.errno in FULL:
            if self._doubtful_end is None:
                self._kept_end = self._end
            self._doubtful_end = end
            self._end = self.position  # So that the next write asks for room first.
            self.full = (
                f"the disk is full: writing to the log failed: {error}; it is tried again with"
                " each message: make room on the disk"
            )
            return self._refuse(self.full)
        self.failed = f"writing to the log failed: {error}; no more messages are taken"
        return self._refuse(self.failed)

    def _clear_doubtful(self, end: int) -> None:
        """Zero the bytes of refused records, of which one may be whole behind the next record's
        end. Raises WritesRefused.
        """
        try:
            self._current.write(bytes(end - self.position), self.position - self._current.base)
        except OSError as error:
            raise self._fail(error, end) from error
        self._doubtful_end = self.full = None
        self._end = self._kept_end

    @property
    def left_bytes(self) -> int:
        """The free bytes of the current segment."""
        return self._end - self.position

    @property
    def closed_segments(self) -> list[Segment]:
        """All segments except the current one."""
        return [segment for segment in self.segments if segment is not self._current]

    def is_releasable(self, segment: Segment) -> bool:
        """Whether a segment may be retired before the next checkpoint is durable.

        This requires a durable state behind the segment, from the last checkpoint or a later
        segment's head, and durable copies of the batches that are still needed.
        """
        durable = self.durable_position
        if durable < self._copied_to:
            return False
        if segment.base + segment.capacity <= self.checkpointed_position:
            return True
        if 0 <= self._head_end <= durable:
            return True
        return any(
            later.base > segment.base and later.base + later.capacity <= durable
            for later in self.closed_segments
            if later.base >= self._heads_from
        )

    def retire(self, segment: Segment) -> None:
        """Take a segment out of the log that nothing needs; never the current one."""
        assert segment is not self._current and segment not in self._dirty
        self._drop(segment)
        assert self.segments[-1] is self._current
        if self.condemned is None:
            self.storage.retire(segment)
        else:
            self.condemned.append(segment)
            insort(self._kept, segment, key=lambda kept: kept.base)

    def remove(self, segment: Segment) -> None:
        """Remove the file of a retired segment: it is confirmed that nothing needs it."""
        self._kept.remove(segment)
        self.storage.retire(segment)

    def stored_at(self, position: int) -> Segment | None:
        """As `SegmentedLog.stored_at`, with retired segments whose files are kept."""
        for kept in self._kept:
            if kept.base <= position < kept.base + kept.capacity:
                return kept
        return super().stored_at(position)

    def is_stored(self, segment: Segment) -> bool:
        """Whether a segment's file is there, that of a retired one included."""
        return segment in self._kept or super().is_stored(segment)

    def following(self, position: int) -> Segment | None:
        """As `SegmentedLog.following`, with retired segments whose files are kept."""
        segment = super().following(position)
        kept = next((kept for kept in self._kept if kept.base >= position), None)
        if kept is None or (segment is not None and segment.base < kept.base):
            return segment
        return kept
