"""The topic: the target of publishes, and the channels that read it.

While a topic has no channel, its messages wait for the first one, which starts at the backlog.
While it is paused, messages are stored but not delivered to channels: they see the topic end at the
offset where it was paused.

A topic of several queues has a `Topic` for each. The broker registers the first, number
0, by name; it applies operations on the topic (channels, pauses, emptying) to all of them, in one
journal entry. Each has its own offsets and messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

from crc32c import crc32c

from martlet.broker.channel.channel import Channel
from martlet.broker.channel.partitioned import OverQueues, PartitionedChannel
from martlet.broker.channel.policy_checks import check_kind
from martlet.broker.channel.priority_turns import highest_first
from martlet.broker.errors import LimitReached, NameRefused, NotFound, WritesRefused
from martlet.broker.journal.entries import (
    ChannelDeletedEntry,
    ChannelEntry,
    TogetherEntry,
    TopicEntry,
    TopicRecord,
    TopologyEntry,
)
from martlet.broker.offset_ranges import with_stretch
from martlet.broker.policy import ChannelPolicy, TopicPolicy, check_dead_letter_topic
from martlet.broker.queue.channel_state import ChannelContext
from martlet.broker.queue.cursor import Cursor
from martlet.broker.queue.queue_log import QueueLog, Receipt
from martlet.broker.topic.retained import MaskedSource, Retained, SingleQueueTopic
from martlet.broker.tracing.finish_ages import Latency
from martlet.broker.tracing.recorder import TraceRecorder
from martlet.log.batch import LogBatch
from martlet.names import is_ephemeral, is_valid_name
from martlet.properties.model import NORMAL_PRIORITY, KeyHash


class TopicContext(ChannelContext, Protocol):
    """The broker's services for a topic."""

    def on_channel(self, topic: Topic, channel: Channel, /) -> None:
        """Handle that a channel was created or deleted."""

    def next_id(self) -> int:
        """Return a number that no topic or channel ever had."""

    def staged(self, topic: Retained) -> LogBatch:
        """Return a new batch for a topic's messages; the former one is appended."""

    def commit_topic(self, topic: Retained, deliver_at_ns: int) -> Receipt:
        """Append the staged messages of a topic, for delivery at a time, 0 for at once."""

    def journal_topology(self, topic_number: int, entry: TopologyEntry, /) -> None:
        """Journal an entry of a topic. Raises WritesRefused."""

    def lost(self, topic: str, channel: str, first: int, end: int, reason: str) -> None:
        """Report messages of a channel that are no longer readable."""


