"""Replay of the journal: the state of topics, channels and transactions as of a record.

Entries are applied in the order of the log: from a checkpoint, the heads of segments and the
entries behind them. A power cut may have lost any entry that was not durable, so a later entry wins
where it contradicts an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from martlet.broker.delayed.bucket import forwarded_ids, offsets_of
from martlet.broker.delayed.done_bitmap import DoneBitmap
from martlet.broker.idempotence import ProducerSend, ProducerState, marks
from martlet.broker.journal.cursors import CursorState, channel_of
from martlet.broker.journal.entries import (
    HALF,
    AllTransactionsEntry,
    ChannelDeletedEntry,
    ChannelEntry,
    ChannelRecord,
    ChannelReplayedEntry,
    CommittedEntry,
    SetAsideEntry,
    SnapshotEntry,
    TogetherEntry,
    TopicDeletedEntry,
    TopicEntry,
    TopicRecord,
    TopologyEntry,
    UnknownTransactionEntry,
    decode,
    decode_retired,
)
from martlet.broker.queue.queue_log import Receipt, StoredQueue
from martlet.broker.recovery.transactions import TransactionJournal
from martlet.broker.transactions.half_messages import entry_in_record
from martlet.log.checkpoint_file import Checkpoint, Needed
from martlet.log.index import Index, IndexEntry
from martlet.log.record import BadRecord, Header, RecordFlag, RecordKind, entry_of, properties
from martlet.log.segmented import SegmentedLog
from martlet.log.storage import Storage
from martlet.names import is_ephemeral


@dataclass
class RecoveredTopic:
    """A topic at one of its queues."""

    record: TopicRecord
    index: Index
    end_offset: int = 0
    """The offset behind the last known batch."""
    journaled_end: int = 0
    """Its end by other entries: messages may have been lost since, and later ones must not get
    their offsets, which voids and cursors have passed.
    """
    channels: dict[int, ChannelRecord] = field(default_factory=dict)
    """Its channels, by number."""
    cursors: dict[int, CursorState] = field(default_factory=dict)
    """Their cursors."""
    _stored: StoredQueue | None = None

    @property
    def next_offset(self) -> int:
        """The offset of the next message."""
        return max(self.end_offset, self.journaled_end)

    def stored_in(self, log: SegmentedLog) -> StoredQueue:
        """Return its messages for a reader of the log that holds them."""
        if self._stored is None:
            self._stored = StoredQueue(log, self.index, 0)
        self._stored.end_offset = self._stored.visible_end = self.next_offset
        return self._stored

    def apply(self, record: TopicRecord) -> None:
        """Replace the topic's record."""
        self.record = record
        ends = [end for _, end in record.voids]
        self._was_at(record.backlog_offset, record.paused_at or 0, *ends)

    def apply_channel(self, channel: ChannelRecord) -> None:
        """Add or replace a channel, whose start applies if its cursor is not known. An older one of
        its name is dropped: the entry of its deletion is lost.
        """
        for id in [i for i, c in self.channels.items() if c.name == channel.name]:
            if id != channel.id:
                self.forget_channel(id)
        self.channels[channel.id] = channel
        start = channel.start
        if start is not None:
            self.cursors.setdefault(channel.id, CursorState(start, start))
        self._was_at(start or 0, channel.limit or 0)

    def forget_channel(self, id: int) -> None:
        """Delete a channel."""
        self.channels.pop(id, None)
        self.cursors.pop(id, None)

    def apply_cursor(self, channel: int, entry: bytes) -> None:
        """Move a channel's cursor."""
        cursor = self.cursors[channel]
        if cursor.apply(entry):
            self._was_at(cursor.next, cursor.scheduled_end)

    def add_batch(self, header: Header) -> None:
        """Add a batch that was stored, or copied."""
        end_offset = header.first_offset + header.count
        if header.first_offset >= self.end_offset:
            self.index.add(
                IndexEntry(
                    header.first_offset,
                    header.position,
                    header.count,
                    header.length,
                    header.stored_at_ns,
                    header.deliver_at_ns,
                )
            )
        elif header.flags & RecordFlag.RELOCATED:
            self.index.move(header.first_offset, header.position)
        self.end_offset = max(self.end_offset, end_offset)

    def _was_at(self, *offsets: int) -> None:
        self.journaled_end = max(self.journaled_end, *offsets)


