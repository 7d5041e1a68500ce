"""Half messages: stored at once, invisible until their transaction commits, and then published.

They are stored in the log as batches of a hidden topic::

    | HalfBatchEntry (first message) | message | message | ...      a batch of one transaction

The first message describes the others, so each batch is complete in itself, even if a power cut
loses other batches of its transaction. The topic has no channels. Its needed batches are those of
open transactions, so an abandoned transaction keeps only its own batches, and none after them.

A commit copies them into batches of their topics. These are written as one bundle of the log,
together with the journal entry of the outcome (see `martlet.log.record`). So at no moment
are only some of them visible: neither after a crash, nor to a consumer, which gets none before all
are stored. Delayed messages are published to their buckets
(`martlet.broker.delayed.delayed_messages`), in the same bundle as the others. A large transaction
takes several bundles (see `martlet.broker.transactions.large_commit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from martlet.broker.errors import LimitReached
from martlet.broker.journal.entries import (
    HALF,
    HalfBatch,
    HalfBatchEntry,
    HeldQueues,
    TopicEntry,
    TopicRecord,
    TransactionEntry,
    decode,
    encode,
)
from martlet.broker.offset_ranges import Offsets, Stretch, inside
from martlet.broker.queue.cursor import Cursor
from martlet.broker.queue.queue_log import ID_MASK, MAX_BATCH_BYTES, QueueLog
from martlet.broker.topic.retained import HiddenTopic, Retained
from martlet.broker.topic.topic import Topic, TopicContext, TopicRegistry
from martlet.broker.transactions.state import (
    OpenTransaction,
    TransactionState,
    TransitionRefused,
)
from martlet.log.batch import LogBatch, total_bytes
from martlet.log.index import Index
from martlet.log.record import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    BadRecord,
    BatchSlot,
    Contents,
    Header,
    RecordKind,
    align8,
    payload,
    properties_of,
    record_length,
)
from martlet.properties.block import Block, Packed, packed_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from martlet.broker.channel.channel import Channel
    from martlet.broker.delayed.delayed_messages import DelayedMessages
    from martlet.native.raw_bodies import Bodies

_FRAME_SIZE = 4


class TransactionContext(TopicRegistry, Protocol):
    """The broker's services for transactions."""

    delays: DelayedMessages

    @property
    def visible_position(self) -> int:
        """The position behind the last record that readers of the log may see."""

    def show_held(self, topic: Topic) -> None:
        """Show readers the held messages of a topic, once the log up to here is confirmed."""


EntryOfTopics = Callable[[tuple[TopicRecord, ...]], TransactionEntry]
"""Makes the entry of a commit. It describes the topics whose own entries a power cut may lose."""


