"""The broker's core: topics over a log.

It gets the time, random numbers and the log from outside, and never waits. The server moves bytes,
calls `commit` once in each turn of its loop, `run` when an alarm of the schedule is due and
`write_journal` at an interval, and runs the jobs of `begin_checkpoint` in a thread that may block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from martlet.broker.channel.channel import Channel
from martlet.broker.channel.partitioned import PartitionedChannel
from martlet.broker.context import BrokerClock
from martlet.broker.dead_letters.dead_letter import MessageMover
from martlet.broker.delayed.delayed_messages import DelayedMessages
from martlet.broker.errors import LimitReached, NameRefused, NotFound, WritesRefused
from martlet.broker.idempotence import ProducerState
from martlet.broker.journal.cursors import MovedCursors, encode_cursor
from martlet.broker.journal.entries import (
    IndexRecord,
    SnapshotEntry,
    Stretches,
    TopicDeletedEntry,
    TopicEntry,
    TopicRecord,
    TopologyEntry,
    encode,
    encode_retired,
)
from martlet.broker.queue.channel_state import ChannelState
from martlet.broker.queue.queue_log import QueueLog, Receipt
from martlet.broker.retention.history import RetentionSettings
from martlet.broker.schedule import Schedule
from martlet.broker.topic.expand import add_priority, check_count, grow
from martlet.broker.topic.retained import Retained
from martlet.broker.topic.rewind import EmptiedQueue, emptied_queues, keep, restore
from martlet.broker.topic.topic import Topic
from martlet.broker.tracing.counters import write_accounts
from martlet.broker.transactions.manager import Transactions
from martlet.broker.transactions.state import TransactionLimits
from martlet.log.batch import LogBatch
from martlet.log.checkpoint_file import JournalEntry
from martlet.log.commit_log import CommitLog
from martlet.log.index import Index
from martlet.log.record import RecordKind
from martlet.log.segmented import spans
from martlet.log.storage import Segment
from martlet.names import is_valid_name
from martlet.properties.model import NORMAL_PRIORITY

MAX_SCRATCH = 8
"""The maximum number of batches kept for reuse."""
BIG_SCRATCH_BYTES = 1 << 22
"""A scratch buffer larger than this is not kept for reuse."""


@dataclass(kw_only=True, slots=True)
class BrokerSettings(RetentionSettings):
    """The settings of a broker's core."""

    max_topics: int = 0
    """Maximum for the creation of topics; existing ones stay. 0 for no limit."""
    max_delayed: int = 0
    """Maximum number of waiting delayed messages; 0 for no limit."""
    transactions: TransactionLimits = field(default_factory=TransactionLimits)
    on_put_off: Callable[[str, str, OSError], None] = lambda *_: None
    """Called with a channel that cannot read its messages at the moment: topic, channel, reason."""
    on_lost: Callable[[str, str, int, int, str], None] = lambda *_: None
    """Called with messages that are no longer readable: topic, channel, first offset, end offset,
    reason.
    """


class Unconfirmed(NamedTuple):
    """A batch that too few replicas have yet, with the arguments of `Topic.stored`."""

    position: int
    """The log's position behind the batch."""
    topic: Retained
    first: int
    end: int
    """As `first` where this is no batch, but the end of what is held."""
    deferred: bool


