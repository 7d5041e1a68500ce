"""The bucket: delayed messages of one topic that are due in one span of time.

A delayed message is appended to the log when it is published, to a bucket, which is a hidden topic.
When it is due it is appended to its target topic, like any other message. That batch has the flag
FORWARDED, and the properties of its messages name their ids in the bucket. So the batch itself
records that they are done: at no moment is a message in both topics or in neither, and no further
journal entry is needed.

The messages of a bucket that are done, forwarded or cancelled, are marked in a bitmap. Each
checkpoint contains the bitmap, and so does the head of each segment, except for marks whose batches
may not be durable: after a power cut the head may survive and the batch not.

A bucket spans some minutes, an hour or a day, and is deleted when its time is over. So a message
that waits for weeks keeps no index and no segments except those of the few that share its day.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from martlet.broker.context import running_time
from martlet.broker.delayed.done_bitmap import DoneBitmap, Offsets, pack_offsets
from martlet.broker.delayed.due_queue import DueQueue, Key
from martlet.broker.errors import WritesRefused
from martlet.broker.journal.entries import BucketRecord, TopicRecord
from martlet.broker.offset_ranges import Stretch, inside
from martlet.broker.queue.cursor import Cursor
from martlet.broker.queue.queue_log import QueueLog
from martlet.broker.topic.retained import HiddenTopic
from martlet.log.index import Index, IndexEntry, Rows
from martlet.log.record import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    BadRecord,
    RecordFlag,
    RecordKind,
    properties_of,
)
from martlet.properties.block import Block
from martlet.properties.model import Field, system_field, system_value, without

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from martlet.broker.channel.channel import Channel
    from martlet.broker.delayed.delayed_messages import DelayedMessages
    from martlet.broker.topic.topic import Topic, TopicRegistry

PROPERTY = "delayed"
"""The property with the id that a message had while it was delayed."""
MAX_ROWS = 1024
MAX_BYTES = 1 << 20
"""Messages forwarded in one turn of the loop."""
_AGAIN_NS = 1_000_000_000
_MORE_BYTES = 128
"""The maximum growth of a forwarded message, and of a batch, in bytes."""
_LINGER_NS = 600 * 10**9
"""How long a bucket stays after its time: by its messages a repeated send is recognised."""
_SLACK = 1 << 20
"""Marks may lie at most this many messages beyond a bucket's known end."""


class Delayed(NamedTuple):
    """A message of a bucket that is not due yet, with the size of its body."""

    id: str
    stored_at_ns: int
    deliver_at_ns: int
    size_bytes: int
    properties: bytes