class StoredHalf(NamedTuple):
    """A batch of half messages in the log, without its first message."""

    frames: memoryview
    ends: npt.NDArray[np.uint32]
    """The end of each frame, from the first one's start."""
    entries: Sequence[tuple[int, bytes]]
    """The properties of messages that have any, by number."""
    times: Sequence[Sequence[int]] = ()
    """The delivery times and the message count of each, in order; empty for immediate delivery."""

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
    """Messages that are committed as they arrive, and never were half messages."""

    bodies: Bodies
    entries: Sequence[tuple[int, bytes]]
    """The properties of messages that have any, by number."""

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
        self.target = None
        self.loss_label = "(half messages)"
        self.held: set[int] = set()
        """The first offsets of the needed batches."""
        self._log = context.log
        self._reader = Cursor(context.log, queue, 0)

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
        ranges = [np.arange(*stretch, dtype=np.int64) for stretch in zip(firsts, ends, strict=True)]
        return {None: inside(gone, np.concatenate([np.empty(0, np.int64), *ranges]))}

    def drop_ranges(self, gone: Sequence[Stretch]) -> None:
        """Do nothing: the loss is detected when the transaction is committed."""

    def stored(self, first: int, end: int, deferred: bool) -> None:
        """Do nothing: no channel reads the messages."""

    def describe(self, channels: Sequence[Channel] | None = None) -> TopicRecord:
        """Describe it for the journal."""
        return self.record(self.queue.end_offset, channels)

    def get(self, first_offset: int, transaction: str) -> StoredHalf:
        """Return the batch of a transaction that begins at an offset. Raises BadRecord if it was
        deleted, or is damaged.
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


class PendingCopy(NamedTuple):
    """Messages of a transaction and their target, at one of its queues."""

    topic: Retained
    stored: StoredHalf | SentMessages
    deliver_at_ns: int = 0
    """When they are due, if the topic is a bucket."""


class _Piece(NamedTuple):
    """A batch to be written to one topic."""

    topic: Retained
    deliver_at_ns: int
    first_offset: int
    stored: list[StoredHalf | SentMessages]
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    payload_length: int
    properties_length: int

    @property
    def length(self) -> int:
        """The length of its record."""
        return record_length(self.payload_length, self.count, self.properties_length)


class HalfMessageStore:
    """Keeps the half messages of a broker, and publishes them when their transaction commits."""

    def __init__(self, context: TransactionContext) -> None:
        self._context = context
        self.topic: HalfTopic | None = None
        """Stores them, once there were any."""
        self._journaled: dict[int, int] = {}
        """The log's position when a bundle first described each topic at a queue."""

    def made(self) -> HalfTopic:
        """Return the topic of half messages, created with the first one."""
        if self.topic is None:
            context = self._context
            id = context.next_id()
            index = Index(context.log.storage, id, 0)
            queue = QueueLog(context.log, id, 0, context.random.getrandbits(64), index, 0)
            half = HalfTopic(context, id, HALF, queue)
            context.journal_topology(id, TopicEntry(half.describe()))
            context.by_id[half.id] = half
            self.topic = half
        return self.topic

    def hold(self, transaction: OpenTransaction) -> None:
        """Keep the messages of a transaction."""
        if transaction.batch_count:
            assert self.topic is not None
            self.topic.held.update(b.first_offset for b in transaction.all_batches())

    def release(self, transaction: OpenTransaction) -> None:
        """Release the messages of a transaction."""
        if self.topic is not None:
            self.topic.held.difference_update(b.first_offset for b in transaction.all_batches())

    def forward(
        self,
        transaction: OpenTransaction,
        batches: Sequence[HalfBatch],
        entry: EntryOfTopics,
        to: str = "",
    ) -> int:
        """Publish messages to their topics, or all to one topic, with an entry in the journal.
        Returns the position behind them. Raises TransitionRefused, LimitReached, WritesRefused, or
        as `BrokerCore.topic`.
        """
        try:
            copies = [copy for batch in batches for copy in self._copies(transaction.id, batch, to)]
            return self._store(copies, entry)
        except BadRecord as error:
            raise self._incomplete(transaction, error) from error

    def forward_held(
        self,
        transaction: OpenTransaction,
        batches: Sequence[HalfBatch],
        entry: Callable[[HeldQueues, tuple[TopicRecord, ...]], TransactionEntry],
    ) -> int:
        """Publish messages of a large commit, which readers see at its end. Once it is decided,
        damaged ones are reported and left out. Otherwise as `forward`.
        """
        is_decided = transaction.state is TransactionState.COMMITTING
        context = self._context
        context.commit()  # What is staged comes before them, and readers see it.
        copies: list[PendingCopy] = []
        for batch in batches:
            try:
                copies += self._copies(transaction.id, batch)
            except BadRecord as error:
                if not is_decided:
                    raise self._incomplete(transaction, error) from error
                end = batch.first_offset + batch.message_count
                context.lost(batch.topic, "(committing)", batch.first_offset, end, str(error))
        held = {
            copy.topic: copy.topic.queue.end_offset
            for copy in copies
            if isinstance(copy.topic, Topic) and copy.topic.held_from is None
        }
        for topic, offset in held.items():
            topic.hold(offset)
        # All of them, as a power cut may lose the bundle that named one first.
        held_from = {**transaction.held_from, **{topic.id: at for topic, at in held.items()}}
        queues = tuple(held_from.items())
        try:
            position = self._store(copies, lambda topics: entry(queues, topics), is_decided=True)
        except BaseException:
            for topic in held:
                topic.release()
            raise
        transaction.held_from = held_from
        return position

    def hold_again(self, transaction: OpenTransaction) -> None:
        """After a start: hold what a commit under way has published."""
        for id, offset in transaction.held_from.items():
            topic = self._context.queues.get(id)
            if topic is not None:
                topic.hold_stored(offset)

    def show(self, transaction: OpenTransaction) -> None:
        """Show readers all messages of a large commit, once its end is confirmed."""
        for id in transaction.held_from:
            topic = self._context.queues.get(id)
            if topic is not None:
                self._context.show_held(topic)

    def check(self, transaction: OpenTransaction, batches: Sequence[HalfBatch]) -> None:
        """Check that a large commit can be completed. Raises TransitionRefused and LimitReached."""
        half = self.topic
        for batch in batches:
            if half is None or not half.holds(batch.first_offset):
                lost = BadRecord(f"no batch of the index begins at offset {batch.first_offset}")
                raise self._incomplete(transaction, lost)
        self._check_delayed(sum(batch.message_count for batch in batches if batch.time_count))

    @staticmethod
    def _incomplete(transaction: OpenTransaction, error: BadRecord) -> TransitionRefused:
        for name in transaction.branches:
            transaction.lose(name)
        return TransitionRefused(
            f"messages of transaction {transaction.id!r} are lost: {error}; roll it back",
            transaction.state,
            is_incomplete=True,
        )

    def _copies(self, id: str, batch: HalfBatch, to: str = "") -> Iterable[PendingCopy]:
        """Return the messages of a batch with their targets. Raises BadRecord."""
        assert self.topic is not None
        stored = self.topic.get(batch.first_offset, id)
        queue_topic = self._at_queue(to or batch.topic, batch.queue)
        return [PendingCopy(queue_topic, stored)] if to else self._timed(queue_topic, stored)

    def publish(
        self,
        topic: str,
        queue: int,
        bodies: Bodies,
        entries: Sequence[tuple[int, bytes]],
        times: Sequence[tuple[int, int]],
        entry: EntryOfTopics,
    ) -> int:
        """Publish messages that were not stored as half messages, as `forward` does."""
        if not times:
            sent = SentMessages(bodies, entries)
            return self._store([PendingCopy(self._at_queue(topic, queue), sent)], entry)
        batch = self._context.lend_scratch()
        try:
            batch.begin(0, 0)
            batch.add_bodies(bodies)
            stored = StoredHalf(*batch.frames(), entries, times)
            return self._store(list(self._timed(self._at_queue(topic, queue), stored)), entry)
        finally:
            self._context.take_scratch(batch)

    def _at_queue(self, name: str, queue: int) -> Topic:
        """Return a topic at one of its queues; the number may be beyond its queues."""
        topic = self._context.topic(name)
        if queue < 0:
            return topic.next_queue()
        if queue < len(topic.at_queues):
            return topic.at_queues[queue]
        return topic.normal_queues[queue % len(topic.normal_queues)]

    def _timed(self, queue_topic: Topic, stored: StoredHalf) -> Iterator[PendingCopy]:
        """Yield messages by their delivery times, each with its target; due ones go to the topic
        itself.
        """
        if not stored.times:
            yield PendingCopy(queue_topic, stored)
            return
        now_ns = self._context.wall()
        first = 0
        for at_ns, count in stored.times:
            some = stored.cut(first, first + count)
            first += count
            if at_ns <= now_ns:
                yield PendingCopy(queue_topic, some)
            else:
                yield PendingCopy(
                    self._context.delays.bucket(queue_topic, at_ns, count), some, at_ns
                )

    def _check_delayed(self, count: int) -> None:
        delays = self._context.delays
        if count and delays.max_count and delays.pending_count + count > delays.max_count:
            raise LimitReached(
                f"{count} messages of the transaction are delayed, {delays.pending_count} wait"
                f" already, and --max-delayed-messages is {delays.max_count}"
            )

    def _store(
        self, copies: Sequence[PendingCopy], entry: EntryOfTopics, *, is_decided: bool = False
    ) -> int:
        """Store messages in their topics, all or none of them, with the entry of their
        transaction. Returns the position of the log behind them.

        `is_decided`: whether the limits were checked before, when the commit was decided.

        Raises:
            BadRecord: half messages are damaged.
            LimitReached: too many messages would be delayed.
            WritesRefused: there is no space.
        """
        context = self._context
        if not is_decided:
            self._check_delayed(sum(c.stored.message_count for c in copies if c.deliver_at_ns))
        context.commit()
        batch = context.lend_scratch()
        pieces = _pieces(copies)
        topics = list(dict.fromkeys(piece.topic for piece in pieces))
        now_ns = context.stored_at_ns()
        try:
            positions = context.log.append_bundle(
                encode(entry(self.undescribed(topics))),
                [piece.length for piece in pieces],
                (_laid_out(batch, piece, now_ns) for piece in pieces),
                now_ns,
            )
        finally:
            context.take_scratch(batch)
        firsts = {topic: topic.queue.end_offset for topic in topics}
        for piece, position in zip(pieces, positions, strict=True):
            queue = piece.topic.queue
            assert queue.end_offset == piece.first_offset
            body_bytes = piece.payload_length - FRAME_HEADER_BYTES * piece.count
            queue.appended(
                position, piece.length, body_bytes, now_ns, piece.count, piece.deliver_at_ns
            )
            context.stored_count += piece.count
            if piece.deliver_at_ns:
                # A bucket delivers nothing yet, and adds one row at a time.
                piece.topic.stored(piece.first_offset, queue.end_offset, False)
                firsts.pop(piece.topic, None)
        position = context.relocated_position = context.log.position
        for topic, first in firsts.items():
            context.stored(topic, first, False)
        return position

    def undescribed(self, topics: Sequence[Retained]) -> tuple[TopicRecord, ...]:
        """Return those topics whose journal entries a power cut may still lose."""
        log = self._context.log
        described = dict.fromkeys(t for topic in topics for t in (topic.target or topic, topic))
        # The creation of a queue lies below the position at which it was first described.
        return tuple(
            queue_topic.describe()
            for topic in described
            for queue_topic in topic.at_queues
            if self._journaled.setdefault(queue_topic.id, log.position) > log.durable_position
        )


