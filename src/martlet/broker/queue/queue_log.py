"""The queue log: an ordered part of a topic, its stored messages and those staged in this turn.

The messages that arrive for one queue in one turn of the event loop become one batch. The caller
that stages messages gets the batch's receipt, which has the position or the error after the commit.
Readers of the log see the stored batches as a `StoredQueue`: a primary appends to them, and a
standby takes in those that are confirmed.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from martlet.broker.errors import WritesRefused
from martlet.log.batch import LogBatch
from martlet.log.commit_log import CommitLog
from martlet.log.index import Index, IndexEntry
from martlet.log.record import FRAME_HEADER_BYTES, HEADER_BYTES, Contents, read_header
from martlet.log.retention import NeedCounter, SegmentLocator
from martlet.log.segmented import SegmentedLog
from martlet.properties.model import NORMAL_PRIORITY

_ROWS_AT_ONCE = 1 << 16


class StoredQueue:
    """The batches of a queue that are stored in a log, up to `end_offset`."""

    def __init__(self, log: SegmentedLog, index: Index, end_offset: int) -> None:
        self._log = log
        self.index = index
        self.end_offset = end_offset
        self.visible_end = end_offset
        """The offset behind the last confirmed message. Clients see none from here on, since a
        failover may give its offset to another one.
        """
        self._start_row = index.first_row
        self._start_version = (-1, -1)

    @property
    def start_offset(self) -> int:
        """The offset from which on everything is stored; the end where nothing is. Lower offsets
        are stored only for a channel's pending messages.
        """
        row = self.start_row
        return self.end_offset if row >= self.index.end_row else self.index.row(row).first_offset

    @property
    def start_row(self) -> int:
        """The number of the index row of `start_offset`."""
        version = (self._log.retired_count, self.index.first_row)
        if version != self._start_version:
            self._start_row = self._find_start_row()
            self._start_version = version
        return self._start_row

    def _find_start_row(self) -> int:
        """Return the number of the first row behind all whose batches were deleted, and behind all
        gaps, which a power cut may leave of deleted batches.
        """
        index = self.index
        locator = SegmentLocator(self._log.segments)
        end = index.end_row
        first = max(self._start_row, index.first_row)
        while end > first:
            start = max(first, end - _ROWS_AT_ONCE)
            rows = index.array(start, end)
            missing = locator.find(rows["position"]) < 0
            ends = rows["first_offset"] + rows["count"]
            missing[:-1] |= ends[:-1] != rows["first_offset"][1:]
            if end < index.end_row:
                missing[-1] |= ends[-1] != index.row(end).first_offset
            gone = np.flatnonzero(missing)
            if len(gone):
                return start + int(gone[-1]) + 1
            end = start
        return first

    @property
    def first_stored_offset(self) -> int:
        """The first stored offset, kept for any reason; the end where none is."""
        row = self.first_stored_row
        return self.end_offset if row == self.index.end_row else self.index.row(row).first_offset

    @property
    def first_stored_row(self) -> int:
        """The number of the first row whose batch is stored; that behind the last where none is."""
        index = self.index
        locator = SegmentLocator(self._log.segments)
        for start in range(index.first_row, index.end_row, _ROWS_AT_ONCE):
            rows = index.array(start, start + _ROWS_AT_ONCE)
            stored = np.flatnonzero(locator.find(rows["position"]) >= 0)
            if len(stored):
                return start + int(stored[0])
        return index.end_row


class TopicView(Protocol):
    """A topic at one of its queues."""

    @property
    def id(self) -> int:
        """The number of the topic at this queue."""

    @property
    def name(self) -> str:
        """The topic's name."""

    @property
    def number(self) -> int:
        """The queue's number."""

    @property
    def queue(self) -> StoredQueue:
        """The messages of the queue."""

    @property
    def at_queues(self) -> Sequence[TopicView]:
        """The topic at each of its queues, by number."""

    def at_queue(self, number: int) -> TopicView:
        """Return the topic at the queue of that number. Raises NotFound."""


class LogView(Protocol):
    """The confirmed state of a log, at one moment: use it without awaiting anything."""

    @property
    def log(self) -> SegmentedLog:
        """The log."""

    @property
    def epoch(self) -> int:
        """The number of the run that wrote the newest record."""

    @property
    def visible_position(self) -> int:
        """The position behind the last record that readers of the log may see."""

    def all_topics(self) -> Iterable[TopicView]:
        """Return each topic, at its queue 0."""

    def find_topic(self, name: str) -> TopicView:
        """Return the topic of that name, at its queue 0. Raises NotFound."""


_entry = partial(tuple.__new__, IndexEntry)
"""Makes an index entry of a tuple, without a call in Python."""
ID_MASK = (1 << 64) - 1
OFFSET_BITS = 54
"""The bits of the offset in an id minus queue 0's `id_base`; the queue's number is above them."""
OFFSET_MASK = (1 << OFFSET_BITS) - 1
MAX_QUEUES = 1 << (64 - OFFSET_BITS)
"""The maximum number of queues of a topic."""
MAX_BATCH_BYTES = 1 << 20
"""A batch of this size is appended at once."""


