"""Half messages: stored at once, and invisible until their transaction is committed.

They are stored in the log as batches of a hidden topic::

    | HalfBatchEntry (first message) | message | message | ...      a batch of one transaction

The first message describes the others, so each batch is complete in itself, even if a power cut
loses other batches of its transaction.

The topic has no channels. Its needed batches are those of open transactions, so an abandoned
transaction keeps only its own batches, and none after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from martlet.broker.journal.entries import HalfBatchEntry, decode, encode
from martlet.broker.offset_ranges import inside
from martlet.broker.queue.cursor import Cursor
from martlet.broker.topic.hidden import HiddenTopic
from martlet.log.batch import total_bytes
from martlet.log.record import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    BadRecord,
    Header,
    RecordKind,
    align8,
    payload,
    properties_of,
)
from martlet.properties.block import Block
from martlet.properties.bulk import Packed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from martlet.broker.channel.channel import Channel
    from martlet.broker.journal.entries import TopicRecord
    from martlet.broker.offset_ranges import Offsets, Stretch
    from martlet.broker.queue.queue_log import QueueLog
    from martlet.broker.topic.topic import TopicContext
    from martlet.log.batch import LogBatch
    from martlet.native.raw_bodies import Bodies

_FRAME_SIZE = 4


class StoredHalf(NamedTuple):
    """A batch of half messages in the log, without its first message.

    Attributes:
        frames: the frames of the messages.
        ends: the end of each frame, from the first one's start.
        entries: the properties of messages that have any, by number.
        times: the delivery times and the message count of each, in order; empty for immediate
            delivery.
    """

    frames: memoryview
    ends: npt.NDArray[np.uint32]
    entries: Sequence[tuple[int, bytes]]
    times: Sequence[Sequence[int]] = ()

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return len(self.ends)

    @property
    def size_bytes(self) -> int:
        """The size of the frames."""
        return len(self.frames)

    def add_to(self, batch: LogBatch) -> None:
        """Add the messages to a batch, without their properties."""
        batch.add_frames(self.frames, self.ends)

    def cut(self, first: int, stop: int) -> StoredHalf:
        """Return some of the messages, without their times."""
        start = int(self.ends[first - 1]) if first else 0
        return StoredHalf(
            self.frames[start : int(self.ends[stop - 1])],
            self.ends[first:stop] - np.uint32(start),
            self._entries(first, stop),
        )

    def _entries(self, first: int, stop: int) -> Sequence[tuple[int, bytes]]:
        if isinstance(self.entries, Packed):
            return self.entries.cut(first, stop)
        return [(number - first, entry) for number, entry in self.entries if first <= number < stop]


class SentMessages(NamedTuple):
    """Messages that are committed as they arrive, and never were half messages.

    Attributes:
        bodies: the messages.
        entries: the properties of messages that have any, by number.
    """

    bodies: Bodies
    entries: Sequence[tuple[int, bytes]]

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return len(self.bodies)

    @property
    def size_bytes(self) -> int:
        """The size of the frames."""
        return total_bytes(self.bodies) + FRAME_HEADER_BYTES * len(self.bodies)

    def add_to(self, batch: LogBatch) -> None:
        """Add the messages to a batch, without their properties."""
        batch.add_bodies(self.bodies)


class HalfTopic(HiddenTopic):
    """The hidden topic of all half messages."""

    def __init__(self, context: TopicContext, id: int, name: str, queue: QueueLog) -> None:
        super().__init__(context, id, name, queue)
        self.held: set[int] = set()
        """The first offsets of the needed batches."""
        self._log = context.log
        self._reader = Cursor(context.log, queue, 0)

    @property
    def target(self) -> None:
        """None: each batch names its target."""

    @property
    def loss_label(self) -> str:
        """The label of lost messages."""
        return "(half messages)"

    @property
    def floor(self) -> int:
        """The end: only the batches that transactions hold are needed."""
        return self.queue.end_offset

    @property
    def lowest_unread(self) -> int:
        """The end: no channel reads stored messages."""
        return self.queue.end_offset

    @property
    def passed(self) -> int:
        """The start of the stored messages: voids before it are dropped."""
        return self.queue.start_offset

    @property
    def lowest_needed(self) -> int:
        """The offset below which nothing is needed."""
        return min(self.held, default=self.queue.end_offset)

    def pending_below(self, floor: int) -> npt.NDArray[np.uint64]:
        """Return the needed offsets below a floor, rising."""
        offsets = np.fromiter(self.held, np.uint64, len(self.held))
        offsets.sort()
        return offsets[: np.searchsorted(offsets, floor)]

    def unfinished(self, gone: Sequence[Stretch]) -> dict[Channel | None, Offsets]:
        """Return the messages of some ranges whose transactions are open."""
        rows = self.queue.index.holding(self.pending_below(self.queue.end_offset))[1]
        firsts = (rows["first_offset"] + 1).tolist()  # The first message describes the others.
        ends = (rows["first_offset"] + rows["count"]).tolist()
        parts = [np.arange(*stretch, dtype=np.int64) for stretch in zip(firsts, ends, strict=True)]
        return {None: inside(gone, np.concatenate([np.empty(0, np.int64), *parts]))}

    def drop_ranges(self, gone: Sequence[Stretch]) -> None:
        """Do nothing: the loss is detected when the transaction is committed."""

    def stored(self, first: int, end: int, deferred: bool) -> None:
        """Do nothing: no channel reads the messages."""

    def describe(self, channels: Sequence[Channel] | None = None) -> TopicRecord:
        """Describe it for the journal."""
        return self.record(self.queue.end_offset, channels)

    def journal_marks(self, *, certain: bool) -> None:
        """Return nothing: the transactions record what is done."""

    def put(
        self,
        batch: LogBatch,
        entry: HalfBatchEntry,
        bodies: Bodies,
        entries: Sequence[tuple[int, bytes]],
    ) -> None:
        """Lay out a batch: its description, the messages, and their properties by number."""
        batch.add(encode(entry))
        if entries:
            batch.set_properties(1, entries)
        batch.add_bodies(bodies)

    def get(self, first_offset: int, transaction: str) -> StoredHalf:
        """Return the batch of a transaction that begins at an offset.

        Raises:
            BadRecord: it was deleted, or is damaged.
        """
        index = self.queue.index
        row = index.find(first_offset)
        entry = index.row(row) if index.first_row <= row < index.end_row else None
        if entry is None or entry.first_offset != first_offset:
            raise BadRecord(f"no batch of the index begins at offset {first_offset}")
        payload_end, record = self._reader.read(entry)
        ends_at = align8(payload_end)
        ends: npt.NDArray[np.uint32] = np.frombuffer(record, "<u4", entry.count, ends_at)
        start = int(ends[0])
        head = entry_in_frame(record[HEADER_BYTES : HEADER_BYTES + start])
        if head.transaction != transaction:
            raise BadRecord(f"offset {first_offset}: a batch of another transaction")
        block = properties_of(record)
        entries = () if block is None else Packed(Block(block), -1)
        frames = record[HEADER_BYTES + start : payload_end]
        return StoredHalf(frames, ends[1:] - np.uint32(start), entries, head.times)

    def holds(self, first_offset: int) -> bool:
        """Whether a batch that begins at an offset is stored."""
        index = self.queue.index
        row = index.find(first_offset)
        if not index.first_row <= row < index.end_row:
            return False
        entry = index.row(row)
        return entry.first_offset == first_offset and self._log.find(entry.position) is not None


def frames_of(stored: StoredHalf) -> Iterator[memoryview]:
    """Yield the frames of a batch's messages."""
    start = 0
    for end in stored.ends.tolist():
        yield stored.frames[start:end]
        start = end


def entry_in_frame(frame: memoryview) -> HalfBatchEntry:
    """Return the description of a batch from its first frame. Raises BadRecord."""
    return decode(RecordKind.BATCH, bytes(frame[FRAME_HEADER_BYTES:]))


def entry_in_record(header: Header, record: memoryview) -> HalfBatchEntry:
    """Return the description of a batch from its record."""
    frames = payload(header, record)
    size = int.from_bytes(frames[:_FRAME_SIZE], "big")
    return entry_in_frame(frames[: _FRAME_SIZE + size])
