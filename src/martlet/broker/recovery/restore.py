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

from martlet.broker.broker import BrokerCore
from martlet.broker.channel.channel import Channel
from martlet.broker.delayed.bucket import restore_bucket
from martlet.broker.delayed.done_bitmap import DoneBitmap
from martlet.broker.errors import WritesRefused
from martlet.broker.policy import ChannelPolicy, TopicPolicy
from martlet.broker.queue.queue_log import QueueLog
from martlet.broker.recovery.journal import HALF, CursorState, pack_passed, unpack_topology
from martlet.broker.recovery.journal_replay import RecoveredState, RecoveredTopic
from martlet.broker.retention.eviction import settle
from martlet.broker.settings import BrokerSettings
from martlet.broker.topic.topic import Topic, join
from martlet.broker.transactions.half_topic import HalfTopic
from martlet.log import checkpoint_file as checkpoint
from martlet.log import fsync_marker
from martlet.log.commit_log import CommitLog
from martlet.log.index import ENTRY, Index
from martlet.log.record import RecordFlag, RecordKind, payload
from martlet.log.recovery import RecoveryReport, scan
from martlet.log.storage import Segment, Storage
from martlet.names import is_ephemeral

_NO_POSITION = 1 << 64
"""Behind every position there is."""
_PACK_ROWS = 1 << 16


@dataclass
class RestoredBroker:
    """What was found, for the log lines of a start."""

    report: RecoveryReport
    checkpoint_position: int | None
    notes: list[str] = field(default_factory=list)


def restore(
    storage: Storage,
    clock: Callable[[], int],
    random: Random,
    *,
    segment_bytes: int,
    **options: Any,
) -> tuple[BrokerCore, RestoredBroker]:
    """Open a data folder. `options` are those of `BrokerSettings`.

    What was found, and lost, stands in `RestoredBroker`; nothing that was answered OK is given up
    silently.
    """
    segments = storage.segments()
    state, position, notes = _from_checkpoint(storage, segments, segment_bytes)
    first_base = segments[0].base if segments else 0
    state.transactions.durable_position = first_base if position is None else position
    state.transactions.segments = segments
    report = RecoveryReport()
    for header, record in scan(segments, position or 0, report):
        if header.kind == RecordKind.BATCH:
            state.apply_batch(header, record)
            if header.properties_length:
                state.learn_sends(header, record)
            if header.topic == state.half_id and not header.flags & RecordFlag.RELOCATED:
                state.learn_half(header, record)
        elif header.kind == RecordKind.BUNDLE:
            state.learn_bundle(header, record)
        elif header.kind != RecordKind.EPOCH:
            state.apply(header.kind, header.topic, bytes(payload(header, record)))
    end = max(report.end_position, position or 0)
    while segments and segments[-1].base > end:
        storage.retire(segments.pop())
    if segments and end > segments[-1].base + segments[-1].capacity:
        notes.append(f"the log ends before the checkpoint's position {end}, where it goes on")
    doubtful = fsync_marker.found(storage)
    if doubtful is not None:
        fsync_marker.settle(segments, doubtful, end)
        notes.append(
            f"a flush had failed: what is behind position {doubtful} was written to the disk again"
        )
    fsync_marker.prepare(storage)
    epoch = max(state.epoch, report.last_epoch) + 1
    log = CommitLog(storage, segments, end, epoch, segment_bytes, position or 0)
    broker = BrokerCore(log, clock, random, BrokerSettings(**options))
    _settle(broker, state)
    for loss in settle(broker):
        for channel, lost in loss.unfinished.items():
            if len(lost):
                broker.lost(
                    loss.topic.home.name,
                    channel.name if channel else "",
                    int(lost[0]),
                    int(lost[-1]) + 1,
                    f"{len(lost)} of them were not finished, and are stored nowhere any more",
                )
    passed = [*report.damaged, *([report.cut] if report.cut is not None else [])]
    if passed:
        log.distrust_heads()
    try:
        log.append_journal(RecordKind.EPOCH, pack_passed(passed), topic=0, stored_at_ns=clock())
        if position is None:
            broker.begin_segment()
    except WritesRefused as error:
        # What is stored can be consumed all the same, and that makes room.
        notes.append(f"nothing can be written yet: {error}")
    return broker, RestoredBroker(report, position, notes)