class KeptHistory(Protocol):
    """The history that is kept of a queue, finished by every channel."""

    counter: NeedCounter

    @property
    def retention(self) -> object:
        """The limits of the history."""

    def count(self, locator: SegmentLocator, now_ns: int) -> Iterator[None]:
        """Count the history, some rows at a time."""


class Receipt:
    """The outcome of staged messages."""

    __slots__ = ("error", "position")

    def __init__(self) -> None:
        self.position = 0
        """The log's position behind their batch once it is stored; 0 until then."""
        self.error: WritesRefused | None = None
        """The error, if they were refused."""


class QueueLog(StoredQueue):
    """A queue of a topic; all its messages have one priority."""

    def __init__(
        self,
        log: CommitLog,
        topic: int,
        number: int,
        id_base: int,
        index: Index,
        end_offset: int,
        *,
        priority: int = NORMAL_PRIORITY,
    ) -> None:
        super().__init__(log, index, end_offset)
        self._log: CommitLog = log
        self.topic = topic
        """The number of the topic at this queue, in the log."""
        self.number = number
        self.id_base = id_base
        """The id of offset 0: a random number of 64 bits, plus `number` times 2^54."""
        self.priority = priority
        self.counter = NeedCounter(index)
        """The messages that channels need from the topic's floor on, as far as counted."""
        self.history: KeptHistory | None = None
        """The history kept beyond that, if any."""
        self.emptied_from = 0
        self.emptied_until_ns = 0
        """From which offset on, and until when, history keeps what was emptied from a channel."""
        self.message_bytes = 0
        self.batch: LogBatch | None = None
        """The staged messages."""
        self.receipt = Receipt()
        """The receipt of the staged messages."""

    def hidden_bytes(self) -> int:
        """Return the size of the bodies behind the visible end."""
        index, hidden = self.index, 0
        for row in index.rows(index.find(self.visible_end), index.end_row):
            record = self._log.view(row.position, HEADER_BYTES)
            assert record is not None, "unconfirmed, and retired"
            header = read_header(record, 0, row.position)
            hidden += header.payload_length - FRAME_HEADER_BYTES * row.count
        return hidden

    def message_id(self, offset: int) -> bytes:
        """Return the id of the message at an offset: 16 hexadecimal digits."""
        return b"%016x" % ((self.id_base + offset) & ID_MASK)

    def offset_of(self, message_id: bytes) -> int:
        """Return the offset of an id, which may not exist. Raises ValueError where it is none."""
        return (int.from_bytes(unhexlify(message_id)) - self.id_base) & ID_MASK

    def append(self, body: bytes | memoryview, now_ns: int) -> memoryview:
        """Append one message by itself, when nothing is staged. Returns its frame, in the log.
        Raises WritesRefused.
        """
        assert self.batch is None
        offset = self.end_offset
        id = self.id_base + offset
        position, length, frame = self._log.append_lone(
            body, id, self.topic, self.number, offset, now_ns
        )
        self.appended(position, length, len(body), now_ns)
        return frame

    def appended(
        self,
        position: int,
        length: int,
        body_bytes: int,
        now_ns: int,
        count: int = 1,
        deliver_at_ns: int = 0,
    ) -> None:
        """Note that messages were stored, in a record at a position and of a length."""
        offset = self.end_offset
        self.index.add(_entry((offset, position, count, length, now_ns, deliver_at_ns)))
        self.end_offset = offset + count
        self.message_bytes += body_bytes

    def begin(self, scratch: list[LogBatch], now_ns: int) -> LogBatch:
        """Begin to stage. `scratch` holds reusable batches."""
        assert self.batch is None
        self.batch = batch = scratch.pop() if scratch else LogBatch()
        batch.begin((self.id_base + self.end_offset) & ID_MASK, now_ns)
        self.receipt = Receipt()
        return batch

    def commit(self, scratch: list[LogBatch], deliver_at_ns: int = 0) -> Receipt:
        """Append the staged messages; if that is refused, the receipt has the error."""
        batch, receipt = self.batch, self.receipt
        assert batch is not None
        self.batch = None
        record, flags = batch.finish()
        first, count, stored_at_ns = self.end_offset, batch.count, batch.stored_at_ns
        try:
            position = self._log.append_batch(
                record,
                flags,
                Contents(
                    self.topic,
                    self.number,
                    count,
                    first,
                    stored_at_ns,
                    deliver_at_ns,
                    batch.payload_length,
                    batch.properties_length,
                ),
            )
        except WritesRefused as error:
            receipt.error = error
        else:
            length = len(record)
            assert count > 0 and self.end_offset == first
            body_bytes = batch.payload_length - FRAME_HEADER_BYTES * count
            self.appended(position, length, body_bytes, stored_at_ns, count, deliver_at_ns)
            receipt.position = position + length
        finally:
            record.release()
            scratch.append(batch)
        return receipt
