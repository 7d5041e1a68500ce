"""Restoring: a broker from its data folder.

The checkpoint says how everything was at a position of the log; the records behind it say what
has happened since.  Where there is no usable checkpoint the log is read from its first segment,
which begins with the journal in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from martlet.broker.broker import Broker
from martlet.broker.channel import Channel
from martlet.broker.errors import WritesRefused
from martlet.broker.eviction import settle
from martlet.broker.journal import CursorState, Description, channel_of, unpack_topology
from martlet.broker.policy import ChannelPolicy, TopicPolicy
from martlet.broker.queue import Queue
from martlet.broker.topic import Topic, join
from martlet.log import checkpoint, doubt
from martlet.log.commitlog import CommitLog
from martlet.log.index import ENTRY, Entry, Index
from martlet.log.record import Flag, Header, Kind, payload
from martlet.log.recovery import Report, scan
from martlet.log.storage import Segment, Storage
from martlet.name import is_ephemeral

_NO_POSITION = 1 << 64
"""Behind every position there is."""
_PACK_ROWS = 1 << 16


@dataclass
class Restored:
    """What was found, for the log lines of a start."""

    report: Report
    checkpoint_position: int | None
    notes: list[str] = field(default_factory=list)


@dataclass
class _TopicState:
    description: Description
    index: Index
    end_offset: int = 0
    """Behind the last batch that is known."""
    told_end: int = 0
    """Up to where it once was, by what else was told of it: messages may have been lost since, and
    no later one may come under their offsets, which voids and cursors have gone over.
    """
    channels: dict[int, Description] = field(default_factory=dict)
    cursors: dict[int, CursorState] = field(default_factory=dict)

    def tell(self, description: Description) -> None:
        """The topic itself has changed."""
        self.description = description
        ends = [end for _, end in description["voids"]]
        self._was_at(description["backlog_offset"], description["paused_at"] or 0, *ends)

    def tell_channel(self, channel: Description) -> None:
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

    def tell_cursor(self, channel: int, entry: bytes) -> None:
        """A channel's cursor has moved."""
        cursor = self.cursors[channel]
        if cursor.apply(entry):
            self._was_at(cursor.next, cursor.scheduled_end)

    def add_batch(self, header: Header) -> None:
        """A batch was stored, or appended again."""
        end_offset = header.first_offset + header.count
        if header.first_offset >= self.end_offset:
            self.index.add(
                Entry(
                    header.first_offset,
                    header.position,
                    header.count,
                    header.length,
                    header.stored_at_ns,
                    header.deliver_at_ns,
                )
            )
        elif header.flags & Flag.RELOCATED:
            self.index.move(header.first_offset, header.position)
        self.end_offset = max(self.end_offset, end_offset)

    def _was_at(self, *offsets: int) -> None:
        self.told_end = max(self.told_end, *offsets)