class RecoveredState:
    """The state after the entries and batches applied so far. Topics go by number."""

    def __init__(self, storage: Storage, segment_bytes: int) -> None:
        self.storage = storage
        self.durable_position: int | None = 0
        """The log is known to have been durable up to here; None for a log that another replica
        writes, of which every record before the last one is there.
        """
        self.producers = ProducerState.beside(segment_bytes)
        self.topics: dict[int, RecoveredTopic] = {}
        """All topics at all their queues."""
        self._ids: dict[tuple[str, int], int] = {}
        """By name and queue: the topic of the last entry."""
        self.last_id = 0
        """The highest number of a topic or channel."""
        self.epoch = 0
        """The epoch of the checkpoint."""
        self.newest_ns = 0
        """When the newest of the checkpoint and the records behind it was written."""
        self.indexes: dict[int, Index] = {}
        """Those that the checkpoint covers, or that were rebuilt from the log."""
        self.transactions = TransactionJournal()
        self.half_id = 0
        """The topic of half messages; 0 for none."""
        self.marks: dict[int, DoneBitmap] = {}
        """The messages of each bucket that are done."""
        self.forwarded: dict[int, list[int]] = {}
        """By topic, the former ids of messages forwarded from its buckets, in a log of which the
        buckets' ends may be lost; otherwise they are in `marks`.
        """
        self.retired: set[int] = set()
        """The bases of segments that no replica needs."""
        self.orphans: dict[int, list[Header]] = {}
        """By topic, batches whose topic's entry, such as the head of their segment, is damaged. A
        later head may have the topic, but not its batches.
        """

    def apply(self, kind: int, topic: int, entry: bytes) -> None:
        """Apply an entry of a record with a topic's number. Raises BadRecord."""
        # Even if the entry of the topic or channel was lost, its number must not be used again.
        self.last_id = max(self.last_id, topic)
        if kind == RecordKind.CURSOR:
            channel, full = channel_of(entry)
            self.last_id = max(self.last_id, channel)
            state = self.topics.get(topic)
            if state is None:
                return
            if full:
                state.cursors[channel] = CursorState(0, 0)
            if channel in state.cursors:
                state.apply_cursor(channel, entry)
        elif kind == RecordKind.MARKS:
            self.marks.setdefault(topic, DoneBitmap()).apply(entry)
        elif kind == RecordKind.TOPOLOGY:
            self.apply_topology(decode(RecordKind.TOPOLOGY, entry))
        elif kind == RecordKind.TRANSACTION:
            self.transactions.apply(decode(RecordKind.TRANSACTION, entry))
        elif kind == RecordKind.PRODUCERS:
            self.producers.learn(entry, self.durable_position)
        elif kind == RecordKind.RETIRED:
            self.retired.update(decode_retired(entry))

    def apply_topology(self, entry: TopologyEntry) -> None:
        """Apply an entry about topics or channels."""
        match entry:
            case SnapshotEntry():
                self._apply_snapshot(entry)
            case TogetherEntry(entries):
                for inner in entries:
                    self.apply_topology(inner)
            case TopicEntry(record):
                self._apply_topic(record)
            case TopicDeletedEntry(id):
                self.topics.pop(id, None)
            case _:
                # A topic is unknown if the entry that created it was lost.
                state = self.topics.get(entry.topic_id)
                if state is not None:
                    self._apply_to_channel(state, entry)

    def _apply_snapshot(self, snapshot: SnapshotEntry) -> None:
        before, self.topics = self.topics, {}
        self._ids.clear()
        self.last_id = max(self.last_id, snapshot.last_id)
        for record in snapshot.topics:
            state = before.get(record.id) or self._begin(record)
            state.apply(record)
            state.end_offset = max(state.end_offset, record.end_offset or 0)
            # The cursors' own entries follow the snapshot, but a power cut may have lost them.
            cursors, state.channels, state.cursors = state.cursors, {}, {}
            for channel in record.channels or ():
                if channel.id in cursors:
                    state.cursors[channel.id] = cursors[channel.id]
                state.apply_channel(channel)
            self.topics[record.id] = state
            self._ids[record.name, record.queue] = record.id
        self.orphans.clear()
        self.marks = {id: marks for id, marks in self.marks.items() if id in self.topics}

    def _begin(self, record: TopicRecord) -> RecoveredTopic:
        id = record.id
        self.last_id = max(self.last_id, id)
        index = self.indexes.get(id) or Index(self.storage, id, record.queue)
        has_rows = index.end_row > index.first_row
        end_offset = index.row(index.end_row - 1).end_offset if has_rows else 0
        state = RecoveredTopic(record, index, end_offset)
        if record.name == HALF:
            self.half_id = id
        for header in self.orphans.pop(id, ()):
            state.add_batch(header)
        return state

    def _apply_topic(self, record: TopicRecord) -> None:
        if record.id not in self.topics:
            self._forget_older(record)
            self.topics[record.id] = self._begin(record)
            self._ids[record.name, record.queue] = record.id
        self.topics[record.id].apply(record)

    def _forget_older(self, record: TopicRecord) -> None:
        """Drop an older topic of that name, whose deletion entry is lost, or one at the same queue
        that was journaled but never created.
        """
        older = self.topics.get(self._ids.get((record.name, record.queue), 0))
        if older is None:
            return
        key = older.record.key
        if key == record.key:
            del self.topics[older.record.id]
            return
        for id, topic in list(self.topics.items()):
            if topic.record.key[0] == key[0]:
                del self.topics[id]

    def _apply_to_channel(
        self,
        state: RecoveredTopic,
        entry: ChannelEntry | ChannelDeletedEntry | ChannelReplayedEntry,
    ) -> None:
        match entry:
            case ChannelEntry(channel=channel):
                self.last_id = max(self.last_id, channel.id)
                state.apply_channel(channel)
            case ChannelDeletedEntry(id=id, backlog_offset=backlog_offset):
                state.forget_channel(id)
                if backlog_offset is not None:
                    state.apply(replace(state.record, backlog_offset=backlog_offset))
            case ChannelReplayedEntry(id=id, offset=offset):
                if id in state.cursors:
                    state.cursors[id].go_back(offset)

    def apply_batch(self, header: Header, record: memoryview) -> None:
        """Apply a stored batch."""
        self.last_id = max(self.last_id, header.topic)
        state = self.topics.get(header.topic)
        if state is None:
            self.orphans.setdefault(header.topic, []).append(header)
        else:
            state.add_batch(header)
        if header.flags & RecordFlag.FORWARDED:
            self._learn_forwarded(header.topic, forwarded_ids(properties(header, record)))

    def _learn_forwarded(self, topic: int, ids: list[int]) -> None:
        if self.durable_position is not None:
            self.forwarded.setdefault(topic, []).extend(ids)
            return
        for bucket in self.topics.values():
            delayed = bucket.record.delayed
            if delayed is not None and delayed.topic == topic:
                done = offsets_of(ids, bucket.record.id_base, bucket.end_offset)
                self.marks.setdefault(bucket.record.id, DoneBitmap()).add(done)

    def learn_sends(self, header: Header, record: memoryview) -> None:
        """Record the sends that a batch contains; those of a copy are known already."""
        if header.flags & RecordFlag.RELOCATED:
            return
        state = self.topics.get(header.topic)
        delayed = state.record.delayed if state is not None else None
        target = delayed.topic if delayed else header.topic
        for number, sent in marks(properties(header, record)):
            receipt = Receipt()
            receipt.position = header.next_position
            offset = header.first_offset + number
            send = ProducerSend(receipt, header.topic, offset, sent.count, target)
            self.producers.add(sent, send, header.stored_at_ns)

    def learn_bundle(self, header: Header, record: memoryview) -> None:
        """Apply the entry of a bundle, whose batches follow it. Raises BadRecord."""
        entry = decode(RecordKind.BUNDLE, entry_of(header, record))
        if isinstance(entry, CommittedEntry | SetAsideEntry | UnknownTransactionEntry):
            for topic in entry.topics or ():
                if topic.id not in self.topics:
                    self._apply_topic(topic)
        self.transactions.apply_bundle(entry, header)

    def learn_half(self, header: Header, record: memoryview) -> None:
        """Record the half messages of a batch."""
        with suppress(BadRecord):
            self.transactions.apply_half(entry_in_record(header, record), header)

    def find(self, name: str, queue: int) -> RecoveredTopic | None:
        """Return the topic of a name at one of its queues."""
        return self.topics.get(self._ids.get((name, queue), 0))

    def kept(self) -> list[RecoveredTopic]:
        """Return the topics to restore, the queues of each in order."""
        keys = sorted((topic.record.key, id) for id, topic in self.topics.items())
        return [
            self.topics[id]
            for (first, _), id in keys
            if first in self.topics and not is_ephemeral(self.topics[id].record.name)
        ]


