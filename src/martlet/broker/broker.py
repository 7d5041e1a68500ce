"""The broker's core: topics over a log.

It is handed the time, random numbers and the log, and never waits.  The server moves bytes, calls
`commit` once in each turn of its loop, `run` when the schedule says so, `write_journal` at an
interval, and runs the jobs of `begin_checkpoint` where blocking does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING

from martlet.broker.channel.channel import Channel
from martlet.broker.dead_letters.move import MessageMover, append_again
from martlet.broker.dead_letters.send import bury
from martlet.broker.delayed.delayed_messages import DelayedMessages
from martlet.broker.errors import BrokerError, LimitReached, NameRefused, NotFound, WritesRefused
from martlet.broker.idempotence import ProducerState
from martlet.broker.journal.cursor_entry import encode_cursor
from martlet.broker.journal.entries import (
    IndexRecord,
    SnapshotEntry,
    Stretches,
    TopicDeletedEntry,
    TopicEntry,
    TopicRecord,
    TopologyEntry,
    encode,
)
from martlet.broker.moved_cursors import MovedCursors
from martlet.broker.queue.queue_log import QueueLog, Receipt
from martlet.broker.schedule import Schedule
from martlet.broker.settings import BrokerSettings
from martlet.broker.topic.expand import check_count, grow
from martlet.broker.topic.topic import Topic
from martlet.broker.tracing.counters import write_accounts
from martlet.broker.transactions.manager import Transactions
from martlet.log.batch import LogBatch
from martlet.log.checkpoint_file import JournalEntry
from martlet.log.commit_log import CommitLog, spans
from martlet.log.index import Index
from martlet.log.record import RecordKind
from martlet.names import is_valid_name

if TYPE_CHECKING:
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.broker.queue.channel_state import ChannelState
    from martlet.broker.retry import DeadLetterReason
    from martlet.broker.topic.retained import Retained

MAX_SCRATCH = 8
"""How many batches are kept to be used again."""
BIG_SCRATCH_BYTES = 1 << 22
"""A scratch buffer that has grown beyond this is not kept."""


class BrokerCore:
    """Topics, channels and the journal over an opened log.

    Use `martlet.broker.recovery.restore.restore` to get one from a data folder.

    Args:
        log: opened and recovered.
        clock: nanoseconds since 1970, never going back.
        random: for ids and sampling.
        settings: as the operator has set them.
    """

    def __init__(
        self, log: CommitLog, clock: Callable[[], int], random: Random, settings: BrokerSettings
    ) -> None:
        self.log = log
        self.clock = clock
        self.random = random
        self.settings = settings
        self.lost = settings.on_lost
        self.schedule = Schedule()
        self.transfers = MessageMover(self)
        self.topics: dict[str, Topic] = {}
        """By name: each topic's queue number 0, which stands for all of it."""
        self.by_id: dict[int, Retained] = {}
        """By number in the log: all topics at all their queues, and the hidden ones."""
        self.queues: dict[int, Topic] = {}
        """By number in the log: all topics at all their queues."""
        self.last_id = 0
        self.stored_count = 0
        """Messages stored since the start."""
        self.started_at_ns = clock()
        self.on_topic: Callable[[Topic], None] = lambda topic: None
        """Called when a topic is made or deleted."""
        self.on_grown: Callable[[Topic], None] = lambda topic: None
        """Called when a topic has got more queues."""
        self.on_channel: Callable[[Topic, Channel], None] = lambda topic, channel: None
        """Called when a channel is made or deleted."""
        self.producers = ProducerState.beside(log.segment_bytes)
        """The sends that are known, should they be repeated."""
        self.producers.topics = self.by_id
        self.dropped_names: list[str] = []
        """Files that are not needed once the next checkpoint is durable."""
        self.not_cleanable: set[int] = set()
        """Bases of segments that are not cleaned, since not all that is needed there verifies."""
        self.history_bases: set[int] = set()
        """Bases of segments that held nothing but history when the last checkpoint was made."""
        self.moved_to = 0
        """The log's position behind what was lately appended in place of older messages."""
        self.shortened_at = 0
        """How many segments had gone when the indexes were last shortened."""
        self._staged: dict[Retained, None] = {}
        self._scratch: list[LogBatch] = []
        self.moved = MovedCursors(log, clock, self.queues)
        self._last_stored_ns = 0
        self.transactions = Transactions(self, settings.transactions)
        self.delays = DelayedMessages(self, settings.max_delayed)
        log.on_roll = self.begin_segment

    # health

    @property
    def health(self) -> str:
        """``OK``, or ``NOK - `` and why."""
        reason = self.log.failed or self.log.full
        return "OK" if reason is None else f"NOK - {reason}"

    # topics

    def topic(self, name: str) -> Topic:
        """The topic of that name, made if it is new.

        Raises:
            NameRefused: no topic can have it.
            LimitReached: there are as many topics as may be.
            WritesRefused: a new topic could not be written down.
        """
        topic = self.topics.get(name)
        if topic is None:
            if not is_valid_name(name):
                raise NameRefused(f"topic name {name!r} is not valid")
            max_count = self.settings.max_topics
            if max_count and len(self.topics) >= max_count:
                raise LimitReached(
                    f"topic {name!r} would be one too many: there are {len(self.topics)}, and"
                    f" --max-topics is {max_count}; delete one that is not needed"
                )
            id = self.next_id()
            index = Index(self.log.storage, id, 0)
            queue = QueueLog(self.log, id, 0, self.random.getrandbits(64), index, 0)
            topic = Topic(self, id, name, queue)
            self.journal_topology(id, TopicEntry(topic.describe()))
            self.adopt(topic)
            self.on_topic(topic)
        return topic

    def adopt(self, topic: Topic) -> None:
        """Put a topic in place, at one of its queues."""
        if not topic.number:
            self.topics[topic.name] = topic
        self.by_id[topic.id] = self.queues[topic.id] = topic

    def set_queues(self, name: str, count: int) -> Topic:
        """Give a topic so many queues, made if it is new; it never gets fewer.

        Raises:
            QueuesRefused: it has more, or none can have so many.
            NameRefused, LimitReached, WritesRefused: as `topic`.
        """
        check_count(count)
        topic = self.topic(name)
        before = len(topic.parts)
        grow(self, topic, count)
        if len(topic.parts) > before:
            self.on_grown(topic)
        return topic

    def find_topic(self, name: str) -> Topic:
        """The topic of that name. Raises NotFound."""
        try:
            return self.topics[name]
        except KeyError:
            raise NotFound(f"there is no topic {name!r}") from None

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its channels. Raises NotFound."""
        topic = self.find_topic(name)
        self.commit()
        write_accounts(self.log, self.clock(), _channels_of(topic.parts))
        try:
            topic.journal([TopicDeletedEntry(part.id) for part in topic.parts])
        except WritesRefused:
            if not topic.ephemeral:
                raise
        del self.topics[name]
        channels = list(topic.channels.values())
        for part in topic.parts:
            del self.by_id[part.id], self.queues[part.id]
            part.close()
            self.dropped_names.append(part.queue.index.name)
            self.delays.topic_deleted(part)
        for channel in channels:
            self.on_channel(topic, channel)
        self.on_topic(topic)

    def next_id(self) -> int:
        """A number that no topic or channel ever had."""
        self.last_id += 1
        return self.last_id

    def left(self, topic: Topic, channel: Channel | PartitionedChannel) -> None:
        """A consumer has left a channel: an ephemeral one goes with its last consumer.

        That needs no disk: what is ephemeral is not looked for after a restart.
        """
        if not channel.ephemeral or channel.consumers:
            return
        known = topic.channels.get(channel.name)
        if known is not None and known.all_queues is channel:
            self.delete_channel(topic, channel.name)

    def delete_channel(self, topic: Topic, name: str) -> None:
        """Delete a channel and disconnect its consumers; an ephemeral topic goes with its last
        channel.

        Raises:
            NotFound: there is no such channel.
            WritesRefused: it could not be written down, and nothing is done.
        """
        write_accounts(self.log, self.clock(), topic.find_channel(name).parts)
        topic.delete_channel(name)
        if topic.ephemeral and not topic.channels and self.topics.get(topic.name) is topic:
            self.delete_topic(topic.name)

    # messages

    def staged(self, topic: Retained) -> LogBatch:
        """The batch that takes a topic's messages in this turn."""
        queue = topic.queue
        if queue.batch is not None:
            self.commit_topic(topic, 0)
        self._staged[topic] = None
        now_ns = self.clock()
        self._last_stored_ns = max(self._last_stored_ns, now_ns)
        return queue.begin(self._scratch, self._last_stored_ns)

    def lend_scratch(self) -> LogBatch:
        """A batch to lay something out in; it is to be given back."""
        return self._scratch.pop() if self._scratch else LogBatch()

    def take_scratch(self, batch: LogBatch) -> None:
        """Take a batch back that was lent."""
        if len(self._scratch) < MAX_SCRATCH and len(batch.scratch) <= BIG_SCRATCH_BYTES:
            self._scratch.append(batch)

    def stored_at_ns(self) -> int:
        """When what is stored now is stored, which is never before anything earlier."""
        self._last_stored_ns = max(self._last_stored_ns, self.clock())
        return self._last_stored_ns

    def append(self, topic: Topic, body: bytes | memoryview) -> None:
        """Append one message at once, and hand it to the channels.

        For a message that comes alone, this is quicker than to stage and to commit it.

        Raises WritesRefused.
        """
        now_ns = self.clock()
        now_ns = max(now_ns, self._last_stored_ns)
        self._last_stored_ns = now_ns
        queue = topic.queue
        if queue.batch is not None:
            self.commit_topic(topic, 0)
        try:
            frame = queue.append(body, now_ns)
        except WritesRefused:
            topic.refused_count += 1
            raise
        self.stored_count += 1
        topic.stored_lone(queue.end_offset - 1, frame)

    def commit(self) -> None:
        """Append everything that is staged and hand it to the channels."""
        while self._staged:
            self.commit_topic(next(iter(self._staged)), 0)

    def commit_topic(self, topic: Retained, deliver_at_ns: int) -> Receipt:
        """Append what is staged for a topic, to be delivered at a time, 0 for at once."""
        queue = topic.queue
        del self._staged[topic]
        before = queue.end_offset
        receipt = queue.commit(self._scratch, deliver_at_ns)
        last = self._scratch[-1]
        if len(self._scratch) > MAX_SCRATCH or len(last.scratch) > BIG_SCRATCH_BYTES:
            self._scratch.pop()
        if receipt.error is None:
            self.stored_count += queue.end_offset - before
            topic.stored(before, deliver_at_ns != 0)
        elif topic.target is not None:
            topic.target.refused_count += last.count
        return receipt

    def delayed_count(self, topic_number: int, /) -> int:
        """How many messages wait until all channels of a topic get them."""
        return self.delays.pending_of(topic_number)

    def empty_topic(self, name: str) -> None:
        """Drop the messages of a topic that no channel has got; without channels, all that wait
        for a time too.

        Raises NotFound and WritesRefused.
        """
        topic = self.find_topic(name)
        topic.empty()
        if not topic.holders:
            self.delays.cancel_all(topic)

    def empty_channel(self, topic: Topic, name: str) -> None:
        """Finish all that is stored for a channel; for a topic's only one, all that waits for a
        time too. Beside others that stays, since it is theirs as well.

        It is written down at once, since the caller is answered and does not ask again.

        Raises NotFound, and WritesRefused: it is emptied, but a restart may not find it so.
        """
        parts = topic.find_channel(name).parts
        for part in parts:
            part.empty()
        for part in parts:
            self.write_cursor(part)
        if len(topic.holders) == 1:
            self.delays.cancel_all(topic)

    # time

    def run(self) -> int | None:
        """Do what is due. Returns when to be called again, None for never."""
        self.schedule.run(self.clock())
        return self.schedule.next_ns()

    # journal

    def changed(self, channel: ChannelState) -> None:
        """A channel's cursor moved."""
        self.moved.add(channel)

    def journal_topology(self, topic_number: int, entry: TopologyEntry, /) -> None:
        """Write an entry of a topic. Raises WritesRefused."""
        self.log.append_journal(
            RecordKind.TOPOLOGY, encode(entry), topic=topic_number, stored_at_ns=self.clock()
        )

    def put_off(self, channel: ChannelState, error: OSError) -> None:
        """A channel can not read its messages at the moment; it is tried again."""
        self.settings.on_put_off(channel.topic, channel.name, error)

    # messages that go from a channel to a topic

    def bury(
        self,
        channel: ChannelState,
        offset: int,
        attempts: int,
        failures: int,
        reason: DeadLetterReason,
    ) -> None:
        """Move a message that no consumer has to the channel's dead-letter topic."""
        bury(self, self.transfers, channel, offset, attempts, failures, reason)

    def append_again(self, channel: ChannelState, offset: int, attempts: int) -> None:
        """Move a message that is due to the end of its queue, for its channel alone."""
        append_again(self, self.transfers, channel, offset, attempts)

    def write_journal(self) -> None:
        """Write down where the cursors are that moved since the last time.

        Raises WritesRefused; what was not written will be, the next time.
        """
        for _ in self.write_some_journal():
            pass

    def write_some_journal(self) -> Iterator[None]:
        """The same, some cursors at a time: there may be thousands.

        What moves meanwhile waits for the next time.
        """
        return self.moved.write_some()

    def write_cursor(self, channel: ChannelState) -> None:
        """Write down at once where a channel's cursor is. Raises WritesRefused.

        It tells all, so it may be lost in a power cut though later entries are not.
        """
        topic = self.queues[channel.topic_id]
        entry = encode_cursor(channel.id, channel.cursor, topic.limit, full=True)
        self.log.append_journal(RecordKind.CURSOR, entry, topic=topic.id, stored_at_ns=self.clock())

    def snapshot(
        self,
        stored: Stretches,
        *,
        position: int | None = None,
        epoch: int | None = None,
        indexes: Mapping[int, IndexRecord] | None = None,
    ) -> list[JournalEntry]:
        """The journal in full, in its shortest form.

        One with the log's position is a checkpoint's: it counts once all before it is durable.
        The arguments are as of `SnapshotEntry`.
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
        cursors += [(RecordKind.PRODUCERS, 0, each) for each in sends]
        return [(RecordKind.TOPOLOGY, 0, encode(head)), *cursors, *self.transactions.snapshot()]

    def begin_segment(self) -> None:
        """Each segment begins with the journal in full, so that older ones may go."""
        now_ns = self.clock()
        for kind, topic, entry in self.snapshot(tuple(spans(self.log.segments))):
            self.log.append_journal(kind, entry, topic=topic, stored_at_ns=now_ns)
        write_accounts(self.log, now_ns, _channels_of(self.queues.values()))


def _channels_of(topics: Iterable[Topic]) -> Iterator[Channel]:
    return (channel for topic in topics for channel in topic.channels.values())


__all__ = ["BrokerCore", "BrokerError"]
