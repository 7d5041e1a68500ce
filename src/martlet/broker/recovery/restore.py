"""Restore a broker from its data folder.

The checkpoint is the state at a position of the log; the records behind it are the changes since.
Without a usable checkpoint the log is read from its first segment, which begins with the full
journal::

    checkpoint         | state at P |
    log       | retired | segment       | segment               | torn tail
                               P ^ replay ----------------------> ^ appends go on here
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import Any, NamedTuple

import numpy as np

from martlet.broker.broker import BrokerCore, BrokerSettings
from martlet.broker.channel.channel import Channel
from martlet.broker.context import BrokerClock
from martlet.broker.delayed.bucket import restore_bucket
from martlet.broker.delayed.done_bitmap import DoneBitmap
from martlet.broker.errors import NotFound, WritesRefused
from martlet.broker.journal.cursors import CursorState
from martlet.broker.journal.entries import HALF, checkpoint_head, encode_passed
from martlet.broker.policy import ChannelPolicy, TopicPolicy
from martlet.broker.queue.cursor import Cursor
from martlet.broker.queue.queue_log import QueueLog
from martlet.broker.recovery.journal_replay import RecoveredState, RecoveredTopic
from martlet.broker.recovery.standby import StandbyCheckpoint, StandbyTopic, at_head, is_shown
from martlet.broker.retention.checkpoint import may_shorten
from martlet.broker.retention.eviction import settle
from martlet.broker.retry import CrashCharges
from martlet.broker.topic.topic import Topic, join
from martlet.broker.transactions.half_messages import HalfTopic
from martlet.log import checkpoint_file as checkpoint
from martlet.log import fsync_marker
from martlet.log.commit_log import CommitLog
from martlet.log.copy import CopiedLog
from martlet.log.cut import finish_cut
from martlet.log.index import ENTRY, Index
from martlet.log.record import Header, RecordFlag, RecordKind, payload
from martlet.log.recovery import LogDamage, RecoveryReport, scan
from martlet.log.segmented import spans
from martlet.log.storage import Segment, Storage
from martlet.names import is_ephemeral
from martlet.text import SECOND_NS, format_duration

_NO_POSITION = 1 << 64
"""A position behind all others."""
_PACK_ROWS = 1 << 16
_CLOCK_SLACK_NS = SECOND_NS
"""So far may the clock be behind the log without a warning."""


@dataclass
class RestoredBroker:
    """The results of a restore, for the log lines of a start."""

    report: RecoveryReport
    checkpoint_position: int | None
    notes: list[str] = field(default_factory=list)
    has_begun: bool = True
    """Whether the log has a record of the new epoch: it lacks one while nothing can be written."""


class BrokerRecovery:
    """A restore in steps, for a log that is complete or that another replica still writes.

    Take in the records of the log in order, then end the recovery with the log to append to::

        recovery = BrokerRecovery(storage, segments, segment_bytes)
        recovery.take_in(scan(segments, recovery.position, report))
        broker, restored = recovery.begin(log, report, clock, random, options)

    Args:
        segment_bytes: the capacity of new segments.
        copy: the log, where another replica writes it: every record before its end is there.
            Without it the log is the broker's own, and a power cut may have lost any record that
            was not durable.
    """

    def __init__(
        self,
        storage: Storage,
        segments: list[Segment],
        segment_bytes: int,
        *,
        copy: CopiedLog | None = None,
    ) -> None:
        self._state, self.checkpoint_position, indexed_to, self.notes = _from_checkpoint(
            storage, segments, segment_bytes, copy
        )
        first_base = segments[0].base if segments else 0
        self.position = first_base if self.checkpoint_position is None else self.checkpoint_position
        """The records before it are taken in."""
        assert copy is None or self.position <= copy.end_position
        self._copy = copy
        self._gap_count = 0 if copy is None else copy.gap_count
        self._segments = segments
        self._indexed_to = indexed_to
        """Indexes were built from the log up to here."""
        self.checkpoint: StandbyCheckpoint | None = None
        """A checkpoint that waits to be saved."""
        self._shortened_at = -1
        """The number of retired segments when the indexes were last shortened."""
        transactions = self._state.transactions
        transactions.durable_position = self.position if copy is None else None
        transactions.segments = segments

    def take_in(self, records: Iterable[tuple[Header, memoryview]]) -> None:
        """Apply records that follow those taken in so far."""
        for header, record in records:
            if header.kind == RecordKind.TOPOLOGY and self._copy is not None:
                self._begin_checkpoint(header, record)
            self._apply(header, record)
            self.position = max(self.position, header.next_position)

    @property
    def is_usable(self) -> bool:
        """Whether the state can go on with the copied log. Where segments are missing in it that
        the primary had retired before they were copied, batches moved out of them come behind later
        ones: the state must be built anew from the whole log.
        """
        return self._copy is None or self._copy.gap_count == self._gap_count

    def is_usable_for(self, copy: CopiedLog) -> bool:
        """Whether the state can go on with a copied log, which may have been opened again."""
        return copy is self._copy and self.is_usable and self.position <= copy.end_position

    def follow(self, position: int) -> None:
        """Take in the copied log up to a position."""
        assert self._copy is not None and self.is_usable
        assert self.position <= self._copy.end_position, "what was taken in has been cut off"
        self.take_in(self._copy.records(self.position, position))

    # the state as a `martlet.broker.queue.queue_log.LogView`

    def is_confirmed(self, position: int) -> bool:
        """Whether everything in the state lies before a confirmed position: a checkpoint, or
        indexes that were built from the log, may be ahead when it begins.
        """
        return self._indexed_to <= self.position <= position

    @property
    def log(self) -> CopiedLog:
        """The copied log."""
        assert self._copy is not None
        return self._copy

    @property
    def epoch(self) -> int:
        """The epoch of the newest record in the copied log."""
        return self.log.epochs.last

    @property
    def visible_position(self) -> int:
        """The position behind the last record that readers of the log may see."""
        return self.position

    def all_topics(self) -> Iterable[StandbyTopic]:
        """Return each topic, at its queue 0."""
        for recovered in self._state.topics.values():
            if not recovered.record.queue and is_shown(recovered):
                yield StandbyTopic(self._state, self.log, recovered)

    def find_topic(self, name: str) -> StandbyTopic:
        """Return the topic of that name, at its queue 0. Raises NotFound."""
        recovered = self._state.find(name, 0)
        if recovered is None or not is_shown(recovered):
            raise NotFound(f"there is no topic {name!r}")
        return StandbyTopic(self._state, self.log, recovered)

    # checkpoints

    def _begin_checkpoint(self, header: Header, record: memoryview) -> None:
        """Capture a checkpoint where a segment begins, unless one waits to be saved."""
        position = header.position
        if self.checkpoint is not None or position < self._indexed_to:
            return
        if any(segment.base == position for segment in self._segments):
            state = self._state
            # Where the disk is full now, the next segment's head will do.
            with suppress(OSError):
                self._shorten_indexes()
                self.checkpoint = at_head(header, record, state.topics.values(), state.marks)

    def _shorten_indexes(self) -> None:
        """Rewrite index files that mostly cover retired segments; the old files stay until a
        checkpoint with the new ones is saved. Raises OSError.
        """
        log = self.log
        if log.retired_count == self._shortened_at:
            return
        for topic in self._state.topics.values():
            index = topic.index
            if may_shorten(index, index.end_row):
                row = topic.stored_in(log).first_stored_row
                if may_shorten(index, row):
                    index.drop_before(row)
        self._shortened_at = log.retired_count

    def saved(self, checkpoint: StandbyCheckpoint) -> None:
        """Record that a checkpoint was saved, and remove older index files, and the segments before
        it that, by the log, no replica needs.
        """
        copy = self._copy
        assert copy is not None
        position = self.checkpoint_position = checkpoint.position
        retired = self._state.retired
        for segment in list(copy.segments):
            if segment.base in retired and segment.base + segment.capacity <= position:
                copy.retire(segment)
        retired &= {segment.base for segment in copy.segments}
        kept = checkpoint.indexes.keys() | {t.index.name for t in self._state.topics.values()}
        for name in copy.storage.names("index"):
            if f"index/{name}" not in kept:
                copy.storage.remove(f"index/{name}")

    def take_checkpoint(self, durable_position: int) -> StandbyCheckpoint | None:
        """Return the newest checkpoint of a copied log, once; None while the durable log does not
        reach one.
        """
        waiting = self.checkpoint
        if waiting is None or waiting.durable_from > durable_position:
            return None
        self.checkpoint = None
        return waiting

    def _apply(self, header: Header, record: memoryview) -> None:
        state = self._state
        state.newest_ns = max(state.newest_ns, header.stored_at_ns)
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

    @property
    def last_epoch(self) -> int:
        """The epoch of the checkpoint; 0 without one."""
        return self._state.epoch

    def begin(
        self,
        log: CommitLog,
        report: RecoveryReport,
        clock: BrokerClock,
        random: Random,
        options: Mapping[str, Any],
    ) -> tuple[BrokerCore, RestoredBroker]:
        """Make a broker of the recovered state, and begin its epoch in the log.

        Args:
            log: the same log, at the end of what was taken in.
            options: those of `BrokerSettings`.
        """
        assert self.position <= log.position
        broker = BrokerCore(log, clock, random, BrokerSettings(**options))
        self._go_on_in_time(broker)
        _settle(broker, self._state)
        _report_losses(broker)
        passed = [*report.damaged, *([report.cut] if report.cut is not None else [])]
        if passed or self._copy is not None:  # A copy may end in the middle of a head.
            log.distrust_heads()
        has_begun = False
        try:
            broker.journal(RecordKind.EPOCH, encode_passed(passed))
            has_begun = True
            if self.checkpoint_position is None:
                broker.begin_segment()
        except WritesRefused as error:
            # Stored messages can still be consumed, which frees space.
            self.notes.append(f"nothing can be written yet: {error}")
        return broker, RestoredBroker(report, self.checkpoint_position, self.notes, has_begun)

    def _go_on_in_time(self, broker: BrokerCore) -> None:
        """Let what is stored from now on be no older than what is stored already."""
        newest = [recovered.index.newest_ns for recovered in self._state.topics.values()]
        broker.last_stored_ns = max(self._state.newest_ns, *newest, 0)
        behind_ns = broker.last_stored_ns - broker.wall()
        if behind_ns > _CLOCK_SLACK_NS:
            at = datetime.fromtimestamp(broker.last_stored_ns // SECOND_NS, UTC)
            self.notes.append(
                f"the clock is {format_duration(behind_ns)} behind the newest record of the log, of"
                f" {at:%Y-%m-%d %H:%M:%S} UTC: it is wrong now, or it was then. New messages are"
                " stored as of that time and later until the clock has caught up, since stored"
                " times never go back; retention and searches by time go by stored times"
            )


def restore(
    storage: Storage, clock: BrokerClock, random: Random, *, segment_bytes: int, **options: Any
) -> tuple[BrokerCore, RestoredBroker]:
    """Open a data folder. `options` are those of `BrokerSettings`.

    `RestoredBroker` reports recovered and lost data; no message that was answered OK is dropped
    silently.
    """
    segments = storage.segments()
    finish_cut(storage, segments)
    recovery = BrokerRecovery(storage, segments, segment_bytes)
    position = recovery.checkpoint_position or 0
    report = RecoveryReport()
    recovery.take_in(scan(segments, position, report))
    end = max(report.end_position, position)
    while segments and segments[-1].base > end:  # begun, but without a good record
        storage.retire(segments.pop())
    if segments and end > segments[-1].base + segments[-1].capacity:
        recovery.notes.append(
            f"the log ends before the checkpoint's position {end}, where it goes on"
        )
    recovery.notes += fsync_marker.settle_doubtful(storage, segments, end)
    epoch = max(recovery.last_epoch, report.last_epoch) + 1
    log = CommitLog(storage, segments, end, epoch, segment_bytes, position)
    return recovery.begin(log, report, clock, random, options)


def promote(
    copy: CopiedLog,
    recovery: BrokerRecovery,
    epoch: int,
    clock: BrokerClock,
    random: Random,
    *,
    segment_bytes: int,
    **options: Any,
) -> tuple[BrokerCore, RestoredBroker]:
    """Make a broker of a copied log, which must not be used any more, and begin an epoch, higher
    than all in it. `recovery`, that of the copy, takes in what it has not yet; `options` are those
    of `BrokerSettings`.
    """
    assert epoch > copy.epochs.last
    copy.restart()
    recovery.follow(copy.end_position)
    report = RecoveryReport(
        end_position=copy.position,
        last_epoch=copy.epochs.last,
        epochs=copy.epochs,
        damaged=[LogDamage(*span, "no replica has it undamaged") for span in copy.damaged],
    )
    checkpointed = recovery.checkpoint_position or 0
    log = CommitLog(copy.storage, copy.segments, copy.position, epoch, segment_bytes, checkpointed)
    log.damaged = copy.damaged
    return recovery.begin(log, report, clock, random, options)


def _report_losses(broker: BrokerCore) -> None:
    """Report the messages that were given up for space and that a channel had not finished."""
    for loss in settle(broker):
        for channel, lost in loss.unfinished.items():
            if len(lost):
                broker.lost(
                    (loss.topic.target or loss.topic).name,
                    channel.name if channel else "",
                    int(lost[0]),
                    int(lost[-1]) + 1,
                    f"{len(lost)} of them were not finished, and are stored nowhere any more",
                )


def _from_checkpoint(
    storage: Storage, segments: list[Segment], segment_bytes: int, copy: CopiedLog | None
) -> tuple[RecoveredState, int | None, int, list[str]]:
    """Return the state by the checkpoint, the position from which to replay, that up to which
    indexes were built from a copied log, and notes. Without a usable checkpoint there is no
    position, and the indexes are rebuilt from the log, of a copied one as far as it counts.
    """
    copied_to = None if copy is None else copy.end_position
    end_position = _NO_POSITION if copied_to is None else copied_to
    state = RecoveredState(storage, segment_bytes)
    if copied_to is not None:
        state.durable_position = None
    notes: list[str] = []
    loaded = checkpoint.load(storage)
    if (
        copied_to is not None
        and not isinstance(loaded, str)
        and not _is_continued(checkpoint_head(loaded).position, segments, copied_to)
    ):
        loaded = "the checkpoint is ahead of the log, or segments behind it were retired"
        # Durably, so that no later start of a broker on this folder uses it either.
        storage.replace(checkpoint.NAME, b"")
    if isinstance(loaded, str):
        if segments:
            notes.append(f"{loaded}; reading the whole log")
            _rebuild(state, _all_records(segments, copy), None, end_position, {})
        return state, None, copied_to or 0, notes
    head = checkpoint_head(loaded)
    position = head.position
    if copied_to is None:
        state.durable_position = position
    state.epoch = head.epoch
    state.newest_ns = loaded.stored_at_ns
    missing: set[int] = set()
    numbers = {topic.id: topic.queue for topic in head.snapshot.topics}
    for id, stored in head.indexes.items():
        index = Index(storage, id, numbers.get(id, 0), *stored)
        if index.verify():
            state.indexes[id] = index
        else:
            notes.append(f"the index {index.name} is missing or wrong; it is made from the log")
            missing.add(id)
    if missing:
        ends = {topic.id: topic.end_offset or 0 for topic in head.snapshot.topics}
        _rebuild(state, _all_records(segments, copy), missing, position, ends)
    for kind, topic, entry in loaded.entries:
        state.apply(kind, topic, entry)
    return state, position, (copied_to or 0) if missing else 0, notes


def _is_continued(position: int, segments: list[Segment], end: int) -> bool:
    """Whether a log that ends at a position goes on from an earlier one with no segment missing: a
    state from before a missing one lacks the batches that were moved out of it.
    """
    covered = spans(segments)
    return bool(covered) and covered[-1][0] <= position <= end


def _all_records(
    segments: list[Segment], copy: CopiedLog | None
) -> Iterable[tuple[Header, memoryview]]:
    """Return the records of a log, checked. Those of a copied one were checked before, so that a
    standby, which serves meanwhile, reads their headers alone.
    """
    if copy is None:
        return scan(segments, 0, RecoveryReport())
    return copy.records(0, copy.end_position)


def _rebuild(
    state: RecoveredState,
    records: Iterable[tuple[Header, memoryview]],
    topics: set[int] | None,
    end_position: int,
    ends: Mapping[int, int],
) -> None:
    """Rebuild indexes from the log below a position, of some topics or of all. Copies behind it are
    included if, by the topic's end, their batches were stored before: the segments of the originals
    may have been retired since.
    """
    rows: dict[int, list[tuple[int, ...]]] = {}
    numbers: dict[int, int] = {}
    packed: dict[int, list[Any]] = {}
    for header, _ in records:
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
        all_rows = np.concatenate([*packed.get(topic, []), np.array(some, ENTRY)])
        all_rows = all_rows[np.lexsort((all_rows["position"], all_rows["first_offset"]))]
        last = np.append(all_rows["first_offset"][1:] != all_rows["first_offset"][:-1], True)
        all_rows = all_rows[last]
        index = Index(state.storage, topic, numbers[topic])
        index.fill(all_rows)
        state.indexes[topic] = index


def _settle(broker: BrokerCore, state: RecoveredState) -> None:
    """Create topics and channels from the recovered state."""
    broker.last_id = state.last_id
    broker.producers = state.producers
    broker.producers.topics = broker.by_id
    kept = set()
    half: HalfTopic | None = None
    for recovered in state.kept():
        if recovered.record.delayed is not None:
            continue
        kept.add(recovered.index.name)
        if recovered.record.name == HALF:
            half = HalfTopic(broker, recovered.record.id, HALF, _queue(broker, recovered))
            half.voids = list(recovered.record.voids)
            broker.by_id[half.id] = half
            continue
        topic = _topic(broker, recovered)
        broker.adopt(topic)
        if topic.number:
            broker.topics[topic.name].add_queue(topic)
        _restore_channels(broker, topic, recovered)
    for topic in broker.topics.values():
        _harmonise(topic)
        for name in topic.channels:
            join(topic, name)
    state.transactions.settle(broker.transactions, half)
    for recovered in state.topics.values():
        record = recovered.record
        target = broker.queues.get(record.delayed.topic) if record.delayed is not None else None
        if target is not None:
            kept.add(recovered.index.name)
            restore_bucket(
                *(broker, broker.delays, target, record, recovered.index, recovered.next_offset),
                state.marks.get(record.id, DoneBitmap()),
                state.forwarded.get(target.id, []),
            )
    for name in broker.log.storage.names("index"):
        if f"index/{name}" not in kept:
            broker.log.storage.remove(f"index/{name}")


def _queue(broker: BrokerCore, recovered: RecoveredTopic) -> QueueLog:
    record, index, end_offset = recovered.record, recovered.index, recovered.next_offset
    numbers = record.id, record.queue, record.id_base
    return QueueLog(broker.log, *numbers, index, end_offset, priority=record.priority)


def _topic(broker: BrokerCore, recovered: RecoveredTopic) -> Topic:
    record = recovered.record
    topic = Topic(broker, record.id, record.name, _queue(broker, recovered))
    topic.backlog_offset = record.backlog_offset
    if record.paused_at is not None:
        # If a channel saw more than that, the entry that ended the pause is lost.
        seen = [cursor.limit for cursor in recovered.cursors.values()]
        seen += [channel.limit or 0 for channel in recovered.channels.values()]
        topic.paused_at = max(record.paused_at, topic.backlog_offset, *seen)
    topic.voids = list(record.voids)
    topic.policy = TopicPolicy.read(record.policy or {})
    topic.key_hash = record.key_hash
    holders = [
        channel
        for channel in recovered.channels.values()
        if ChannelPolicy.read(channel.policy or {}).retain == "on"
    ]
    if holders and all(is_ephemeral(channel.name) for channel in holders):
        topic.backlog_offset = topic.limit
    return topic


class _Now(NamedTuple):
    """The time of a start, by all clocks."""

    running_ns: int
    wall_ns: int
    stored_ns: int


def _restore_channels(broker: BrokerCore, topic: Topic, recovered: RecoveredTopic) -> None:
    queue = topic.queue
    for channel_id, record in recovered.channels.items():
        if is_ephemeral(record.name):
            continue
        # If a damaged record has lost its cursor, everything stored is redelivered.
        start = queue.first_stored_offset if channel_id not in recovered.cursors else 0
        cursor = recovered.cursors.get(channel_id) or CursorState(start, start)
        kept_from = min(cursor.next, queue.start_offset)
        voids = [void for void in record.voids if void[1] > kept_from]
        channel = topic.restore_channel(channel_id, record.name, cursor.next, voids)
        channel.paused = record.paused
        channel.configure(ChannelPolicy.read(record.policy or {}))
        running_ns, pending = broker.clock(), channel.cursor.pending
        now = _Now(
            running_ns, running_ns + pending.wall_ahead_ns, running_ns + pending.stored_ahead_ns
        )
        _restore_cursor(channel.cursor, cursor, now)
        _wake(topic, channel, cursor.scheduled_end)


def _restore_cursor(cursor: Cursor, state: CursorState, now: _Now) -> None:
    """Set a new cursor to a state. A requeued message waits for the rest of its delay, by stored
    times, since the date may have been wrong, or be so now; a deferred one waits for its date.
    """
    cursor.window.reset(state.next)
    cursor.journal_number = state.number
    for first, end in state.ranges:
        for offset in range(first, end):
            if offset not in state.pending:
                cursor.pending.wait(offset, 1, 0, now.running_ns)
    for offset in sorted(state.pending):
        attempts, due_ns, failures = state.pending[offset]
        if attempts or not _is_deferred(cursor, offset, due_ns, now):
            due_ns = _resumed(due_ns, now)
            message = cursor.pending.wait(offset, attempts, due_ns, now.running_ns, failures)
        else:
            message = cursor.pending.defer(offset, due_ns, now.running_ns, failures)
        message.is_suspect = offset in state.suspects
    for offset, (first_error, last_error) in state.errors.items():
        if offset in state.pending:
            cursor.pending.keep_errors(offset, first_error, last_error)
    if state.charges:
        cursor.charges = CrashCharges(
            {
                offset: replace(charge, due_ns=_resumed(charge.due_ns, now))
                for offset, charge in state.charges.items()
            }
        )


def _resumed(due_ns: int, now: _Now) -> int:
    """Return the running time when a delay ends of which some has passed by stored times."""
    left_ns = due_ns - now.wall_ns
    return now.running_ns + (left_ns if left_ns <= 0 else max(0, due_ns - now.stored_ns))


def _is_deferred(cursor: Cursor, offset: int, due_ns: int, now: _Now) -> bool:
    """Whether a message that was never delivered waits for its date; others were given back, or
    were due at an earlier start.
    """
    if due_ns <= now.wall_ns or now.stored_ns == now.wall_ns:
        return due_ns > now.wall_ns
    index = cursor.queue.index
    row = index.find(offset)
    return row < index.end_row and index.row(row).deliver_at_ns == due_ns


def _wake(topic: Topic, channel: Channel, scheduled_end: int) -> None:
    channel.counted_from = topic.limit
    topic.schedule(channel, scheduled_end)
    channel.cursor.deferred_ahead = topic.deferred_from(channel.cursor.next)
    channel.arm()


def _harmonise(topic: Topic) -> None:
    """Make each channel exist at all queues.

    A channel is missing at a queue only if a power cut lost the entry that added queues, and kept a
    later one with them, such as a pause. The channel existed when they were added, so it gets
    everything stored in them; some of it may be redelivered.
    """
    channels = {
        name: channel
        for queue_topic in topic.at_queues
        for name, channel in queue_topic.channels.items()
    }
    for queue_topic in topic.at_queues:
        missing = channels.keys() - queue_topic.channels.keys()
        start = (
            queue_topic.queue.first_stored_offset
            if queue_topic.holders
            else queue_topic.backlog_offset
        )
        for name in sorted(missing):
            channel = queue_topic.restore_channel(channels[name].id, name, start)
            channel.paused = channels[name].paused
            channel.configure(channels[name].policy)
            _wake(queue_topic, channel, start)