def needed_by(loaded: Checkpoint) -> dict[int, Needed]:
    """Return the messages that channels need as of a checkpoint or a segment's head, by topic.
    Raises BadRecord.
    """
    snapshot = decode(RecordKind.TOPOLOGY, loaded.entries[0][2])
    if not isinstance(snapshot, SnapshotEntry):
        raise BadRecord("a checkpoint that does not begin with a snapshot")
    floors = {topic.id: topic.backlog_offset for topic in snapshot.topics if not topic.channels}
    pending: dict[int, set[int]] = {}
    marks: dict[int, DoneBitmap] = {}
    for kind, topic, entry in loaded.entries:
        if kind == RecordKind.CURSOR and channel_of(entry)[1]:
            cursor = CursorState(0, 0)
            cursor.apply(entry)
            floor = min([cursor.next, *(first for first, _ in cursor.ranges)])
            floors[topic] = min(floors.get(topic, floor), floor)
            pending.setdefault(topic, set()).update(cursor.pending)
        elif kind == RecordKind.MARKS:
            marks.setdefault(topic, DoneBitmap()).apply(entry)
        elif kind == RecordKind.TRANSACTION:
            half = next((topic.id for topic in snapshot.topics if topic.name == HALF), 0)
            pending.setdefault(half, set()).update(_held_by(entry))
    for bucket in snapshot.topics:
        if bucket.delayed is not None and bucket.id in marks:
            floor, below = marks[bucket.id].kept(bucket.end_offset or 0)
            floors[bucket.id], pending[bucket.id] = floor, set(below.tolist())
    voids = {topic.id: topic.voids for topic in snapshot.topics}
    return {
        topic: Needed(
            floor, sorted(o for o in pending.get(topic, ()) if o < floor), voids.get(topic, ())
        )
        for topic, floor in floors.items()
    }


def _held_by(entry: bytes) -> Iterator[int]:
    """Yield the first offsets of the batches that transactions hold."""
    decoded = decode(RecordKind.TRANSACTION, entry)
    if isinstance(decoded, AllTransactionsEntry):
        for transaction in decoded.transactions:
            for batches in transaction.branches.values():
                yield from (batch.first_offset for batch in batches)