class Topic(SingleQueueTopic):
    """A topic and its channels, at one of its queues; its name must be valid."""

    def __init__(self, context: TopicContext, id: int, name: str, queue: QueueLog) -> None:
        super().__init__(context, queue)
        self.id = id
        """The number of this queue in the log."""
        self.name = name
        self.target: Topic = self
        self.loss_label = f"{name}/(no channel)"
        self.ephemeral = self.bounded = is_ephemeral(name)
        self.at_queues: list[Topic] = [self]
        """The topic at each of its queues, by number."""
        self.normal_queues: list[Topic] = [self]
        """Those for messages of normal priority."""
        self.by_priority: dict[int, Topic] = {}
        """The topic at the queue of each other priority, once there were any."""
        self.several = False
        """Whether it has more than one queue."""
        self.key_hash = KeyHash.CRC32C_FMIX32
        """Chosen when the topic is made, the same at all its queues, and never changed."""
        self._turn = 0
        self.dropped_count = 0
        """Messages dropped to free space before every channel had finished them."""
        self.refused_count = 0
        """Messages refused because the log was full or had failed."""
        self.policy = TopicPolicy()

    @property
    def all_queues(self) -> Topic | PartitionedTopic:
        """The topic over all its queues, as users see it."""
        return PartitionedTopic(self.at_queues) if self.several else self

    @property
    def channel_count(self) -> int:
        """The number of its channels."""
        return len(self.channels)

    def describe(self, channels: Sequence[Channel] | None = None) -> TopicRecord:
        """Describe the topic for the journal; in a snapshot with its end and some channels, none
        ephemeral: what only those received is no backlog for the first channel after a restart.
        """
        backlog_offset = self.backlog_offset
        if (holders := self.holders) and all(channel.ephemeral for channel in holders):
            backlog_offset = self.limit
        return TopicRecord(
            id=self.id,
            name=self.name,
            queue=self.number,
            of=self.at_queues[0].id if self.number else 0,
            id_base=self.queue.id_base,
            paused_at=self.paused_at,
            backlog_offset=backlog_offset,
            voids=tuple(self.voids),
            priority=self.queue.priority,
            key_hash=self.key_hash,
            policy=self.policy.to_json() or None,
            end_offset=None if channels is None else self.queue.end_offset,
            channels=None if channels is None else tuple(map(self.describe_channel, channels)),
        )

    def configure(self, policy: TopicPolicy) -> None:
        """Set its policy. Raises WritesRefused."""
        policy_json = policy.to_json()
        self.journal(
            [TopicEntry(replace(topic.describe(), policy=policy_json)) for topic in self.at_queues]
        )
        for topic in self.at_queues:
            topic.policy = policy
            for channel in topic.channels.values():
                topic.trace(channel)

    def trace(self, channel: Channel) -> None:
        """Start or stop tracing a channel's messages, by the policy."""
        is_traced = self.policy.traces(self.name, self._context.settings.traces)
        channel.recorder = (channel.recorder or TraceRecorder()) if is_traced else None

    def configure_channel(self, name: str, policy: ChannelPolicy) -> None:
        """Set a channel's policy. Raises NotFound, BadPolicy and WritesRefused."""
        channel = self.find_channel(name)
        check_dead_letter_topic(policy.dead_letter_topic, self.name)
        check_kind(channel, policy)
        self.journal_channel(name, policy=policy.to_json())
        before = channel.max_attempts
        for queue_channel in channel.at_queues:
            queue_channel.configure(policy)
        for queue_channel in highest_first(channel.at_queues):
            queue_channel.pump()
        if channel.max_attempts != before:
            for consumer in channel.consumers:
                if consumer.progress.says_started:
                    consumer.client.failures_counted(channel.max_attempts)

    def _change(self, changes: Sequence[dict[str, Any]]) -> None:
        """Journal a change of each queue, and then apply it: nothing changes if that is refused."""
        topics = list(zip(self.at_queues, changes, strict=True))
        self.journal([TopicEntry(replace(topic.describe(), **some)) for topic, some in topics])
        for topic, some in topics:
            for name, value in some.items():
                setattr(topic, name, value)

    def journal(self, entries: Sequence[TopologyEntry]) -> None:
        """Journal simultaneous changes, an entry for each queue. Raises WritesRefused."""
        entry = entries[0] if len(entries) == 1 else TogetherEntry(tuple(entries))
        self._context.journal_topology(self.id, entry)

    # queues

    def at_queue(self, number: int) -> Topic:
        """Return the topic at the queue of that number. Raises NotFound."""
        check_queue(self.name, number, len(self.at_queues))
        return self.at_queues[number]

    def queue_for_key(self, key: bytes) -> Topic:
        """Return the topic at the queue for a key: its `key_hash` of the key, modulo the number of
        queues of normal priority. It changes only when the topic gets more queues.
        """
        return self.normal_queues[self.key_hash.of(crc32c(key)) % len(self.normal_queues)]

    def next_queue(self) -> Topic:
        """Return the topic at the next queue, round-robin, for messages without a key; those of one
        turn of the loop stay together.
        """
        topics = self.normal_queues
        if topics[self._turn].queue.batch is None:
            self._turn = (self._turn + 1) % len(topics)
        return topics[self._turn]

    def add_queue(self, topic: Topic) -> None:
        """Add the topic at a further queue."""
        assert topic.number == len(self.at_queues)
        topic.at_queues, topic.normal_queues, topic.by_priority = (
            self.at_queues,
            self.normal_queues,
            self.by_priority,
        )
        self.at_queues.append(topic)
        if topic.queue.priority == NORMAL_PRIORITY:
            self.normal_queues.append(topic)
        else:
            assert topic.queue.priority not in self.by_priority
            self.by_priority[topic.queue.priority] = topic
        self.several = topic.several = True

    # channels

    def channel(
        self,
        name: str,
        start: int | Mapping[int, int] | None = None,
        voids: Sequence[tuple[int, int]] = (),
        policy: ChannelPolicy | None = None,
    ) -> Channel:
        """Return the channel of that name, created if it is new.

        A new one starts at the topic's end, the first of a topic at its backlog, unless a start
        offset is given, or some by queue number. It skips the offsets in `voids` (see
        `martlet.broker.topic.retained`), and has `policy` from the beginning.

        Raises:
            NameRefused: the name is not valid for a channel.
            LimitReached: the topic has the maximum number of channels.
            WritesRefused: a new channel could not be journaled, and is not ephemeral.
        """
        channel = self.channels.get(name)
        if channel is None:
            if not is_valid_name(name):
                raise NameRefused(f"channel name {name!r} is not valid")
            max_count = self._context.settings.max_channels
            if max_count and len(self.channels) >= max_count:
                raise LimitReached(
                    f"channel {name!r} would be one too many: topic {self.name!r} has"
                    f" {len(self.channels)}, and --max-channels-per-topic is {max_count};"
                    " delete one that is not needed, or raise --max-channels-per-topic"
                )
            starts = {0: start} if isinstance(start, int) else start or {}
            id = self._context.next_id()
            try:
                # Before journaling: the entry may begin a segment, whose head needs the channel.
                for topic in self.at_queues:
                    topic._begin_channel(id, name, starts.get(topic.number), voids, policy)
                channel = self.channels[name]
                join(self, name)
                with self._unless_refused(channel):
                    self.journal_channel(name)
            except Exception:
                for topic in self.at_queues:
                    if name in topic.channels:
                        topic.channels.pop(name).close()
                raise
            self._context.on_channel(self, channel)
        return channel

    def opened_channel(self, name: str) -> Channel | PartitionedChannel:
        """Return a channel at all queues for a consumer, created if it is new. Raises NameRefused,
        LimitReached and WritesRefused, as `channel`.
        """
        channel = self.channel(name)
        if channel.policy.from_lookup:
            with suppress(WritesRefused):
                self.configure_channel(name, replace(channel.policy, from_lookup=False))
        return channel.all_queues

    def _begin_channel(
        self,
        id: int,
        name: str,
        start: int | None,
        voids: Sequence[tuple[int, int]],
        policy: ChannelPolicy | None,
    ) -> None:
        if start is None:
            start = self.limit if self.holders else self.backlog_offset
        channel = self.restore_channel(id, name, start, voids)
        if policy is not None:
            channel.configure(policy)
        self.schedule(channel, start)
        channel.counted_from = self.limit - self.count_from(start)

    @contextmanager
    def _unless_refused(self, channel: Channel) -> Iterator[None]:
        """Ignore a journal's refusal of changes of an ephemeral channel.

        If refused, the next record begins a segment with the full journal: otherwise a restart
        would take later messages for ones that the ephemeral channel had received.
        """
        try:
            yield
        except WritesRefused:
            if not channel.ephemeral:
                raise
            self._context.log.end_segment()

    def schedule(self, channel: Channel, first: int) -> None:
        """Schedule the deferred messages from an offset on for a channel."""
        for start, end in self.stretches(max(first, channel.cursor.next)):
            channel.schedule(start, end)

    def restore_channel(
        self, id: int, name: str, start: int, voids: Sequence[tuple[int, int]] = ()
    ) -> Channel:
        """Restore a channel that starts at an offset and skips voids."""
        context = self._context
        cursor = Cursor(context.log, self.queue, start)
        where = f"queue {self.number}: " if self.number else ""
        cursor.on_lost = lambda first, end, why: context.lost(
            self.name, name, first, end, where + why
        )
        channel = Channel(
            context,
            id,
            self.name,
            name,
            cursor,
            MaskedSource(self, voids) if voids else self,
            self.awaiting,
        )
        if window_ns := context.settings.latency_window_ns:
            channel.finishes.latency = Latency(context.wall, window_ns)
        channel.voids = voids
        self.trace(channel)
        self.channels[name] = channel
        self.bounded = self.bounded or channel.ephemeral
        return channel

    def journal_channel(self, name: str, **changes: Any) -> None:
        """Journal that a channel exists, or that some fields of its record change."""
        self.journal(
            [
                ChannelEntry(
                    topic.id, replace(topic.describe_channel(topic.channels[name]), **changes)
                )
                for topic in self.at_queues
            ]
        )

    def find_channel(self, name: str) -> Channel:
        """Return the channel of that name. Raises NotFound."""
        try:
            return self.channels[name]
        except KeyError:
            raise NotFound(f"there is no channel {name!r} of topic {self.name!r}") from None

    def delete_channel(self, name: str) -> None:
        """Delete a channel and disconnect its consumers. Raises NotFound and WritesRefused."""
        channel = self.find_channel(name)
        last = self.holders == [channel]
        offsets = [topic.limit if last else topic.backlog_offset for topic in self.at_queues]
        entries = [
            ChannelDeletedEntry(topic.id, channel.id, offset)
            for topic, offset in zip(self.at_queues, offsets, strict=True)
        ]
        with self._unless_refused(channel):
            self.journal(entries)
        for topic, offset in zip(self.at_queues, offsets, strict=True):
            topic.backlog_offset = offset
            topic.channels.pop(name).close()
            topic.bounded = self.ephemeral or any(c.ephemeral for c in topic.channels.values())
        self._context.on_channel(self, channel)

    # operations

    def set_paused(self, paused: bool) -> None:
        """Pause the topic or unpause it."""
        if paused == self.paused:
            return
        before = [topic.paused_at for topic in self.at_queues]
        self._change(
            [{"paused_at": p.queue.visible_end if paused else None} for p in self.at_queues]
        )
        for topic, offset in zip(self.at_queues, before, strict=True):
            if offset is not None:
                for channel in topic.channels.values():
                    topic.schedule(channel, offset)
        if not paused:
            for channel in self.channels.values():
                for queue_channel in highest_first(channel.at_queues):
                    queue_channel.pump()
            for topic in self.at_queues:
                for waiting in list(topic.awaiting):
                    waiting.pump()

    def pause_channel(self, name: str, paused: bool) -> None:
        """Pause a channel or unpause it. Raises NotFound."""
        channel = self.find_channel(name)
        if channel.paused != paused:
            self.journal_channel(name, paused=paused)
            for queue_channel in highest_first(channel.at_queues):
                queue_channel.set_paused(paused)

    def empty(self) -> None:
        """Drop the messages that no channel has received yet."""
        changes = [topic._emptied() for topic in self.at_queues]
        if any(changes):
            before = [topic.limit for topic in self.at_queues]
            self._change(changes)
            for topic, limit in zip(self.at_queues, before, strict=True):
                for channel in topic.channels.values():
                    channel.counted_from += topic.limit - limit

    def _emptied(self) -> dict[str, Any]:
        """Return the changes of a queue that is emptied."""
        end = self.queue.visible_end
        if not self.holders:
            voids = with_stretch(self.voids, self.backlog_offset, end)
            paused_at = end if self.paused else None
            return {"backlog_offset": end, "paused_at": paused_at, "voids": voids}
        if self.paused_at is None or self.paused_at == end:
            return {}
        return {"voids": with_stretch(self.voids, self.paused_at, end), "paused_at": end}

    def close(self) -> None:
        """Close the deleted topic with its channels."""
        for channel in list(self.channels.values()):
            channel.close()
        self.channels.clear()