class Bucket(HiddenTopic):
    """A bucket: a hidden topic of delayed messages of a target, due in a span of time."""

    def __init__(
        self,
        registry: TopicRegistry,
        delays: DelayedMessages,
        id: int,
        target: Topic,
        start_ns: int,
        end_ns: int,
        queue: QueueLog,
        marks: DoneBitmap,
    ) -> None:
        super().__init__(registry, id, f"%delay-{target.name}-{id}", queue)
        self.ephemeral = target.ephemeral
        self.target: Topic = target
        self.loss_label = f"{target.name}/(delayed)"
        self.start_ns = start_ns
        self.end_ns = end_ns
        self._gone_ns = end_ns + _LINGER_NS
        self._start_offset = queue.start_offset
        self._registry = registry
        self._delays = delays
        self._marks = marks
        self._doubtful: deque[tuple[int, Offsets]] = deque()
        """Marks for a batch that may not be durable yet, and the log position behind it."""
        self._cursor = Cursor(registry.log, queue, 0)
        self._upcoming = DueQueue(queue.index, self._first_row, self.are_done)
        self._alarm = registry.schedule.alarm(self._run)

    def begin(self, forwarded: Offsets) -> None:
        """Schedule the due messages, after a start that found some already forwarded."""
        if len(forwarded):
            self._marks.add(forwarded)
            self._doubtful.append((self._registry.log.position, forwarded))
        self._upcoming.expect(self.start_ns)
        self.follow_wall()

    def follow_wall(self) -> None:
        """Forward due messages, at the start and after the wall clock was set."""
        self._alarm.at(self._registry.clock())

    @property
    def pending_count(self) -> int:
        """The number of messages that are not due yet."""
        return self.queue.end_offset - self._marks.count

    # needed messages

    def describe(self, channels: Sequence[Channel] | None = None) -> TopicRecord:
        """Describe the bucket for the journal."""
        return replace(
            self.record(self.lowest_needed, channels),
            delayed=BucketRecord(topic=self.target.id, start_ns=self.start_ns, end_ns=self.end_ns),
        )

    @property
    def lowest_needed(self) -> int:
        """The offset below which all messages are done."""
        return self._marks.front

    @property
    def floor(self) -> int:
        """The offset from which on every message counts as needed; it never decreases."""
        return self._marks.kept(self.queue.end_offset)[0]

    def pending_below(self, floor: int) -> npt.NDArray[np.uint64]:
        """Return the offsets below a floor that are not done, rising."""
        below = self._marks.kept(self.queue.end_offset)[1]
        return below[below < floor].astype(np.uint64)

    @property
    def passed(self) -> int:
        """The end: no channel has to pass its voids."""
        return self.queue.end_offset

    @property
    def lowest_unread(self) -> int:
        """The first offset when it was created or restored."""
        return self._start_offset

    def unfinished(self, gone: Sequence[Stretch]) -> dict[Channel | None, Offsets]:
        """Return the messages of some ranges that are not done."""
        return {None: self._waiting(gone)}

    def _waiting(self, gone: Sequence[Stretch]) -> Offsets:
        return inside(gone, self._marks.unmarked(0, self.queue.end_offset))

    def drop_ranges(self, gone: Sequence[Stretch]) -> None:
        """Drop messages whose records are gone."""
        self.target.dropped_count += self._mark(self._waiting(gone))

    # marks

    def journal_marks(self, *, certain: bool) -> bytes | None:
        """Pack the marks for a journal entry: all, or only those that are certain to be durable."""
        if not self._marks.count:
            return None
        self._forget_doubts()
        if certain and self._doubtful:
            return self._marks.pack(np.concatenate([offsets for _, offsets in self._doubtful]))
        return self._marks.pack()

    def _forget_doubts(self) -> None:
        durable = self._registry.log.durable_position
        while self._doubtful and self._doubtful[0][0] <= durable:
            self._doubtful.popleft()

    def _mark(self, offsets: Offsets) -> int:
        """Mark messages as done. Returns how many were not marked before."""
        fresh = len(self._marks.add(offsets))
        self._delays.pending_count -= fresh
        return fresh

    def cancel(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Cancel messages by numeric ids. Returns for each whether its message was waiting here.
        Raises WritesRefused.
        """
        distances = ids - np.uint64(self.queue.id_base)
        stored = np.unique(distances[distances < np.uint64(self.queue.end_offset)])
        offsets = stored[~self._marks.has_each(stored)].astype(np.int64)
        if not len(offsets):
            return np.zeros(len(ids), np.bool_)
        self._registry.journal(RecordKind.MARKS, pack_offsets(offsets), self.id)
        self._mark(offsets)
        return np.isin(distances, offsets.astype(np.uint64))

    def cancel_all(self) -> None:
        """Cancel all waiting messages. Raises WritesRefused."""
        if self.pending_count:
            marks = DoneBitmap()
            marks.add(np.arange(self.queue.end_offset))
            self._registry.journal(RecordKind.MARKS, marks.pack(), self.id)
            self._mark(self._marks.unmarked(0, self.queue.end_offset))

    # messages

    def stored(self, first: int, end: int, deferred: bool) -> None:
        """Handle a new batch."""
        self._delays.pending_count += end - first
        row = self.queue.index.row(self.queue.index.end_row - 1)
        wanted_ns = running_time(self._registry, self._upcoming.add(row.deliver_at_ns, first))
        if self._alarm.set_for_ns is None or wanted_ns < self._alarm.set_for_ns:
            self._alarm.at(wanted_ns)

    def _first_row(self) -> int:
        return self.queue.index.find(self._marks.front)

    def are_done(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return which rows have no waiting messages."""
        # Batches of several messages are checked when they are due.
        alone: npt.NDArray[np.bool_] = rows["count"] == 1
        return alone & self._marks.has_each(rows["first_offset"])

    def _run(self, now_ns: int) -> int | None:
        """Forward what is due. Returns when to run again."""
        wall_ns = self._registry.wall()
        again_ns = self._forward_due(wall_ns)
        return None if again_ns is None else again_ns - wall_ns + now_ns

    def _forward_due(self, now_ns: int) -> int | None:
        """Forward what is due at a date. Returns the date when to do it again."""
        upcoming = self._upcoming
        upcoming.scan(now_ns)
        keys = upcoming.take(now_ns, MAX_ROWS)
        if keys and not self._forward(keys):
            return now_ns + _AGAIN_NS
        next_ns = upcoming.next_ns
        if next_ns is not None:
            return next_ns
        if now_ns < self._gone_ns:
            return self._gone_ns
        self._forget_doubts()
        if self.pending_count or self._doubtful or not self._delays.drop(self):
            return now_ns + _AGAIN_NS
        return None

    def _forward(self, keys: list[Key]) -> bool:
        """Append due messages to their topic. Returns False where that was refused for now."""
        entries = [entry for entry in self._take(keys) if self._left_of(entry)]
        if not entries:
            return True
        try:
            self._make_room(entries)
        except WritesRefused:
            self._put_back(entries)
            return False
        bodies: list[bytes] = []
        properties: list[tuple[int, bytes]] = []
        times_ns: list[int] = []
        offsets: list[int] = []
        for entry in entries:
            try:
                messages = self._read(entry)
            except BadRecord as error:
                self._lost(entry, str(error))
                continue
            for offset, body, packed in messages:
                bodies.append(body)
                former_id = system_field(PROPERTY, self.queue.message_id(offset))
                properties.append((len(properties), without(packed, Field.SENT) + former_id))
                times_ns.append(entry.stored_at_ns)
                offsets.append(offset)
        if not bodies:
            return True
        batch = self._registry.staged(self.target)
        batch.set_properties(0, properties)
        batch.add_many(bodies)
        batch.stamp(np.array(times_ns, np.int64))
        batch.flags = RecordFlag.FORWARDED
        receipt = self._registry.commit_topic(self.target, 0)
        if receipt.error is not None:
            self._put_back(entries)
            return False
        done = np.array(offsets, np.int64)
        self._mark(done)
        self._forget_doubts()
        self._doubtful.append((receipt.position, done))
        self._registry.relocated_position = receipt.position
        return True

    def _take(self, keys: list[Key]) -> list[IndexEntry]:
        """Take the first of some due batches, as many as are forwarded in one turn."""
        firsts = np.array(sorted(first for _, first in keys), np.uint64)
        try:
            _, held = self.queue.index.holding(firsts)
        except OSError:  # The index is unreadable, as with too many open files.
            self._upcoming.put_back(keys)
            raise
        by_first = {row[0]: row for row in held.tolist()}
        # The rows of cancelled messages may have left the index.
        rows = [by_first[first] for _, first in keys if first in by_first]
        ends = np.cumsum([row[3] for row in rows])
        count = int(np.searchsorted(ends, MAX_BYTES)) + 1
        self._put_back([IndexEntry._make(row) for row in rows[count:]])
        return [IndexEntry._make(row) for row in rows[:count]]

    def _put_back(self, entries: list[IndexEntry]) -> None:
        self._upcoming.put_back([(entry.deliver_at_ns, entry.first_offset) for entry in entries])

    def _make_room(self, entries: list[IndexEntry]) -> None:
        """Make space in the log before the messages to forward are read: freeing space may drop the
        oldest messages, including these. Raises WritesRefused.
        """
        if self.target.queue.batch is not None:
            self._registry.commit_topic(self.target, 0)
        bytes_each = sum(entry.length + _MORE_BYTES * entry.count for entry in entries)
        self._registry.log.make_room(bytes_each + _MORE_BYTES, journal=False)

    def _read(self, entry: IndexEntry) -> list[tuple[int, bytes, bytes]]:
        """Return the waiting messages of a batch: offset, body and packed properties. Raises
        BadRecord.
        """
        first, offsets = entry.first_offset, self._left_of(entry)
        if not offsets:
            return []  # Its segment may have been retired.
        payload_end, record = self._cursor.read(entry)
        block = properties_of(record)
        if entry.count == 1:
            body = bytes(record[HEADER_BYTES + FRAME_HEADER_BYTES : payload_end])
            return [(first, body, b"" if block is None else Block(block).of(0))]
        properties = Block(block or b"")
        frame_of = Cursor.frame_of
        return [
            (
                offset,
                bytes(frame_of(entry, payload_end, record, offset)[FRAME_HEADER_BYTES:]),
                properties.of(offset - first),
            )
            for offset in offsets
        ]

    def _left_of(self, entry: IndexEntry) -> list[int]:
        """Return the offsets of a batch that are not done."""
        first = entry.first_offset
        if entry.count == 1:
            return [] if self._marks.has(first) else [first]
        left: list[int] = self._marks.unmarked(first, entry.end_offset).tolist()
        return left

    def _lost(self, entry: IndexEntry, why: str) -> None:
        first, end = entry.first_offset, entry.end_offset
        self._registry.lost(self.target.name, "", first, end, f"delayed messages: {why}")
        self._mark(self._marks.unmarked(first, end))

    def delayed(self, first_offset: int) -> list[Delayed]:
        """Return the waiting messages of the batch that begins at an offset, if it is readable."""
        index = self.queue.index
        row = index.find(first_offset)
        if row >= index.end_row:
            return []
        entry = index.row(row)
        try:
            messages = self._read(entry)
        except BadRecord:
            return []  # The loss is reported when it is due.
        stored_at_ns, deliver_at_ns = entry.stored_at_ns, entry.deliver_at_ns
        return [
            Delayed(
                self.queue.message_id(offset).decode(),
                stored_at_ns,
                deliver_at_ns,
                len(body),
                packed,
            )
            for offset, body, packed in messages
        ]

    def close(self) -> None:
        """Cancel the bucket's alarm, since it is deleted."""
        self._alarm.cancel()


def forwarded_ids(block: memoryview) -> list[int]:
    """Return the ids that a forwarded batch's messages had in a bucket, by its properties block."""
    properties = Block(block)
    values = (system_value(properties.entry(at), PROPERTY) for at in range(len(properties)))
    return [int(id, 16) for id in values if id is not None]


def offsets_of(ids: Sequence[int], id_base: int, end_offset: int) -> Offsets:
    """Return the offsets of those messages, by ids of any bucket, that are in the bucket with an id
    of offset 0 and an end, rising.
    """
    distances = np.array(ids, np.uint64) - np.uint64(id_base)
    return np.unique(distances[distances < np.uint64(end_offset)]).astype(np.int64)


def restore_bucket(
    registry: TopicRegistry,
    delays: DelayedMessages,
    target: Topic,
    record: TopicRecord,
    index: Index,
    end_offset: int,
    marks: DoneBitmap,
    forwarded: Sequence[int],
) -> None:
    """Restore a bucket from the log.

    Args:
        record: the bucket in the journal.
        index, end_offset: the known batches.
        marks: the done messages, by the journal's entries.
        forwarded: the ids of messages forwarded to its topic since, from any bucket.
    """
    # A forwarded message may be durable although the end of its bucket is not: its offset may lie
    # behind the known end.
    offsets = offsets_of(forwarded, record.id_base, end_offset + _SLACK)
    end_offset = max(end_offset, marks.end, int(offsets.max(initial=-1)) + 1)
    queue = QueueLog(registry.log, record.id, 0, record.id_base, index, end_offset)
    assert record.delayed is not None
    start_ns, end_ns = record.delayed.start_ns, record.delayed.end_ns
    bucket = Bucket(registry, delays, record.id, target, start_ns, end_ns, queue, marks)
    bucket.voids = list(record.voids)
    bucket.begin(offsets)
    delays.adopt(bucket)