def _from_checkpoint(
    storage: Storage, segments: list[Segment], segment_bytes: int
) -> tuple[RecoveredState, int | None, list[str]]:
    """The state by the checkpoint, the position behind which the log goes on, and what was found.

    Without a usable checkpoint, the indexes are made from the whole log and there is no position.
    """
    state = RecoveredState(storage, segment_bytes)
    notes: list[str] = []
    loaded = checkpoint.load(storage)
    if isinstance(loaded, str):
        if segments:
            notes.append(f"{loaded}; reading the whole log")
            _rebuild(state, segments, None, _NO_POSITION, {})
        return state, None, notes
    fields = unpack_topology(loaded.entries[0][2])
    position = state.durable_position = int(fields["position"])
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
    state: RecoveredState,
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
    for header, _ in scan(segments, 0, RecoveryReport()):
        if header.kind != RecordKind.BATCH or (topics is not None and header.topic not in topics):
            continue
        if header.position >= end_position and not (
            header.flags & RecordFlag.RELOCATED and header.first_offset < ends.get(header.topic, 0)
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


def _settle(broker: BrokerCore, state: RecoveredState) -> None:
    """Make topics and channels of what the journal has told."""
    broker.last_id = state.last_id
    broker.producers = state.producers
    broker.producers.topics = broker.by_id
    kept = set()
    for known in state.kept():
        if "delayed" in known.description:
            continue
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
    half = broker.by_id.get(state.half_id)
    state.transactions.settle(broker.transactions, half if isinstance(half, HalfTopic) else None)
    for id, known in state.topics.items():
        if "delayed" in known.description:
            kept.update(_settle_bucket(broker, state, id, known))
    for name in broker.log.storage.names("index"):
        if f"index/{name}" not in kept:
            broker.log.storage.remove(f"index/{name}")


def _topic(broker: BrokerCore, known: RecoveredTopic) -> Topic:
    description = known.description
    end_offset = max(known.end_offset, known.journaled_end)
    id, number = description["id"], description.get("queue", 0)
    queue = QueueLog(broker.log, id, number, description["id_base"], known.index, end_offset)
    kind = HalfTopic if description["name"] == HALF else Topic
    topic = kind(broker, id, description["name"], queue)
    topic.backlog_offset = description["backlog_offset"]
    if description["paused_at"] is not None:
        # Where a channel saw more than that, what tells that the topic went on is lost.
        seen = [told.limit for told in known.cursors.values()]
        seen += [told.get("limit", 0) for told in known.channels.values()]
        topic.paused_at = max(description["paused_at"], topic.backlog_offset, *seen)
    topic.voids = [(first, end) for first, end in description["voids"]]
    topic.policy = TopicPolicy.read(description.get("policy", {}))
    holders = [c for c in known.channels.values() if not _lets_go(c)]
    if holders and all(is_ephemeral(channel["name"]) for channel in holders):
        topic.backlog_offset = topic.limit
    return topic


def _lets_go(told: Mapping[str, Any]) -> bool:
    """Whether nothing is kept for a channel."""
    return ChannelPolicy.read(told.get("policy", {})).retain == "off"


def _restore_channels(broker: BrokerCore, topic: Topic, known: RecoveredTopic) -> None:
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
        start = part.queue.first_stored_offset if part.holders else part.backlog_offset
        for name in sorted(missing):
            channel = part.restore_channel(channels[name].id, name, start)
            channel.paused = channels[name].paused
            channel.configure(channels[name].policy)
            _wake(part, channel, start)


def _settle_bucket(
    broker: BrokerCore, state: RecoveredState, id: int, known: RecoveredTopic
) -> list[str]:
    """Make a bucket of what the journal has told, if its topic is there. Returns its index."""
    description = known.description
    target = broker.by_id.get(description["delayed"]["topic"])
    if target is None:
        return []
    ids, marks = state.forwarded.get(target.id, []), state.marks.get(id, DoneBitmap())
    end_offset = max(known.end_offset, known.journaled_end)
    restore_bucket(broker, target, description, known.index, end_offset, marks, ids)
    return [known.index.name]