class BrokerCore:
    """Topics, channels and the journal over an opened and recovered log.

    Use `martlet.broker.recovery.restore.restore` to get one from a data folder.
    """

    def __init__(
        self, log: CommitLog, clock: BrokerClock, random: Random, settings: BrokerSettings
    ) -> None:
        self.log = log
        self.clock: Callable[[], int] = clock
        self.wall: Callable[[], int] = clock.wall
        self.random = random
        self.settings = settings
        self.lost = settings.on_lost
        self.schedule = Schedule()
        self.transfers = MessageMover(self)
        self.append_again = self.transfers.append_again
        self.move_to_dead_letters = self.transfers.move_to_dead_letters
        self.topics: dict[str, Topic] = {}
        """By name: each topic's queue number 0, which represents all of its queues."""
        self.by_id: dict[int, Retained] = {}
        """By number in the log: all topics at each of their queues, and the hidden ones."""
        self.queues: dict[int, Topic] = {}
        """By number in the log: all topics at each of their queues."""
        self.last_id = 0
        self.stored_count = 0
        """Messages stored since the start."""
        self.unconfirmed: deque[Unconfirmed] | None = None
        """Batches that are not confirmed, oldest first; None for a broker without replicas."""
        self._retired: deque[tuple[int, list[Segment]]] = deque()
        """Segments that wait for the confirmation of their RETIRED entry, by its end."""
        self.confirmed_position = log.position
        """With replicas, every record before this position is confirmed."""
        self._noted: dict[Channel | PartitionedChannel, None] = {}
        self.changed_position = log.position
        """The log's position behind the last change of a topic or channel."""
        self.started_at_ns = clock.wall()
        self.on_topic: Callable[[Topic], None] = lambda topic: None
        """Called when a topic is created or deleted."""
        self.on_grown: Callable[[Topic], None] = lambda topic: None
        """Called when a topic gets more queues."""
        self.on_channel: Callable[[Topic, Channel], None] = lambda topic, channel: None
        """Called when a channel is created or deleted."""
        self.producers = ProducerState.beside(log.segment_bytes)
        """The known sends of producers, to recognise repeated ones."""
        self.producers.topics = self.by_id
        self.dropped_names: list[str] = []
        """Files to delete once the next checkpoint is durable."""
        self.not_cleanable: set[int] = set()
        """Bases of segments that are not cleaned, since some needed batches there do not verify."""
        self.history_bases: set[int] = set()
        """Bases of segments that held only history when the last checkpoint was made."""
        self.relocated_position = 0
        """The log position behind the last message that was moved or appended again."""
        self.shortened_at = 0
        """The number of retired segments when the indexes were last shortened."""
        self._staged: dict[Retained, None] = {}
        self._scratch: list[LogBatch] = []
        self.moved = MovedCursors(log, self.stored_at_ns, self.queues)
        self.moved_channels = self.moved.channels
        self.last_stored_ns = 0
        """When the newest record of the log was stored."""
        self._ahead_since: int | None = None
        """The stored time minus the running time, while the wall clock is behind."""
        self.transactions = Transactions(self, settings.transactions)
        self.delays = DelayedMessages(self, settings.max_delayed)
        self.delayed_count = self.delays.pending_of
        log.on_roll = self.begin_segment

    # health

    @property
    def health(self) -> str:
        """``OK``, or ``NOK - `` and the reason."""
        reason = self.log.failed or self.log.refusal or self.log.full
        return "OK" if reason is None else f"NOK - {reason}"

    # topics

    def topic(self, name: str) -> Topic:
        """Return the topic of that name, created if it is new.

        Raises:
            NameRefused: the name is not valid for a topic.
            LimitReached: the maximum number of topics exists.
            WritesRefused: a new topic could not be journaled.
        """
        topic = self.topics.get(name)
        if topic is None:
            self.check_new(name)
            id = self.next_id()
            index = Index(self.log.storage, id, 0)
            queue = QueueLog(self.log, id, 0, self.random.getrandbits(64), index, 0)
            topic = Topic(self, id, name, queue)
            self.journal_topology(id, TopicEntry(topic.describe()))
            self.adopt(topic)
            self.on_topic(topic)
        return topic

    def check_new(self, name: str) -> None:
        """Check that a topic of that name may be created. Raises NameRefused and LimitReached."""
        if not is_valid_name(name):
            raise NameRefused(f"topic name {name!r} is not valid")
        max_count = self.settings.max_topics
        if max_count and len(self.topics) >= max_count:
            raise LimitReached(
                f"topic {name!r} would be one too many: there are {len(self.topics)}, and"
                f" --max-topics is {max_count}; delete one that is not needed, or raise"
                " --max-topics"
            )

    def adopt(self, topic: Topic) -> None:
        """Add a topic at one of its queues."""
        if not topic.number:
            self.topics[topic.name] = topic
        self.by_id[topic.id] = self.queues[topic.id] = topic

    def set_queues(self, name: str, count: int) -> Topic:
        """Set the number of a topic's queues, created if it is new; it never decreases.

        Raises:
            QueuesRefused: it has more, or the count is above the maximum.
            NameRefused, LimitReached, WritesRefused: as `topic`.
        """
        check_count(count)
        topic = self.topic(name)
        before = len(topic.at_queues)
        grow(self, topic, count)
        if len(topic.at_queues) > before:
            self.on_grown(topic)
        return topic

    def queue_of_priority(self, topic: Topic, priority: int) -> Topic:
        """Return the topic at the queue for messages of a priority, added with the first one.

        Raises:
            QueuesRefused: the topic has the maximum number of queues.
            WritesRefused: the queue could not be journaled.
        """
        if priority == NORMAL_PRIORITY:
            return topic.next_queue()
        queue_topic = topic.by_priority.get(priority)
        if queue_topic is None:
            queue_topic = add_priority(self, topic, priority)
            self.on_grown(topic)
        return queue_topic

    def find_topic(self, name: str) -> Topic:
        """Return the topic of that name. Raises NotFound."""
        try:
            return self.topics[name]
        except KeyError:
            raise NotFound(f"there is no topic {name!r}") from None

    def all_topics(self) -> Iterable[Topic]:
        """Return each topic, at its queue 0."""
        return self.topics.values()

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its channels. Raises NotFound."""
        topic = self.find_topic(name)
        self.commit()
        write_accounts(self.log, self.stored_at_ns(), _channels_of(topic.at_queues))
        try:
            topic.journal([TopicDeletedEntry(queue_topic.id) for queue_topic in topic.at_queues])
        except WritesRefused:
            if not topic.ephemeral:
                raise
        del self.topics[name]
        channels = list(topic.channels.values())
        for queue_topic in topic.at_queues:
            del self.by_id[queue_topic.id], self.queues[queue_topic.id]
            queue_topic.close()
            self.dropped_names.append(queue_topic.queue.index.name)
            self.delays.topic_deleted(queue_topic)
        for channel in channels:
            self.on_channel(topic, channel)
        self.on_topic(topic)

    def drop_unclaimed(self, topic: Topic, after_ns: int) -> None:
        """Delete a new topic after a time, unless it has a channel by then."""

        def check(_now_ns: int) -> None:
            if self.topics.get(topic.name) is topic and not topic.channels:
                self.delete_topic(topic.name)

        self.schedule.alarm(check).at(self.clock() + after_ns)

    def next_id(self) -> int:
        """Return a number that no topic or channel ever had."""
        self.last_id += 1
        return self.last_id

    def left(self, topic: Topic, channel: Channel | PartitionedChannel) -> None:
        """Handle the departure of a consumer: delete an ephemeral channel with its last one. This
        journals nothing: a restart drops ephemeral channels anyway.
        """
        if not channel.ephemeral or channel.consumers:
            return
        current = topic.channels.get(channel.name)
        if current is not None and current.all_queues is channel:
            self.delete_channel(topic, channel.name)

    def delete_channel(self, topic: Topic, name: str) -> None:
        """Delete a channel and disconnect its consumers; delete an ephemeral topic with its last
        channel.

        Raises:
            NotFound: there is no such channel.
            WritesRefused: it could not be journaled, and nothing is changed.
        """
        write_accounts(self.log, self.stored_at_ns(), topic.find_channel(name).at_queues)
        topic.delete_channel(name)
        if topic.ephemeral and not topic.channels and self.topics.get(topic.name) is topic:
            self.delete_topic(topic.name)

    # messages

    @property
    def has_unwritten(self) -> bool:
        """Whether messages are staged, or channels noted, that are not in the log yet."""
        return bool(self._staged or self._noted)

    def staged(self, topic: Retained) -> LogBatch:
        """Return the batch that collects a topic's messages in this turn."""
        queue = topic.queue
        if queue.batch is not None:
            self.commit_topic(topic, 0)
        self._staged[topic] = None
        return queue.begin(self._scratch, self.stored_at_ns())

    def lend_scratch(self) -> LogBatch:
        """Lend a scratch batch; return it by `take_scratch`."""
        return self._scratch.pop() if self._scratch else LogBatch()

    def take_scratch(self, batch: LogBatch) -> None:
        """Take back a batch that was lent."""
        if len(self._scratch) < MAX_SCRATCH and len(batch.scratch) <= BIG_SCRATCH_BYTES:
            self._scratch.append(batch)

    def stored_at_ns(self) -> int:
        """Return the timestamp of what is stored now, never before that of an earlier record, also
        over restarts and failovers: readers search by it, and retention goes by it.
        """
        now_ns = self.wall()
        if now_ns < self.last_stored_ns:
            now_ns = self._ahead_of_wall()
        elif self._ahead_since is not None:
            self._ahead_since = None
        self.last_stored_ns = now_ns
        return now_ns

    def _ahead_of_wall(self) -> int:
        """Return a timestamp while the wall clock is behind the newest record: it goes on from that
        as time passes, so that ages stay right.
        """
        if self._ahead_since is None:
            self._ahead_since = self.last_stored_ns - self.clock()
        return max(self.last_stored_ns, self._ahead_since + self.clock())

    def append(self, topic: Topic, body: bytes | memoryview) -> None:
        """Append one message at once, and deliver it to the channels: faster than to stage and
        commit it. Raises WritesRefused.
        """
        now_ns = self.stored_at_ns()
        queue = topic.queue
        if queue.batch is not None:
            self.commit_topic(topic, 0)
        try:
            frame = queue.append(body, now_ns)
        except WritesRefused:
            topic.refused_count += 1
            raise
        self.stored_count += 1
        if self.unconfirmed is None and topic.held_from is None:
            topic.stored_lone(queue.end_offset - 1, frame)
        else:
            self.stored(topic, queue.end_offset - 1, False)

    def commit(self) -> None:
        """Append everything staged and deliver it to the channels."""
        while self._staged:
            self.commit_topic(next(iter(self._staged)), 0)

    def commit_topic(self, topic: Retained, deliver_at_ns: int) -> Receipt:
        """Append the staged messages of a topic, for delivery at a time, 0 for at once."""
        queue = topic.queue
        del self._staged[topic]
        before = queue.end_offset
        receipt = queue.commit(self._scratch, deliver_at_ns)
        last = self._scratch[-1]
        if len(self._scratch) > MAX_SCRATCH or len(last.scratch) > BIG_SCRATCH_BYTES:
            self._scratch.pop()
        if receipt.error is None:
            self.stored_count += queue.end_offset - before
            self.stored(topic, before, deliver_at_ns != 0)
        elif topic.target is not None:
            topic.target.refused_count += last.count
        return receipt

    def stored(self, topic: Retained, first: int, deferred: bool) -> None:
        """Deliver a batch from offset `first` on, the last of its queue, once it is confirmed."""
        end = topic.queue.end_offset
        # Clients do not read hidden topics. What the broker takes from one it stores behind it.
        if self.unconfirmed is None or topic.target is not topic:
            topic.stored(first, end, deferred)
        else:
            self.unconfirmed.append(Unconfirmed(self.log.position, topic, first, end, deferred))

    def show_held(self, topic: Topic) -> None:
        """Show readers the held messages of a topic, once the log up to here is confirmed."""
        if self.unconfirmed is None:
            topic.release()
        else:
            end = topic.queue.end_offset
            self.unconfirmed.append(Unconfirmed(self.log.position, topic, end, end, False))

    def await_confirmation(self, confirmed_position: int) -> None:
        """Show nothing that is stored from now on before `confirm` is called for it. Clients may
        come only when it is called for the end of the log, which has what older epochs left.
        """
        assert not self._staged and self.unconfirmed is None
        assert confirmed_position <= self.log.position
        self.unconfirmed = deque()
        self.log.condemned = []
        self.confirmed_position = confirmed_position

    @property
    def epoch(self) -> int:
        """The number of this run of the broker."""
        return self.log.epoch

    @property
    def visible_position(self) -> int:
        """The position behind the last record that readers of the log may see."""
        return self.log.position if self.unconfirmed is None else self.confirmed_position

    def confirm(self, position: int) -> None:
        """Deliver what is confirmed: every record before a position is on enough replicas."""
        waiting = self.unconfirmed
        assert waiting is not None and self.confirmed_position <= position <= self.log.position
        self.confirmed_position = position
        while waiting and waiting[0].position <= position:
            _, topic, first, end, deferred = waiting.popleft()
            if self.by_id.get(topic.id) is not topic:
                continue
            if first < end:
                topic.stored(first, end, deferred)
            else:
                self.queues[topic.id].release()
                self.transactions.on_large_committed()
        while self._retired and self._retired[0][0] <= position:
            for segment in self._retired.popleft()[1]:
                self.log.remove(segment)

    def empty_topic(self, name: str) -> None:
        """Drop the messages of a topic that no channel has seen; without channels, all delayed ones
        too. Raises NotFound and WritesRefused.
        """
        topic = self.find_topic(name)
        topic.empty()
        if not topic.holders:
            self.delays.cancel_all(topic)

    def empty_channel(self, topic: Topic, name: str) -> list[EmptiedQueue]:
        """Finish all stored messages of a channel; of a topic's only channel, all delayed ones too.

        Beside other channels the delayed ones stay, since they belong to those as well. Journaled
        at once, since the caller is answered and does not retry.

        Returns the channel's position in each queue before, for `restore_channel`.

        Raises NotFound, and WritesRefused: the channel is emptied, but a restart may undo that.
        """
        channels = topic.find_channel(name).at_queues
        emptied = emptied_queues(channels)
        for queue_topic, channel, left in zip(topic.at_queues, channels, emptied, strict=True):
            channel.empty()
            if self.settings.keep_emptied_ns:
                keep(queue_topic, left, self.stored_at_ns(), self.settings.keep_emptied_ns)
        for channel in channels:
            self.write_cursor(channel)
        if len(topic.holders) == 1:
            self.delays.cancel_all(topic)
        return emptied

    def restore_channel(self, topic: Topic, name: str, emptied: Sequence[EmptiedQueue]) -> None:
        """Undo an empty of a channel; delayed messages that it cancelled stay so. Raises NotFound,
        OutOfReach and WritesRefused, as `martlet.broker.topic.rewind.restore`.
        """
        restore(topic, name, emptied)
        for emptied_queue in emptied:
            self.write_cursor(topic.at_queue(emptied_queue.queue).channels[name])

    # time

    def run(self) -> int | None:
        """Call the alarms that are due. Returns the time of the next call, None for never."""
        self.schedule.run(self.clock())
        return self.schedule.next_ns()

    def follow_wall(self) -> None:
        """Take up what is due at dates, after the wall clock was set or the broker paused."""
        for topic in self.queues.values():
            for channel in topic.channels.values():
                channel.follow_wall()
        self.delays.follow_wall()

    # journal

    def journal(self, kind: RecordKind, entry: bytes, topic: int = 0, /) -> None:
        """Write an entry into the journal, stored now. Raises WritesRefused."""
        self.log.append_journal(kind, entry, topic=topic, stored_at_ns=self.stored_at_ns())

    def journal_topology(self, topic_number: int, entry: TopologyEntry, /) -> None:
        """Journal an entry of a topic. Raises WritesRefused."""
        self.journal(RecordKind.TOPOLOGY, encode(entry), topic_number)
        self.changed_position = self.log.position

    def put_off(self, channel: ChannelState, error: OSError) -> None:
        """Report that a channel cannot read its messages at the moment; the read is retried."""
        self.settings.on_put_off(channel.topic, channel.name, error)

    def write_journal(self) -> None:
        """Journal the cursors that have moved since the last call. Raises WritesRefused; the next
        call writes those that were not written.
        """
        for _ in self.write_some_journal():
            pass

    def write_some_journal(self) -> Iterator[None]:
        """Journal moved cursors, some at a time: there may be thousands. Those that move meanwhile
        are left for the next call.
        """
        yield from self.moved.write_some()
        self._write_retired()

    def _write_retired(self) -> None:
        """Journal the segments that nothing needs, so that every replica removes them."""
        if condemned := self.log.condemned:
            entry = encode_retired(segment.base for segment in condemned)
            self.journal(RecordKind.RETIRED, entry)
            self._retired.append((self.log.position, condemned.copy()))
            condemned.clear()

    def write_moved(self, channel: Channel | PartitionedChannel) -> None:
        """Journal a channel's cursors at once, where they have moved. Raises WritesRefused."""
        for queue_channel in channel.at_queues:
            self.moved.write_first(queue_channel)

    def note_moved(self, channel: Channel | PartitionedChannel) -> None:
        """Have `write_noted` journal a channel's cursors: one entry for many changes at once."""
        self._noted[channel] = None

    def write_noted(self) -> None:
        """Journal the cursors of noted channels. Raises WritesRefused; then they stay noted."""
        while self._noted:
            channel = next(iter(self._noted))
            self.write_moved(channel)
            del self._noted[channel]

    def write_cursor(self, channel: ChannelState) -> None:
        """Journal a channel's cursor at once, in a full entry, which a power cut may lose though
        later entries survive. Raises WritesRefused.
        """
        topic = self.queues[channel.topic_id]
        entry = encode_cursor(channel.id, channel.cursor, topic.limit, full=True)
        self.journal(RecordKind.CURSOR, entry, topic.id)

    def snapshot(
        self,
        stored: Stretches,
        *,
        position: int | None = None,
        epoch: int | None = None,
        indexes: Mapping[int, IndexRecord] | None = None,
    ) -> list[JournalEntry]:
        """Return the full journal, in its shortest form, with the fields of `SnapshotEntry`. One
        with the log's position is a checkpoint's: valid once everything before it is durable.
        """
        topics: list[TopicRecord] = []
        cursors: list[JournalEntry] = []
        for topic in self.by_id.values():
            if topic.ephemeral:
                continue
            marks = topic.journal_marks(certain=position is None)
            if marks is not None:
                cursors.append((RecordKind.MARKS, topic.id, marks))
            queue = self.queues.get(topic.id)
            kept: list[Channel] = []
            if queue is not None:
                kept = [channel for channel in queue.channels.values() if not channel.ephemeral]
                for channel in kept:
                    entry = encode_cursor(channel.id, channel.cursor, queue.limit, full=True)
                    cursors.append((RecordKind.CURSOR, topic.id, entry))
            topics.append(topic.describe(kept))
        head = SnapshotEntry(
            topics=tuple(topics),
            last_id=self.last_id,
            position=position,
            epoch=epoch,
            stored=stored,
            indexes=indexes,
        )
        sends = self.producers.entries(self.log.durable_position)
        cursors += [(RecordKind.PRODUCERS, 0, entry) for entry in sends]
        return [(RecordKind.TOPOLOGY, 0, encode(head)), *cursors, *self.transactions.snapshot()]

    def begin_segment(self) -> None:
        """Begin a segment with the full journal, so that older ones can be retired."""
        now_ns = self.stored_at_ns()
        for kind, topic, entry in self.snapshot(tuple(spans(self.log.segments))):
            self.log.append_journal(kind, entry, topic=topic, stored_at_ns=now_ns)
        write_accounts(self.log, now_ns, _channels_of(self.queues.values()))


def _channels_of(topics: Iterable[Topic]) -> Iterator[Channel]:
    return (channel for topic in topics for channel in topic.channels.values())