def join(topic: Topic, name: str) -> None:
    """Join the channels of one name at all queues of a topic into a `PartitionedChannel`."""
    if topic.several:
        channels = [queue_topic.channels[name] for queue_topic in topic.at_queues]
        joined = channels[0].all_queues
        if isinstance(joined, PartitionedChannel):
            joined.at_queues[:] = channels  # Clients are subscribed to this object.
            joined.prioritize()
        else:
            joined = PartitionedChannel(channels)
        for channel in channels:
            channel.at_queues, channel.all_queues = joined.at_queues, joined
            channel.delivery.rate_limit = channels[0].delivery.rate_limit


def check_queue(topic: str, number: int, count: int) -> None:
    """Check the number of a queue of a topic that has so many. Raises NotFound."""
    if 0 <= number < count:
        return
    there = f"{count} queues, 0 to {count - 1}" if count > 1 else "1 queue, number 0"
    raise NotFound(
        f"topic {topic!r} has no queue {number}: it has {there}; add queues with:"
        f" martlet topic create {topic} --queues={number + 1}"
    )


class TopicRegistry(TopicContext, Protocol):
    """The broker's services to find topics and to store messages in them."""

    by_id: dict[int, Retained]
    """By number in the log: all topics at all their queues, and the hidden ones."""
    queues: dict[int, Topic]
    """By number in the log: all topics at all their queues."""
    dropped_names: list[str]
    """Files to delete once the next checkpoint is durable."""
    relocated_position: int
    """The log position behind the last message that was moved or appended again."""
    stored_count: int
    """Messages stored since the start."""

    def topic(self, name: str) -> Topic:
        """Return the topic of that name, created if it is new. Raises BrokerError and
        WritesRefused.
        """

    def find_topic(self, name: str) -> Topic:
        """Return the topic of that name. Raises NotFound."""

    def adopt(self, topic: Topic) -> None:
        """Add a topic at one of its queues."""

    def stored(self, topic: Retained, first: int, deferred: bool) -> None:
        """Deliver a batch from offset `first` on, the last of its queue, once it is confirmed."""

    def commit(self) -> None:
        """Append everything staged and deliver it to the channels."""

    def lend_scratch(self) -> LogBatch:
        """Lend a scratch batch; return it by `take_scratch`."""

    def take_scratch(self, batch: LogBatch) -> None:
        """Take back a batch that was lent."""


class PartitionedTopic:
    """A topic over all its queues, for statistics."""

    def __init__(self, topics: list[Topic]) -> None:
        self.at_queues = topics
        self.id = topics[0].id
        self.name = topics[0].name

    @property
    def channels(self) -> dict[str, Channel | PartitionedChannel]:
        """Its channels."""
        return {name: channel.all_queues for name, channel in self.at_queues[0].channels.items()}

    @property
    def paused(self) -> bool:
        """Whether the topic is paused."""
        return self.at_queues[0].paused

    channel_count = OverQueues(max)
    depth = OverQueues()
    message_count = OverQueues()
    message_bytes = OverQueues()
    dropped_count = OverQueues()
    refused_count = OverQueues()
