"""The cursor: a channel's place in a queue.

What was never delivered is the log itself, from `next` on, and is handed out as slices of it.
What is in flight stands in the window, or among the stragglers once it needs a time of its own.
Everything else below `next` is finished.

A deferred batch is not waited for: as soon as it is stored its messages become stragglers with
their time, and the cursor passes over it when it comes there.  A batch for one channel alone, such
as messages that are brought back to it, is one that is due at once there and never elsewhere: in
place of the time it has the channel's number, negative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from martlet.broker.queue.consumer import ChannelConsumer
from martlet.broker.queue.in_flight import InFlightWindow
from martlet.broker.queue.pending import PendingMessages
from martlet.broker.queue.queue_log import QueueLog
from martlet.broker.queue.tag_filter import TagFilter, runs
from martlet.log.commit_log import CommitLog
from martlet.log.index import IndexEntry
from martlet.log.record import (
    HEADER_BYTES,
    BadRecord,
    align8,
    payload_length,
    properties_of,
    read_record,
)
from martlet.properties.block import Block, entry_of, frame

if TYPE_CHECKING:
    from martlet.broker.queue.crash_charges import CrashCharges
    from martlet.log.index import Rows

_ATTEMPTS_AT = 16
"""Where the attempts stand in a frame."""
MAX_ATTEMPTS = 0xFFFF
_SCHEDULE_ROWS = 4096
_NOTHING = memoryview(b"")
MAX_LOOKED = 1024
"""So many batches are searched at a time for messages that a filter lets through."""
MAX_GRANT_BYTES = 1 << 19
"""A grant ends with the batch that passes this, so that one consumer never gets all at once."""


class Cursor:
    """The state of one channel on one queue.

    Args:
        log: where the messages are.
        queue: whose messages.
        start: the first offset that concerns the channel.
    """

    def __init__(self, log: CommitLog, queue: QueueLog, start: int) -> None:
        self._log = log
        self.queue = queue
        self.window = InFlightWindow(start)
        self.stragglers: PendingMessages[ChannelConsumer] = PendingMessages()
        self.deferred_ahead = 0
        """How many messages from `next` on are deferred, and so passed over."""
        self.journal_number = 0
        """The number of the last entry in the journal."""
        self.charges: CrashCharges | None = None
        """Of a group; None where there never were any."""
        self.own_mark = 0
        """Batches that have this in place of a time come from here."""
        self.on_lost: Callable[[int, int, str], None] = lambda first, end, why: None
        self._row = -1
        self._entry: IndexEntry | None = None
        self._payload_end = 0
        self._record: memoryview = _NOTHING
        self._ends: memoryview | None = None

    @property
    def next(self) -> int:
        """The first offset that was not yet delivered."""
        return self.window.next

    @property
    def lowest_needed(self) -> int:
        """Below this offset everything is finished."""
        floor = self.window.floor
        return min(floor, min(self.stragglers.by_offset, default=floor))

    def schedule(self, first: int, end: int, now_ns: int, channel: int) -> int | None:
        """Make stragglers of the deferred messages from offset `first` up to `end`, and of those
        that are for that channel alone; those for another one are passed over.

        Returns the earliest time that came to be among them.
        """
        earliest: int | None = None
        index = self.queue.index
        number = index.find(first)
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
                        due_ns = now_ns
                    earliest = min(earliest or due_ns, due_ns)
                    self._defer(begin, stop, due_ns, now_ns)
            number += len(rows)
        return earliest

    def _defer(self, first: int, end: int, due_ns: int, now_ns: int) -> None:
        assert first >= self.next
        for offset in range(first, end):
            self.stragglers.wait(offset, 0, due_ns, now_ns)
        self.deferred_ahead += end - first

    def take(
        self, holder: int, max_count: int, limit: int, *, with_properties: bool = False
    ) -> tuple[list[memoryview | bytes], int]:
        """Grant up to `max_count` messages below offset `limit` to a holder.

        Returns their frames, as slices of the log, and how many they are.  Where they have
        properties that are wanted, those come in a frame of their own before them.
        """
        window = self.window
        parts: list[memoryview | bytes] = []
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
            part = self._slice(entry, begin, end)
            if with_properties:
                self._append_property_frame(entry, begin, end, parts)
            parts.append(part)
            window.grant(holder, entry.first_offset + end)
            taken += end - begin
            taken_bytes += len(part)
        entry = self._entry
        if entry is not None and window.next >= entry.end_offset:
            self._let_record_go()
        return parts, taken

    def take_matching(
        self, holder: int, max_count: int, limit: int, wanted: TagFilter, *, with_properties: bool
    ) -> tuple[list[memoryview | bytes], int]:
        """The same of messages that a filter lets through; it goes over the others.

        It may return none though there are some: it looks at so many batches and no more.
        """
        window = self.window
        parts: list[memoryview | bytes] = []
        taken = taken_bytes = looked = 0
        while taken < max_count and window.next < limit and taken_bytes < MAX_GRANT_BYTES:
            entry = self._entry
            first = window.next
            if entry is None or not entry.first_offset <= first < entry.end_offset:
                looked += 1
                if looked > MAX_LOOKED:
                    break
                if not self._move(first, limit):
                    continue
                entry = self._entry
                assert entry is not None
            base = entry.first_offset
            numbers = wanted.numbers(properties_of(self._record), first - base, entry.count)
            for begin, end in runs(numbers[: max_count - taken]):
                if base + begin > window.next:
                    self._skip(base + begin)
                if with_properties:
                    self._append_property_frame(entry, begin, end, parts)
                part = self._slice(entry, begin, end)
                parts.append(part)
                taken_bytes += len(part)
                window.grant(holder, base + end)
            if len(numbers) <= max_count - taken and window.next < entry.end_offset:
                self._skip(entry.end_offset)
            taken += min(len(numbers), max_count - taken)
        entry = self._entry
        if entry is not None and window.next >= entry.end_offset:
            self._let_record_go()
        return parts, taken

    def take_one(self, limit: int) -> tuple[memoryview, bytes] | None:
        """Pass one message below offset `limit`, which its caller keeps in mind. Returns its frame
        and its properties, packed; None where there was no message, though `next` may have moved.
        """
        offset = self.window.next
        entry = self._entry
        if entry is None or not entry.first_offset <= offset < entry.end_offset:
            if not self._move(offset, limit):
                return None
            entry = self._entry
            assert entry is not None
        number = offset - entry.first_offset
        block = properties_of(self._record)
        frame = self._slice(entry, number, number + 1)
        properties = b"" if block is None else entry_of(block, number)
        self._skip(offset + 1)
        if offset + 1 == entry.end_offset:
            self._let_record_go()
        return frame, properties

    def _append_property_frame(
        self, entry: IndexEntry, begin: int, end: int, parts: list[memoryview | bytes]
    ) -> None:
        """Add the frame with the properties of some of the current batch's messages."""
        block = properties_of(self._record)
        if block is not None:
            is_all = end - begin == entry.count
            properties = block if is_all else Block(block).cut(begin, end)
            if properties:
                parts.append(frame(properties))

    def _let_record_go(self) -> None:
        """Drop the bytes of a finished batch: an idle channel would keep its segment's space on the
        disk, though the segment has gone.
        """
        self._record, self._ends = _NOTHING, None

    def _move(self, offset: int, limit: int) -> bool:
        """Make the batch that holds `next` the current one.

        Returns False where `next` was moved instead, over what is not to be delivered from here:
        deferred messages, and those that have gone.
        """
        index = self.queue.index
        row = self._row + 1
        if self._entry is None or not index.first_row <= row < index.end_row:
            row = index.find(offset)
        entry = index.row(row) if index.first_row <= row < index.end_row else None
        if entry is None or not entry.first_offset <= offset < entry.end_offset:
            row = index.find(offset)
            entry = index.row(row) if row < index.end_row else None
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

    def read(self, entry: IndexEntry) -> tuple[int, memoryview]:
        """Where a batch's frames end in its record, and the record.

        What another run of the broker wrote is verified in full. Raises BadRecord.
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
        """The frames of the current batch from number `begin` up to `end`."""
        if end - begin == entry.count:
            return self._record[HEADER_BYTES : self._payload_end]
        if self._ends is None:
            self._ends = frame_ends(entry, self._payload_end, self._record)
        start = self._ends[begin - 1] if begin else 0
        return self._record[HEADER_BYTES + start : HEADER_BYTES + self._ends[end - 1]]

    def frame(self, offset: int, attempts: int) -> bytearray | None:
        """Copy one message's frame, with its attempts; None where it has gone."""
        index = self.queue.index
        row = index.find(offset)
        entry = index.row(row) if row < index.end_row else None
        if entry is None or not entry.first_offset <= offset < entry.end_offset:
            self.on_lost(offset, offset + 1, "no batch of the index holds it")
            return None
        try:
            payload_end, record = self.read(entry)
        except BadRecord as error:
            self.on_lost(offset, offset + 1, str(error))
            return None
        frame = bytearray(self.frame_of(entry, payload_end, record, offset))
        in_frame = min(attempts, MAX_ATTEMPTS)
        frame[_ATTEMPTS_AT : _ATTEMPTS_AT + 2] = in_frame.to_bytes(2, "big")
        return frame

    def properties(self, offset: int) -> bytes:
        """The properties of one message, packed; empty where it has none, or has gone."""
        index = self.queue.index
        row = index.find(offset)
        entry = index.row(row) if row < index.end_row else None
        if entry is None or not entry.first_offset <= offset < entry.end_offset:
            return b""
        try:
            _, record = self.read(entry)
        except BadRecord:
            return b""  # `frame` reports it.
        block = properties_of(record)
        return b"" if block is None else entry_of(block, offset - entry.first_offset)

    @staticmethod
    def frame_of(
        entry: IndexEntry, payload_end: int, record: memoryview, offset: int
    ) -> memoryview:
        """One message's frame in a batch that was read, as it lies there."""
        number = offset - entry.first_offset
        ends = frame_ends(entry, payload_end, record)
        start = ends[number - 1] if number else 0
        return record[HEADER_BYTES + start : HEADER_BYTES + ends[number]]

    def go_back(self, offset: int) -> None:
        """Go on at an offset up to `next`, as though nothing from there on had been delivered; none
        of it is in flight. What is deferred is to be scheduled again.
        """
        assert offset <= self.next
        for known in [known for known in self.stragglers.by_offset if known >= offset]:
            self.stragglers.remove(known)
        self.window.go_back(offset)
        self._entry = None
        self._let_record_go()

    def skip_to(self, offset: int, deferred_ahead: int) -> None:
        """Go on at an offset behind `next`, with so many deferred messages from there on."""
        assert offset >= self.next
        self._skip(offset)
        self.deferred_ahead = deferred_ahead
        self._entry = None
        self._let_record_go()


def frame_ends(entry: IndexEntry, payload_end: int, record: memoryview) -> memoryview:
    """Where each frame of a batch ends, from the first one's start: an array of u32, in place."""
    ends_at = align8(payload_end)
    return record[ends_at : ends_at + 4 * entry.count].cast("I")
