"""What is told: topics, as the journal has told them up to a record.

Everything that is told of a topic is taken in here in the order of the log, from a checkpoint, the
heads of segments and the entries behind them.  A power cut may have taken any of those that were
not durable, so what comes later counts where it contradicts what came before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from martlet.broker.delayed.bucket import forwarded_ids
from martlet.broker.delayed.done_bitmap import DoneBitmap
from martlet.broker.idempotence import ProducerSend, ProducerState, marks
from martlet.broker.queue.queue_log import Receipt
from martlet.broker.recovery.journal import (
    HALF,
    CursorState,
    Description,
    channel_of,
    unpack_topology,
)
from martlet.broker.recovery.transactions import TransactionJournal
from martlet.broker.transactions.half_topic import description_in_record
from martlet.log.atomic_batches import entry_of
from martlet.log.index import Index, IndexEntry
from martlet.log.record import Header, RecordFlag, RecordKind, properties
from martlet.log.storage import Storage
from martlet.names import is_ephemeral


@dataclass
class RecoveredTopic:
    """A topic at one of its queues.

    Attributes:
        description: the topic itself, as entries tell it.
        index: where its batches are.
        channels: how entries tell its channels, by number.
        cursors: how far those are.
    """

    description: Description
    index: Index
    end_offset: int = 0
    """Behind the last batch that is known."""
    journaled_end: int = 0
    """Up to where it once was, by what else was told of it: messages may have been lost since, and
    no later one may come under their offsets, which voids and cursors have gone over.
    """
    channels: dict[int, Description] = field(default_factory=dict)
    cursors: dict[int, CursorState] = field(default_factory=dict)

    def apply(self, description: Description) -> None:
        """The topic itself has changed."""
        self.description = description
        ends = [end for _, end in description["voids"]]
        self._was_at(description["backlog_offset"], description["paused_at"] or 0, *ends)

    def apply_channel(self, channel: Description) -> None:
        """A channel is made or has changed. Its start counts where its cursor is not known.

        Where there is an older one of its name, what tells that it was deleted is lost.
        """
        for id in [i for i, c in self.channels.items() if c["name"] == channel["name"]]:
            if id != channel["id"]:
                self.forget_channel(id)
        self.channels[channel["id"]] = channel
        start = channel.get("start")
        if start is not None:
            self.cursors.setdefault(channel["id"], CursorState(start, start))
        self._was_at(start or 0, channel.get("limit", 0))

    def forget_channel(self, id: int) -> None:
        """A channel is deleted."""
        self.channels.pop(id, None)
        self.cursors.pop(id, None)

    def apply_cursor(self, channel: int, entry: bytes) -> None:
        """A channel's cursor has moved."""
        cursor = self.cursors[channel]
        if cursor.apply(entry):
            self._was_at(cursor.next, cursor.scheduled_end)

    def add_batch(self, header: Header) -> None:
        """A batch was stored, or appended again."""
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
    """Topics as the journal has told them so far."""

    def __init__(self, storage: Storage, segment_bytes: int) -> None:
        self.storage = storage
        self.durable_position = 0
        """Up to where the log is known to have been durable."""
        self.producers = ProducerState.beside(segment_bytes)
        self.topics: dict[int, RecoveredTopic] = {}
        self._ids: dict[tuple[str, int], int] = {}
        """By name and queue: the topic that was told of last."""
        self.last_id = 0
        self.epoch = 0
        self.indexes: dict[int, Index] = {}
        """By topic id: what the checkpoint vouches for, or what was made from the log."""
        self.transactions = TransactionJournal()
        self.half_id = 0
        """Of the topic that holds half messages; 0 where there is none."""
        self.marks: dict[int, DoneBitmap] = {}
        """By bucket: what of it is done with."""
        self.forwarded: dict[int, list[int]] = {}
        """By topic id: the ids that messages had that came out of its buckets."""
        self.orphans: dict[int, list[Header]] = {}
        """By topic id: batches of topics that are not known, since what told of them, the head of
        their segment for one, is damaged.  A later head may tell of the topic, but of no batch.
        """

    def apply(self, kind: int, topic: int, entry: bytes) -> None:
        """Take in an entry of the journal that a record with a topic's number holds."""
        # A topic or channel may be unknown because its own entry was lost: its number is taken.
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
            fields = unpack_topology(entry)
            getattr(self, f"_apply_{fields['op']}")(fields)
        elif kind == RecordKind.TRANSACTION:
            self.transactions.apply(entry)
        elif kind == RecordKind.PRODUCERS:
            self.producers.learn(entry, self.durable_position)

    def _apply_snapshot(self, fields: Description) -> None:
        before, self.topics = self.topics, {}
        self.last_id = max(self.last_id, fields["last_id"])
        for description in fields["topics"]:
            id = description["id"]
            state = before.get(id) or self._begin(description)
            state.apply(description)
            state.end_offset = max(state.end_offset, description["end_offset"])
            cursors, state.channels, state.cursors = state.cursors, {}, {}
            for channel in description.pop("channels"):
                if channel["id"] in cursors:
                    state.cursors[channel["id"]] = cursors[channel["id"]]
                state.apply_channel(channel)
            self.topics[id] = state
            self._ids[_name_and_queue(description)] = id
        self.orphans.clear()

    def _begin(self, description: Description) -> RecoveredTopic:
        id = description["id"]
        self.last_id = max(self.last_id, id)
        index = self.indexes.get(id) or Index(self.storage, id, description.get("queue", 0))
        has_rows = index.end_row > index.first_row
        end_offset = index.row(index.end_row - 1).end_offset if has_rows else 0
        state = RecoveredTopic(description, index, end_offset)
        if description["name"] == HALF:
            self.half_id = id
        for header in self.orphans.pop(id, ()):
            state.add_batch(header)
        return state

    def _apply_together(self, fields: Description) -> None:
        for op in fields["ops"]:
            getattr(self, f"_apply_{op['op']}")(op)

    def _apply_topic(self, fields: Description) -> None:
        description = fields["topic"]
        id = description["id"]
        if id not in self.topics:
            self._forget_older(description)
            self.topics[id] = self._begin(description)
            self._ids[_name_and_queue(description)] = id
        self.topics[id].apply(description)

    def _forget_older(self, description: Description) -> None:
        """Where there is an older topic of its name, what tells that it was deleted is lost; an
        older one at its queue was never made, though that was written down.
        """
        older = self.topics.get(self._ids.get(_name_and_queue(description), 0))
        if older is None:
            return
        place = _place(older.description)
        if place == _place(description):
            del self.topics[older.description["id"]]
            return
        for id, topic in list(self.topics.items()):
            if _place(topic.description)[0] == place[0]:
                del self.topics[id]

    def _apply_topic_deleted(self, fields: Description) -> None:
        self.topics.pop(fields["id"], None)

    def _apply_channel(self, fields: Description) -> None:
        state = self.topics.get(fields["topic_id"])
        if state is None:
            return
        self.last_id = max(self.last_id, fields["channel"]["id"])
        state.apply_channel(fields["channel"])

    def _apply_channel_deleted(self, fields: Description) -> None:
        state = self.topics.get(fields["topic_id"])
        if state is not None:
            state.forget_channel(fields["id"])
            # It stands here since both are one entry; before, a topic's entry came first.
            if "backlog_offset" in fields:
                state.apply(state.description | {"backlog_offset": fields["backlog_offset"]})

    def _apply_channel_replayed(self, fields: Description) -> None:
        state = self.topics.get(fields["topic_id"])
        if state is not None and fields["id"] in state.cursors:
            state.cursors[fields["id"]].go_back(fields["offset"])

    def apply_batch(self, header: Header, record: memoryview) -> None:
        """Take in that a batch was stored."""
        self.last_id = max(self.last_id, header.topic)
        state = self.topics.get(header.topic)
        if state is None:
            self.orphans.setdefault(header.topic, []).append(header)
        else:
            state.add_batch(header)
        if header.flags & RecordFlag.FORWARDED:
            told = self.forwarded.setdefault(header.topic, [])
            told += forwarded_ids(properties(header, record))

    def learn_sends(self, header: Header, record: memoryview) -> None:
        """Know the sends that a batch has stored; of a copy they were known before."""
        if header.flags & RecordFlag.RELOCATED:
            return
        state = self.topics.get(header.topic)
        delayed = state.description.get("delayed") if state is not None else None
        home = delayed["topic"] if delayed else header.topic
        for number, sent in marks(properties(header, record)):
            receipt = Receipt()
            receipt.position = header.next_position
            offset = header.first_offset + number
            send = ProducerSend(receipt, header.topic, offset, sent.count, home)
            self.producers.add(sent, send, header.stored_at_ns)

    def learn_bundle(self, header: Header, record: memoryview) -> None:
        """Take in what stands in a bundle beside its batches, which come behind it."""
        told = json.loads(entry_of(header, record))
        for description in told["topics"]:
            if description["id"] not in self.topics:
                self._apply_topic({"topic": description})
        self.transactions.apply_bundle(told, header)

    def learn_half(self, header: Header, record: memoryview) -> None:
        """Know the half messages of a batch."""
        told = description_in_record(header, record)
        if told is not None:
            self.transactions.apply_half(told, header)

    def kept(self) -> list[RecoveredTopic]:
        """Those that stay, each topic's queues by number behind one another."""
        places = sorted((_place(self.topics[id].description), id) for id in self.topics)
        return [
            self.topics[id]
            for (first, _), id in places
            if first in self.topics and not is_ephemeral(self.topics[id].description["name"])
        ]


def _place(topic: Description) -> tuple[int, int]:
    """The number of a topic's first queue, and which of its queues this is."""
    id: int = topic["id"]
    return topic.get("of", id), topic.get("queue", 0)


def _name_and_queue(topic: Description) -> tuple[str, int]:
    return topic["name"], topic.get("queue", 0)
