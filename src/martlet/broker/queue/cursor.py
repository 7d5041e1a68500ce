"""The cursor: a channel's position in a queue.

New messages are in the log, from `next` on, and are delivered as slices of it. Messages in flight
are in the window, or among the pending messages once one needs a time of its own. Everything else
below `next` is finished::

    offsets    | finished | in flight: window, or pending | never delivered      |
               0          ^ lowest_needed                 ^ next                 ^ the queue's end

The cursor does not wait for a deferred batch: as soon as the batch is stored, its messages become
pending ones with their time, and the cursor skips it. A batch for a single channel, such as
redriven messages, is due at once there and never elsewhere: in place of the time it has the
channel's number, negated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from martlet.broker.offset_ranges import Offsets, merged
from martlet.broker.queue.consumer import ChannelConsumer
from martlet.broker.queue.in_flight import InFlightWindow
from martlet.broker.queue.pending import PendingMessages
from martlet.broker.queue.queue_log import QueueLog
from martlet.log.commit_log import CommitLog
from martlet.log.index import IndexEntry, Rows
from martlet.log.record import (
    HEADER_BYTES,
    BadRecord,
    align8,
    payload_length,
    properties_of,
    read_record,
)
from martlet.properties.block import Block, entries_between, entry_of, frame

if TYPE_CHECKING:
    from martlet.broker.queue.channel_filter import ChannelFilter
    from martlet.broker.retry import CrashCharges

_ATTEMPTS_AT = 16
"""The offset of the attempts in a frame."""
MAX_ATTEMPTS = 0xFFFF
_SCHEDULE_ROWS = 4096
_NOTHING = memoryview(b"")
MAX_TESTED = 1024
"""Batches searched in one turn of the loop for messages that a filter accepts."""
MAX_AT_ONCE = 1024
"""The messages of a batch that a filter tests at once."""
_MESSAGES_A_BATCH = 8
"""So many tested messages count as much as a batch: they take some microseconds."""
MAX_GRANT_BYTES = 1 << 19
"""A grant ends with the batch that exceeds this size, so that one consumer does not get everything
at once.
"""


class _OpenBatch(NamedTuple):
    """A batch that was read."""

    row: int
    """The number of its row in the index."""
    entry: IndexEntry
    payload_end: int
    """The end of its frames in its record."""
    record: memoryview
    block: Block | None
    """Its properties, if it has any and they are requested."""


class _Tested(NamedTuple):
    """The messages that a filter has tested: a consumer may take them one at a time."""

    channel_filter: ChannelFilter
    first: int
    stop: int
    offsets: Offsets
    """The offsets from `first` up to `stop` that it accepts."""


class Cursor:
    """The state of one channel on one queue, from an offset on."""

    def __init__(self, log: CommitLog, queue: QueueLog, start: int) -> None:
        self._log = log
        self.queue = queue
        self.window = InFlightWindow(start)
        self.pending: PendingMessages[ChannelConsumer] = PendingMessages()
        self.deferred_ahead = 0
        """The number of messages from `next` on to skip: deferred ones, and another channel's."""
        self.journal_number = 0
        """The number of the last journal entry."""
        self.charges: CrashCharges | None = None
        """The charges of a group; None if there never were any."""
        self.own_mark = 0
        """Batches with this mark in place of a time are delivered by this cursor."""
        self.on_lost: Callable[[int, int, str], None] = lambda first, end, why: None
        self._row = -1
        self._entry: IndexEntry | None = None
        self._payload_end = 0
        self._record: memoryview = _NOTHING
        self._ends: memoryview | None = None
        self.filtered_count = 0
        """The number of messages that a filter has rejected, since the broker was started."""
        self._tested_count = 0
        self._tested: _Tested | None = None

    @property
    def next(self) -> int:
        """The first offset that was not delivered yet."""
        return self.window.next

    @property
    def lowest_needed(self) -> int:
        """The offset below which everything is finished."""
        floor = self.window.floor
        return min(floor, min(self.pending.by_offset, default=floor))

    def schedule(self, first: int, end: int, now_ns: int, channel: int) -> int | None:
        """Make pending the deferred messages from offset `first` up to `end`, and those for that
        channel alone. Returns the earliest of their times, as a running time like `now_ns`.
        """
        earliest: int | None = None
        index = self.queue.index
        number = index.find(first)
        now_date_ns = now_ns + self.pending.wall_ahead_ns
        while number < index.end_row and index.row(number).first_offset < end:
            rows: Rows = index.array(number, number + _SCHEDULE_ROWS)
            for row in rows[rows["deliver_at_ns"] != 0].tolist():
                entry = IndexEntry._make(row)
                begin, stop = max(first, entry.first_offset), min(end, entry.end_offset)
                if begin < stop:
                    due_ns = entry.deliver_at_ns
                    if due_ns < 0:
                        if due_ns != -channel:
                            self.deferred_ahead += stop - begin
                            continue
                        due_ns = now_date_ns
                    earliest = min(earliest or due_ns, due_ns)
                    self._defer(begin, stop, due_ns, now_ns)
            number += len(rows)
        return None if earliest is None else earliest - self.pending.wall_ahead_ns

    def _defer(self, first: int, end: int, due_ns: int, now_ns: int) -> None:
        assert first >= self.next
        for offset in range(first, end):
            self.pending.defer(offset, due_ns, now_ns)
        self.deferred_ahead += end - first

    def take(
        self, holder: int, max_count: int, limit: int, *, with_properties: bool = False
    ) -> tuple[list[memoryview | bytes], int]:
        """Grant up to `max_count` messages below offset `limit` to a holder. Returns the frames, as
        slices of the log, and their number; properties, if requested, precede in their own frame.
        """
        window = self.window
        frames: list[memoryview | bytes] = []
        taken = taken_bytes = 0
        while taken < max_count and window.next < limit and taken_bytes < MAX_GRANT_BYTES:
            entry = self._entry
            first = window.next
            if entry is None or not entry.first_offset <= first < entry.end_offset:
                if not self._move(first, limit):
                    continue
                entry = self._entry
                assert entry is not None
            begin = first - entry.first_offset
            end = min(entry.count, begin + max_count - taken)
            piece = self._slice(entry, begin, end)
            if with_properties:
                self._append_property_frame(entry, begin, end, frames)
            frames.append(piece)
            window.grant(holder, entry.first_offset + end)
            taken += end - begin
            taken_bytes += len(piece)
        self._release_finished()
        return frames, taken

    def take_matching(
        self,
        holder: int,
        max_count: int,
        limit: int,
        channel_filter: ChannelFilter,
        *,
        with_properties: bool,
    ) -> tuple[list[memoryview | bytes], int]:
        """Grant messages that a filter accepts, and skip the others. It tests a limited number (see
        `may_test_more`), so it may return none although there are some.
        """
        window = self.window
        frames: list[memoryview | bytes] = []
        taken = taken_bytes = self._tested_count = 0
        while (
            taken < max_count
            and window.next < limit
            and taken_bytes < MAX_GRANT_BYTES
            and self.may_test_more
        ):
            entry = self._next_entry(limit)
            if entry is None:
                continue
            first, base = window.next, entry.first_offset
            offsets, stop = self.matching(entry, channel_filter)
            some = offsets[: max_count - taken]
            for begin, end in merged(some, some + 1):
                if begin > window.next:
                    self._skip(begin)
                if with_properties:
                    self._append_property_frame(entry, begin - base, end - base, frames)
                piece = self._slice(entry, begin - base, end - base)
                frames.append(piece)
                taken_bytes += len(piece)
                window.grant(holder, end)
            if len(some) == len(offsets) and window.next < stop:
                self._skip(stop)
            taken += len(some)
            self.filtered_count += window.next - first - len(some)
        self._release_finished()
        return frames, taken

    def pass_over(self, limit: int, channel_filter: ChannelFilter) -> None:
        """Skip messages below offset `limit` that a filter rejects, up to one that it accepts or to
        the limited number that it tests.
        """
        self._tested_count = 0
        while self.window.next < limit and self.may_test_more:
            entry = self._next_entry(limit)
            if entry is None:
                continue
            offsets, stop = self.matching(entry, channel_filter)
            end = int(offsets[0]) if len(offsets) else stop
            self.filtered_count += end - self.window.next
            if end > self.window.next:
                self._skip(end)
            if len(offsets):
                return
        self._release_finished()

    def _next_entry(self, limit: int) -> IndexEntry | None:
        """Return the batch that holds `next`, the current one; None where `next` was moved."""
        entry, offset = self._entry, self.window.next
        if entry is None or not entry.first_offset <= offset < entry.end_offset:
            self._tested_count += 1
            return self._entry if self._move(offset, limit) else None
        return entry

    @property
    def may_test_more(self) -> bool:
        """Whether a filter may test more messages in this turn of the loop."""
        return self._tested_count < MAX_TESTED

    def matching(self, entry: IndexEntry, channel_filter: ChannelFilter) -> tuple[Offsets, int]:
        """Return offsets of the current batch from `next` on that a filter accepts, and the offset
        up to which it has tested.
        """
        offset, base = self.next, entry.first_offset
        tested = self._tested
        if (
            tested is None
            or tested.channel_filter is not channel_filter
            or not tested.first <= offset < tested.stop
        ):
            stop = min(entry.end_offset, offset + MAX_AT_ONCE)
            self._tested_count += (stop - offset) // _MESSAGES_A_BATCH
            block = properties_of(self._record)
            numbers = channel_filter.accepted(block, offset - base, stop - base)
            tested = self._tested = _Tested(channel_filter, offset, stop, numbers + base)
        return tested.offsets[np.searchsorted(tested.offsets, offset) :], tested.stop

    def skip_some(self, max_count: int, limit: int) -> list[bytes]:
        """Skip up to `max_count` messages of one batch, below offset `limit`; the caller tracks
        them. Returns their packed properties; none may be skipped although `next` has moved.
        """
        first, entry = self.window.next, self._next_entry(limit)
        if entry is None:
            return []
        end = min(entry.end_offset, first + max_count, limit)
        block = properties_of(self._record)
        base = entry.first_offset
        properties = (
            [b""] * (end - first)
            if block is None
            else entries_between(block, first - base, end - base)
        )
        self._skip(end)
        if end == entry.end_offset:
            self._release_record()
        return properties

    def _append_property_frame(
        self, entry: IndexEntry, begin: int, end: int, frames: list[memoryview | bytes]
    ) -> None:
        """Add the frame with the properties of some of the current batch's messages."""
        block = properties_of(self._record)
        if block is not None:
            is_all = end - begin == entry.count
            properties = block if is_all else Block(block).cut(begin, end)
            if properties:
                frames.append(frame(properties))

    def _release_finished(self) -> None:
        """Release the record of a finished batch, which would keep a retired segment's space."""
        entry = self._entry
        if entry is not None and self.window.next >= entry.end_offset:
            self._release_record()

    def _release_record(self) -> None:
        self._record, self._ends, self._tested = _NOTHING, None, None

    def _move(self, offset: int, limit: int) -> bool:
        """Make the batch that holds `next` the current one. Returns False where `next` was moved
        instead, over messages that are not delivered from here: deferred and deleted ones.
        """
        row, entry = self._find(offset, self._row + 1 if self._entry is not None else -1)
        self._entry = None
        if entry is None or entry.first_offset > offset:
            self._skip(min(limit, entry.first_offset if entry else limit))
            return False
        if entry.deliver_at_ns and entry.deliver_at_ns != self.own_mark:
            self.deferred_ahead -= entry.end_offset - offset
            self._skip(entry.end_offset)
            return False
        try:
            self._payload_end, self._record = self.read(entry)
        except BadRecord as error:
            self.on_lost(offset, entry.end_offset, str(error))
            self._skip(entry.end_offset)
            return False
        self._entry, self._row, self._ends = entry, row, None
        return True

    def _find(self, offset: int, guess: int) -> tuple[int, IndexEntry | None]:
        """Return the number of the row that holds an offset, else of the first behind it, and the
        row, if any; `guess` is a likely number.
        """
        index = self.queue.index
        if index.first_row <= guess < index.end_row:
            entry = index.row(guess)
            if entry.first_offset <= offset < entry.end_offset:
                return guess, entry
        row = index.find(offset)
        return row, index.row(row) if row < index.end_row else None

    def read(self, entry: IndexEntry) -> tuple[int, memoryview]:
        """Return the end of a batch's frames in its record, and the record, which is verified in
        full if another run of the broker wrote it. Raises BadRecord.
        """
        position = entry.position
        record = self._log.view(position, entry.length)
        if record is None:
            raise BadRecord(f"position {position}: its segment is not there")
        length = payload_length(record, position, self._log.epoch)
        if length is None:
            header, _ = read_record(record, 0, position)
            if header.first_offset != entry.first_offset or header.topic != self.queue.topic:
                raise BadRecord(f"position {position}: the record of another batch")
            length = header.payload_length
        return HEADER_BYTES + length, record

    def _skip(self, end: int) -> None:
        self.window.grant(0, end)

    def _slice(self, entry: IndexEntry, begin: int, end: int) -> memoryview:
        """Return the frames of the current batch from number `begin` up to `end`."""
        if end - begin == entry.count:
            return self._record[HEADER_BYTES : self._payload_end]
        if self._ends is None:
            self._ends = frame_ends(entry, self._payload_end, self._record)
        start = self._ends[begin - 1] if begin else 0
        return self._record[HEADER_BYTES + start : HEADER_BYTES + self._ends[end - 1]]

    def messages(
        self, offsets: Iterable[int], *, with_properties: bool
    ) -> Iterator[tuple[int, memoryview | None, bytes]]:
        """Yield rising offsets with the frame of each message, in place, and its packed properties,
        if requested. A deleted one has no frame, and is reported as lost.
        """
        batch: _OpenBatch | None = None
        row = self._row
        for offset in offsets:
            if batch is None or offset >= batch.entry.end_offset:
                batch = self._open(offset, row, with_properties=with_properties)
                if batch is None:
                    yield offset, None, b""
                    continue
                row = batch.row + 1
            entry, block = batch.entry, batch.block
            properties = b"" if block is None else block.of(offset - entry.first_offset)
            frame = self.frame_of(entry, batch.payload_end, batch.record, offset)
            yield offset, frame, properties

    def _open(self, offset: int, guess: int, *, with_properties: bool) -> _OpenBatch | None:
        """Read the batch of an offset, whose row is likely number `guess`. Reports a deleted one as
        lost, and returns None.
        """
        row, entry = self._find(offset, guess)
        if entry is None or entry.first_offset > offset:
            self.on_lost(offset, offset + 1, "no batch of the index holds it")
            return None
        try:
            payload_end, record = self.read(entry)
        except BadRecord as error:
            self.on_lost(offset, offset + 1, str(error))
            return None
        data = properties_of(record) if with_properties else None
        return _OpenBatch(row, entry, payload_end, record, None if data is None else Block(data))

    def frame(self, offset: int, attempts: int) -> bytearray | None:
        """Copy one message's frame, with its attempts; None if it was deleted."""
        ((_, frame, _),) = self.messages((offset,), with_properties=False)
        return None if frame is None else with_attempts(frame, attempts)

    def properties(self, offset: int) -> bytes:
        """Return the packed properties of one message; empty where it has none, or was deleted."""
        _, entry = self._find(offset, self._row)
        if entry is None or entry.first_offset > offset:
            return b""
        try:
            _, record = self.read(entry)
        except BadRecord:
            return b""  # `frame` reports the loss.
        block = properties_of(record)
        return b"" if block is None else entry_of(block, offset - entry.first_offset)

    @staticmethod
    def frame_of(
        entry: IndexEntry, payload_end: int, record: memoryview, offset: int
    ) -> memoryview:
        """Return one message's frame in a batch that was read, in place."""
        number = offset - entry.first_offset
        ends = frame_ends(entry, payload_end, record)
        start = ends[number - 1] if number else 0
        return record[HEADER_BYTES + start : HEADER_BYTES + ends[number]]

    def go_back(self, offset: int) -> None:
        """Move `next` back to an offset from which on nothing is in flight: it is as though nothing
        had been delivered. The caller schedules deferred messages again.
        """
        assert offset <= self.next
        for dropped in [o for o in self.pending.by_offset if o >= offset]:
            self.pending.remove(dropped)
        self.window.go_back(offset)
        self._entry = None
        self._release_record()

    def skip_to(self, offset: int, deferred_ahead: int) -> None:
        """Move `next` forward to an offset, from which on there are that many deferred messages."""
        assert offset >= self.next and deferred_ahead >= 0
        self._skip(offset)
        self.deferred_ahead = deferred_ahead
        self._entry = None
        self._release_record()


def with_attempts(frame: memoryview, attempts: int) -> bytearray:
    """Return a copy of a message's frame with its attempts."""
    copy = bytearray(frame)
    copy[_ATTEMPTS_AT : _ATTEMPTS_AT + 2] = min(attempts, MAX_ATTEMPTS).to_bytes(2, "big")
    return copy


def frame_ends(entry: IndexEntry, payload_end: int, record: memoryview) -> memoryview:
    """Return the end of each frame of a batch, from the first one's start: u32, in place."""
    ends_at = align8(payload_end)
    return record[ends_at : ends_at + 4 * entry.count].cast("I")