def _pieces(copies: Sequence[PendingCopy]) -> list[_Piece]:
    """Return the batches: messages of one topic and time in order, up to a size."""
    groups: dict[tuple[Retained, int], list[StoredHalf | SentMessages]] = {}
    for topic, stored, deliver_at_ns in copies:
        groups.setdefault((topic, deliver_at_ns), []).append(stored)
    pieces: list[_Piece] = []
    ends = {topic: topic.queue.end_offset for topic, _ in groups}
    for (topic, deliver_at_ns), all_stored in groups.items():
        of_piece: list[list[StoredHalf | SentMessages]] = []
        size_bytes = 0
        for stored in all_stored:
            if not of_piece or size_bytes + stored.size_bytes > MAX_BATCH_BYTES:
                of_piece.append([])
                size_bytes = 0
            of_piece[-1].append(stored)
            size_bytes += stored.size_bytes
        for some in of_piece:
            count = sum(stored.message_count for stored in some)
            payload_length = sum(stored.size_bytes for stored in some)
            properties_length = packed_bytes([stored.entries for stored in some])
            pieces.append(
                _Piece(
                    *(topic, deliver_at_ns, ends[topic], some),
                    *(count, payload_length, properties_length),
                )
            )
            ends[topic] += count
    return pieces


def _laid_out(batch: LogBatch, piece: _Piece, now_ns: int) -> BatchSlot:
    queue = piece.topic.queue
    batch.begin((queue.id_base + piece.first_offset) & ID_MASK, now_ns)
    for stored in piece.stored:
        if stored.entries:
            batch.set_properties(batch.count, stored.entries)
        stored.add_to(batch)
    record, flags = batch.finish()
    contents = Contents(
        queue.topic,
        queue.number,
        piece.count,
        piece.first_offset,
        now_ns,
        piece.deliver_at_ns,
        batch.payload_length,
        batch.properties_length,
    )
    return BatchSlot(record, flags, contents)


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