class _State:
    """Topics as the journal has told them so far."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.topics: dict[int, _TopicState] = {}
        self.last_id = 0
        self.epoch = 0
        self.indexes: dict[int, Index] = {}
        """By topic id: what the checkpoint vouches for, or what was made from the log."""
        self.orphans: dict[int, list[Header]] = {}
        """By topic id: batches of topics that are not known, since what told of them, the head of
        their segment for one, is damaged.  A later head may tell of the topic, but of no batch.
        """

    def apply(self, kind: int, topic: int, entry: bytes) -> None:
        # A topic or channel may be unknown because its own entry was lost: its number is taken.
        self.last_id = max(self.last_id, topic)
        if kind == Kind.CURSOR:
            channel, full = channel_of(entry)
            self.last_id = max(self.last_id, channel)
            state = self.topics.get(topic)
            if state is None:
                return
            if full:
                state.cursors[channel] = CursorState(0, 0)
            if channel in state.cursors:
                state.tell_cursor(channel, entry)
        elif kind == Kind.TOPOLOGY:
            fields = unpack_topology(entry)
            getattr(self, f"_apply_{fields['op']}")(fields)

    def _apply_snapshot(self, fields: Description) -> None:
        before, self.topics = self.topics, {}
        self.last_id = max(self.last_id, fields["last_id"])
        for description in fields["topics"]:
            id = description["id"]
            state = before.get(id) or self._begin(description)
            state.tell(description)
            state.end_offset = max(state.end_offset, description["end_offset"])
            cursors, state.channels, state.cursors = state.cursors, {}, {}
            for channel in description.pop("channels"):
                if channel["id"] in cursors:
                    state.cursors[channel["id"]] = cursors[channel["id"]]
                state.tell_channel(channel)
            self.topics[id] = state
        self.orphans.clear()

    def _begin(self, description: Description) -> _TopicState:
        id = description["id"]
        self.last_id = max(self.last_id, id)
        index = self.indexes.get(id) or Index(self.storage, id, description.get("queue", 0))
        has_rows = index.end_row > index.first_row
        end_offset = index.row(index.end_row - 1).end_offset if has_rows else 0
        state = _TopicState(description, index, end_offset)
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
            # Where there is an older one of its name, what tells that it was deleted is lost.
            older = [i for i, t in self.topics.items() if _excludes(t.description, description)]
            for number in older:
                del self.topics[number]
            self.topics[id] = self._begin(description)
        self.topics[id].tell(description)

    def _apply_topic_deleted(self, fields: Description) -> None:
        self.topics.pop(fields["id"], None)

    def _apply_channel(self, fields: Description) -> None:
        state = self.topics.get(fields["topic_id"])
        if state is None:
            return
        self.last_id = max(self.last_id, fields["channel"]["id"])
        state.tell_channel(fields["channel"])

    def _apply_channel_deleted(self, fields: Description) -> None:
        state = self.topics.get(fields["topic_id"])
        if state is not None:
            state.forget_channel(fields["id"])
            # It stands here since both are one entry; before, a topic's entry came first.
            if "backlog_offset" in fields:
                state.tell(state.description | {"backlog_offset": fields["backlog_offset"]})

    def _apply_channel_replayed(self, fields: Description) -> None:
        state = self.topics.get(fields["topic_id"])
        if state is not None and fields["id"] in state.cursors:
            state.cursors[fields["id"]].go_back(fields["offset"])

    def apply_batch(self, header: Header) -> None:
        self.last_id = max(self.last_id, header.topic)
        state = self.topics.get(header.topic)
        if state is None:
            self.orphans.setdefault(header.topic, []).append(header)
        else:
            state.add_batch(header)

    def kept(self) -> list[_TopicState]:
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


def _excludes(known: Description, new: Description) -> bool:
    """Whether there can not be both: another topic of the same name, or the same queue of one."""
    same_topic = _place(known)[0] == _place(new)[0]
    return bool(known["name"] == new["name"]) and (not same_topic or _place(known) == _place(new))


def restore(
    storage: Storage,
    clock: Callable[[], int],
    random: Random,
    *,
    segment_bytes: int,
    **options: Any,
) -> tuple[Broker, Restored]:
    """Open a data folder. `options` go to `Broker`.

    What was found, and lost, stands in `Restored`; nothing that was answered OK is given up
    silently.
    """
    segments = storage.segments()
    state, position, notes = _from_checkpoint(storage, segments)
    report = Report()
    for header, record in scan(segments, position or 0, report):
        if header.kind == Kind.BATCH:
            state.apply_batch(header)
        elif header.kind != Kind.EPOCH:
            state.apply(header.kind, header.topic, bytes(payload(header, record)))
    end = max(report.end_position, position or 0)
    while segments and segments[-1].base > end:
        storage.retire(segments.pop())
    if segments and end > segments[-1].base + segments[-1].capacity:
        notes.append(f"the log ends before the checkpoint's position {end}, where it goes on")
    doubtful = doubt.found(storage)
    if doubtful is not None:
        doubt.settle(segments, doubtful, end)
        notes.append(
            f"a flush had failed: what is behind position {doubtful} was written to the disk again"
        )
    doubt.prepare(storage)
    epoch = max(state.epoch, report.last_epoch) + 1
    log = CommitLog(storage, segments, end, epoch, segment_bytes, position or 0)
    broker = Broker(log, clock, random, **options)
    _settle(broker, state)
    for loss in settle(broker):
        for channel, lost in loss.unfinished.items():
            if len(lost):
                broker.lost(
                    loss.topic.name,
                    channel.name if channel else "",
                    int(lost[0]),
                    int(lost[-1]) + 1,
                    f"{len(lost)} of them were not finished, and are stored nowhere any more",
                )
    if report.damaged or report.cut is not None:
        log.distrust_heads()
    try:
        log.append_journal(Kind.EPOCH, b"", topic=0, stored_at_ns=clock())
        if position is None:
            broker.begin_segment()
    except WritesRefused as error:
        # What is stored can be consumed all the same, and that makes room.
        notes.append(f"nothing can be written yet: {error}")
    return broker, Restored(report, position, notes)


def _from_checkpoint(
    storage: Storage, segments: list[Segment]
) -> tuple[_State, int | None, list[str]]:
    """The state by the checkpoint, the position behind which the log goes on, and what was found.

    Without a usable checkpoint, the indexes are made from the whole log and there is no position.
    """
    state = _State(storage)
    notes: list[str] = []
    loaded = checkpoint.load(storage)
    if isinstance(loaded, str):
        if segments:
            notes.append(f"{loaded}; reading the whole log")
            _rebuild(state, segments, None, _NO_POSITION, {})
        return state, None, notes
    fields = unpack_topology(loaded.entries[0][2])
    position = int(fields["position"])
    state.epoch = int(fields["epoch"])
    missing: set[int] = set()
    numbers = {topic["id"]: topic.get("queue", 0) for topic in fields["topics"]}
    for told, (first_row, stored, crc) in fields["indexes"].items():
        id = int(told)
        index = Index(storage, id, numbers.get(id, 0), first_row, stored, crc)
        if index.verify():
            state.indexes[id] = index
        else:
            notes.append(f"the index {index.name} is missing or wrong; it is made from the log")
            missing.add(id)
    if missing:
        ends = {told["id"]: int(told["end_offset"]) for told in fields["topics"]}
        _rebuild(state, segments, missing, position, ends)
    for kind, topic, entry in loaded.entries:
        state.apply(kind, topic, entry)
    return state, position, notes


def _rebuild(
    state: _State,
    segments: list[Segment],
    topics: set[int] | None,
    end_position: int,
    ends: Mapping[int, int],
) -> None:
    """Make indexes from the log below a position: those of some topics, or of all.

    Copies behind the position count too, where a topic's end says that their batches were stored
    before it: the segments that they were copied out of may have gone since.
    """
    rows: dict[int, list[tuple[int, ...]]] = {}
    numbers: dict[int, int] = {}
    packed: dict[int, list[Any]] = {}
    for header, _ in scan(segments, 0, Report()):
        if header.kind != Kind.BATCH or (topics is not None and header.topic not in topics):
            continue
        if header.position >= end_position and not (
            header.flags & Flag.RELOCATED and header.first_offset < ends.get(header.topic, 0)
        ):
            continue
        some = rows.setdefault(header.topic, [])
        numbers[header.topic] = header.queue
        some.append(
            (
                header.first_offset,
                header.position,
                header.count,
                header.length,
                header.stored_at_ns,
                header.deliver_at_ns,
            )
        )
        if len(some) == _PACK_ROWS:
            packed.setdefault(header.topic, []).append(np.array(some, ENTRY))
            some.clear()
    for topic, some in rows.items():
        found = np.concatenate([*packed.get(topic, []), np.array(some, ENTRY)])
        found = found[np.lexsort((found["position"], found["first_offset"]))]
        last = np.append(found["first_offset"][1:] != found["first_offset"][:-1], True)
        found = found[last]
        index = Index(state.storage, topic, numbers[topic])
        index.fill(found)
        state.indexes[topic] = index


def _settle(broker: Broker, state: _State) -> None:
    """Make topics and channels of what the journal has told."""
    broker.last_id = state.last_id
    kept = set()
    for known in state.kept():
        kept.add(known.index.name)
        topic = _topic(broker, known)
        broker.adopt(topic)
        if topic.number:
            first = broker.topics[topic.name]
            topic.parts = first.parts
            topic.parts.append(topic)
            first.several = topic.several = True
        _restore_channels(broker, topic, known)
    for topic in broker.topics.values():
        _harmonise(topic)
        for name in topic.channels:
            join(topic, name)
    for name in broker.log.storage.names("index"):
        if f"index/{name}" not in kept:
            broker.log.storage.remove(f"index/{name}")


def _topic(broker: Broker, known: _TopicState) -> Topic:
    description = known.description
    end_offset = max(known.end_offset, known.told_end)
    id, number = description["id"], description.get("queue", 0)
    queue = Queue(broker.log, id, number, description["id_base"], known.index, end_offset)
    topic = Topic(broker, id, description["name"], queue)
    topic.backlog_offset = description["backlog_offset"]
    if description["paused_at"] is not None:
        # Where a channel saw more than that, what tells that the topic went on is lost.
        seen = [told.limit for told in known.cursors.values()]
        seen += [told.get("limit", 0) for told in known.channels.values()]
        topic.paused_at = max(description["paused_at"], topic.backlog_offset, *seen)
    topic.voids = [(first, end) for first, end in description["voids"]]
    topic.policy = TopicPolicy.read(description.get("policy", {}))
    if known.channels and all(is_ephemeral(c["name"]) for c in known.channels.values()):
        topic.backlog_offset = topic.limit
    return topic


def _restore_channels(broker: Broker, topic: Topic, known: _TopicState) -> None:
    now_ns = broker.clock()
    queue = topic.queue
    for channel_id, told in known.channels.items():
        if is_ephemeral(told["name"]):
            continue
        # Its place was lost with a damaged record: everything that is stored comes again.
        start = queue.first_stored_offset if channel_id not in known.cursors else 0
        cursor = known.cursors.get(channel_id) or CursorState(start, start)
        kept_from = min(cursor.next, queue.start_offset)
        voids = [(first, end) for first, end in told.get("voids", ()) if end > kept_from]
        channel = topic.restore_channel(channel_id, told["name"], cursor.next, voids)
        channel.paused = told["paused"]
        channel.configure(ChannelPolicy.read(told.get("policy", {})))
        cursor.restore(channel.cursor, now_ns)
        _wake(topic, channel, cursor.scheduled_end)


def _wake(topic: Topic, channel: Channel, scheduled_end: int) -> None:
    channel.counted_from = topic.limit
    topic.schedule(channel, scheduled_end)
    channel.cursor.deferred_ahead = topic.deferred_from(channel.cursor.next)
    channel.arm()


def _harmonise(topic: Topic) -> None:
    """See that each channel is at all queues.

    One entry tells of all of them, so a channel can be missing at one only where a power cut took
    the entry of the growth, and left a later one that tells of the new queues, as of a pause.  The
    channel was there when they were made, so all that is stored in them is for it; some of it may
    come again.
    """
    channels = {name: channel for part in topic.parts for name, channel in part.channels.items()}
    for part in topic.parts:
        missing = channels.keys() - part.channels.keys()
        start = part.queue.first_stored_offset if part.channels else part.backlog_offset
        for name in sorted(missing):
            channel = part.restore_channel(channels[name].id, name, start)
            channel.paused = channels[name].paused
            channel.configure(channels[name].policy)
            _wake(part, channel, start)
