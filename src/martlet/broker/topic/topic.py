"""The topic: where messages are published, and the channels that read it.

While a topic has no channel, its messages wait for the first one, which begins where the backlog
does.  While it is paused, messages are stored and handed to no channel: each channel sees the
topic end at the offset where it was paused.

A topic of several queues is a `Topic` for each, its parts.  The first, number 0, is the one that
has the name in the broker; what concerns the topic (channels, pauses, being emptied) it does for
all parts, by one entry of the journal.  Offsets and messages are each part's own.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from crc32c import crc32c

from martlet.broker.channel.channel import Channel
from martlet.broker.channel.kind import check_kind
from martlet.broker.channel.partitioned import PartitionedChannel
from martlet.broker.errors import LimitReached, NameRefused, NotFound, WritesRefused
from martlet.broker.journal.entries import (
    ChannelDeletedEntry,
    ChannelEntry,
    TogetherEntry,
    TopicEntry,
    TopicRecord,
)
from martlet.broker.offset_ranges import with_stretch
from martlet.broker.policy import ChannelPolicy, TopicPolicy, check_dead_letter_topic
from martlet.broker.queue.channel_state import ChannelContext, Waiting
from martlet.broker.queue.cursor import Cursor
from martlet.broker.queue.queue_log import QueueLog
from martlet.broker.topic.ephemeral_limit import keep_within
from martlet.broker.topic.masked_source import MaskedSource
from martlet.broker.topic.partitioned import PartitionedTopic
from martlet.broker.topic.stage import StagingContext
from martlet.broker.topic.topic_queue import SingleQueueTopic
from martlet.broker.tracing.latency import Latency
from martlet.broker.tracing.recorder import TraceRecorder, traced
from martlet.names import is_ephemeral, is_valid_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from martlet.broker.journal.entries import TopologyEntry


class TopicContext(ChannelContext, StagingContext, Protocol):
    """What a topic needs of its broker."""

    def on_channel(self, topic: Topic, channel: Channel, /) -> None:
        """A channel was made or deleted."""

    def next_id(self) -> int:
        """A number that no topic or channel ever had."""

    def journal_topology(self, topic_number: int, entry: TopologyEntry, /) -> None:
        """Write an entry of a topic. Raises WritesRefused."""

    def lost(self, topic: str, channel: str, first: int, end: int, reason: str) -> None:
        """Messages of a channel can not be read any more."""


class Topic(SingleQueueTopic):
    """A topic and its channels, at one of its queues.

    Args:
        context: the broker.
        id: its number in the log.
        name: its name, which must be valid.
        queue: its messages.
    """

    def __init__(self, context: TopicContext, id: int, name: str, queue: QueueLog) -> None:
        super().__init__(context, queue)
        self.id = id
        self.name = name
        self.ephemeral = self.bounded = is_ephemeral(name)
        self.parts: list[Topic] = [self]
        """The topic at each of its queues, by number."""
        self.several = False
        """Whether it has more queues than one."""
        self._turn = self
        self.message_count = 0
        self.dropped_count = 0
        """Messages that were given up, to make room, before every channel had finished them."""
        self.refused_count = 0
        """Messages that were published and not taken, the log being full or failed."""
        self.policy = TopicPolicy()
        self._context = context
        self.awaiting: dict[Waiting, None] = {}
        """What is called when messages arrive."""

    @property
    def target(self) -> Topic:
        """The topic that its messages are for: itself."""
        return self

    @property
    def loss_label(self) -> str:
        """What lost messages are called that no channel had."""
        return f"{self.name}/(no channel)"

    @property
    def all_queues(self) -> Topic | PartitionedTopic:
        """The topic over all its queues, as users see it."""
        return PartitionedTopic(self.parts) if self.several else self

    def describe(self, channels: Sequence[Channel] | None = None) -> TopicRecord:
        """The topic as the journal writes it; in a snapshot with its end and some channels.

        A snapshot leaves ephemeral channels out: where there are no others, what they have got is
        no backlog for the first channel that comes after a restart.
        """
        backlog_offset = self.backlog_offset
        if (holders := self.holders) and all(channel.ephemeral for channel in holders):
            backlog_offset = self.limit
        return TopicRecord(
            id=self.id,
            name=self.name,
            queue=self.number,
            of=self.parts[0].id if self.number else 0,
            id_base=self.queue.id_base,
            paused_at=self.paused_at,
            backlog_offset=backlog_offset,
            voids=tuple(self.voids),
            policy=self.policy.to_json() or None,
            end_offset=None if channels is None else self.queue.end_offset,
            channels=None if channels is None else tuple(map(self.describe_channel, channels)),
        )

    def configure(self, policy: TopicPolicy) -> None:
        """Set its policy. Raises WritesRefused."""
        policy_json = policy.to_json()
        self.journal(
            [TopicEntry(replace(part.describe(), policy=policy_json)) for part in self.parts]
        )
        for part in self.parts:
            part.policy = policy
            for channel in part.channels.values():
                part.trace(channel)

    def trace(self, channel: Channel) -> None:
        """Trace a channel's messages, or no longer, as the policy has it."""
        is_traced = traced(self.name, self.policy, self._context.settings.traces)
        channel.trail = (channel.trail or TraceRecorder()) if is_traced else None

    def configure_channel(self, name: str, policy: ChannelPolicy) -> None:
        """Set a channel's policy. Raises NotFound, BadPolicy and WritesRefused."""
        channel = self.find_channel(name)
        check_dead_letter_topic(policy.dead_letter_topic, self.name)
        check_kind(channel, policy)
        self.journal_channel(name, policy=policy.to_json())
        before = channel.max_attempts
        for part in channel.parts:
            part.configure(policy)
            part.pump()
        if channel.max_attempts != before:
            for consumer in channel.consumers:
                if consumer.progress.says_started:
                    consumer.client.failures_counted(channel.max_attempts)

    def _change(self, changes: Sequence[dict[str, Any]]) -> None:
        """Write down what changes of each part, and then change it: all stays as it is where that
        is refused.
        """
        parts = list(zip(self.parts, changes, strict=True))
        self.journal([TopicEntry(replace(part.describe(), **some)) for part, some in parts])
        for part, some in parts:
            for name, value in some.items():
                setattr(part, name, value)

    def journal(self, entries: Sequence[TopologyEntry]) -> None:
        """Write down what happens at once, an entry for each part. Raises WritesRefused."""
        entry = entries[0] if len(entries) == 1 else TogetherEntry(tuple(entries))
        self._context.journal_topology(self.id, entry)

    # queues

    def part(self, number: int) -> Topic:
        """The topic at the queue of that number. Raises NotFound."""
        if not 0 <= number < len(self.parts):
            raise NotFound(
                f"topic {self.name!r} has no queue {number}: they are 0 to {len(self.parts) - 1}"
            )
        return self.parts[number]

    def part_for_key(self, key: bytes) -> Topic:
        """The topic at the queue that all messages with a key go to: the CRC-32C of the key, modulo
        the count of queues. It stays the same until the topic gets more queues.
        """
        return self.parts[crc32c(key) % len(self.parts)]

    def next_part(self) -> Topic:
        """The topic at the queue whose turn it is to take a message without a wish: one after the
        other, but what comes in one turn of the loop stays together.
        """
        part = self._turn
        if part.queue.batch is None:
            self._turn = part = self.parts[(part.number + 1) % len(self.parts)]
        return part

    # messages

    def stored(self, first: int, deferred: bool) -> None:
        """A batch was appended that begins at offset `first`: hand it to the channels."""
        end = self.queue.end_offset
        self.message_count += end - first
        if self.paused_at is not None:
            if self.bounded:
                self._keep_within_bounds()
            return
        if deferred:
            for channel in self.channels.values():
                channel.schedule(first, end)
        for waiting in list(self.awaiting):
            waiting.pump()
        if self.bounded:
            self._keep_within_bounds()

    def _keep_within_bounds(self) -> None:
        keep_within(self, -(-max(0, self._context.settings.max_ephemeral) // len(self.parts)))

    def stored_lone(self, offset: int, frame: memoryview) -> None:
        """A message was appended by itself: hand it to the channels."""
        self.message_count += 1
        if self.paused_at is None and self.awaiting:
            for waiting in list(self.awaiting):
                waiting.pump_lone(offset, frame)
        if self.bounded:
            self._keep_within_bounds()

    # channels

    def channel(
        self,
        name: str,
        start: int | Mapping[int, int] | None = None,
        voids: Sequence[tuple[int, int]] = (),
        policy: ChannelPolicy | None = None,
    ) -> Channel:
        """The channel of that name, made if it is new.

        A new one begins at the topic's end, the first of a topic where its backlog does, unless an
        offset to start at is given, or some by the queue's number.  It passes over the offsets in
        `voids` (see `martlet.broker.topic.masked_source`), and goes by `policy` from the beginning.

        Raises:
            NameRefused: no channel can have it.
            LimitReached: the topic has as many channels as it may have.
            WritesRefused: a new channel could not be written down, and is no ephemeral one.
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
                    " delete one that is not needed"
                )
            starts = {0: start} if isinstance(start, int) else start or {}
            id = self._context.next_id()
            try:
                # Before it is written down: that may begin a segment, whose head tells all of it.
                for part in self.parts:
                    part._begin_channel(id, name, starts.get(part.number), voids, policy)
                channel = self.channels[name]
                join(self, name)
                with self._unless_refused(channel):
                    self.journal_channel(name)
            except Exception:
                for part in self.parts:
                    if name in part.channels:
                        part.channels.pop(name).close()
                raise
            self._context.on_channel(self, channel)
        return channel

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
        """Allow the journal to refuse what becomes of an ephemeral channel.

        Where it is refused, the next record begins a segment, and with it the whole journal: a
        restart must not take later messages for what an ephemeral channel got.
        """
        try:
            yield
        except WritesRefused:
            if not channel.ephemeral:
                raise
            self._context.log.end_segment()

    def schedule(self, channel: Channel, first: int) -> None:
        """See that a channel gets the deferred messages from an offset on at their time."""
        for start, end in self.stretches(max(first, channel.cursor.next)):
            channel.schedule(start, end)

    def restore_channel(
        self, id: int, name: str, start: int, voids: Sequence[tuple[int, int]] = ()
    ) -> Channel:
        """Put a channel in place that begins at an offset, and passes over voids."""
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
            channel.finishes.latency = Latency(context.clock, window_ns)
        channel.voids = voids
        self.trace(channel)
        self.channels[name] = channel
        self.bounded = self.bounded or channel.ephemeral
        return channel

    def journal_channel(self, name: str, **changes: Any) -> None:
        """Write down that a channel is there, or changes some fields of its record."""
        self.journal(
            [
                ChannelEntry(
                    part.id, replace(part.describe_channel(part.channels[name]), **changes)
                )
                for part in self.parts
            ]
        )

    def find_channel(self, name: str) -> Channel:
        """The channel of that name. Raises NotFound."""
        try:
            return self.channels[name]
        except KeyError:
            raise NotFound(f"there is no channel {name!r} of topic {self.name!r}") from None

    def delete_channel(self, name: str) -> None:
        """Delete a channel and disconnect its consumers. Raises NotFound and WritesRefused."""
        channel = self.find_channel(name)
        last = self.holders == [channel]
        offsets = [part.limit if last else part.backlog_offset for part in self.parts]
        entries = [
            ChannelDeletedEntry(part.id, channel.id, offset)
            for part, offset in zip(self.parts, offsets, strict=True)
        ]
        with self._unless_refused(channel):
            self.journal(entries)
        for part, offset in zip(self.parts, offsets, strict=True):
            part.backlog_offset = offset
            part.channels.pop(name).close()
            part.bounded = self.ephemeral or any(c.ephemeral for c in part.channels.values())
        self._context.on_channel(self, channel)

    # what the operator does

    def set_paused(self, paused: bool) -> None:
        """Keep messages from the channels, or hand them on again."""
        if paused == self.paused:
            return
        before = [part.paused_at for part in self.parts]
        self._change([{"paused_at": p.queue.end_offset if paused else None} for p in self.parts])
        for part, offset in zip(self.parts, before, strict=True):
            if offset is not None:
                for channel in part.channels.values():
                    part.schedule(channel, offset)
                    channel.pump()
                for waiting in list(part.awaiting):
                    waiting.pump()

    def pause_channel(self, name: str, paused: bool) -> None:
        """Stop a channel's delivery, or let it go on. Raises NotFound."""
        channel = self.find_channel(name)
        if channel.paused != paused:
            self.journal_channel(name, paused=paused)
            for part in channel.parts:
                part.set_paused(paused)

    def empty(self) -> None:
        """Drop the messages that no channel has got yet."""
        changes = [part._emptied() for part in self.parts]
        if any(changes):
            before = [part.limit for part in self.parts]
            self._change(changes)
            for part, limit in zip(self.parts, before, strict=True):
                for channel in part.channels.values():
                    channel.counted_from += part.limit - limit

    def _emptied(self) -> dict[str, Any]:
        """What changes of a part that is emptied."""
        end = self.queue.end_offset
        if not self.holders:
            voids = with_stretch(self.voids, self.backlog_offset, end)
            paused_at = end if self.paused else None
            return {"backlog_offset": end, "paused_at": paused_at, "voids": voids}
        if self.paused_at is None or self.paused_at == end:
            return {}
        return {"voids": with_stretch(self.voids, self.paused_at, end), "paused_at": end}

    def close(self) -> None:
        """The topic is deleted: so are its channels."""
        for channel in list(self.channels.values()):
            channel.close()
        self.channels.clear()


def join(topic: Topic, name: str) -> None:
    """Join the channels of one name at all queues of a topic."""
    if topic.several:
        channels = [part.channels[name] for part in topic.parts]
        joined = channels[0].all_queues
        if isinstance(joined, PartitionedChannel):
            joined.parts[:] = channels  # Clients are subscribed to it already.
        else:
            joined = PartitionedChannel(channels)
        for channel in channels:
            channel.parts, channel.all_queues = joined.parts, joined
