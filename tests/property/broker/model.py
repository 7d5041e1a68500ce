"""The promises of a broker in plain Python: one object a message, and no cleverness.

The model knows nothing of offsets below a floor, of windows, leases or segments.  It says for each
message of each channel where it is, and for whatever happened whether a crash may undo it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from martlet.broker.channel.partitioned import PartitionedChannel
from martlet.broker.channel.subscriber import Subscriber

OFFSET_BITS = 54
NEVER = 1 << 63
"""A position that no log reaches, for changes not written down anywhere."""


class MessageState(Enum):
    """Where a message is, as a channel sees it."""

    FRESH = "not yet delivered"
    READY = "to be delivered again, or its time has come"
    DEFERRED = "waits for a time"
    IN_FLIGHT = "with a consumer"
    DONE = "finished, or emptied"


@dataclass
class ChannelMessage:
    """One message of one channel."""

    state: MessageState = MessageState.FRESH
    attempts: int = 0
    due_ns: int = 0
    """When it is deferred until, or times out."""
    delivered_at_ns: int = 0
    owner: ModelConsumer | None = None
    done_position: int = NEVER
    """Once the log is durable up to here, it must not come back."""
    replayed_position: int = 0
    """Until the log is durable up to here, it may be as it was before it was to come again."""


@dataclass
class Message:
    body: bytes
    deliver_at_ns: int
    position: int
    """Behind its batch in the log."""
    lost: bool = False
    """A power cut took it, as it may before it is flushed."""
    stored_at_ns: int = 0
    kept_ms: int = 0
    """How long it is kept though it is finished: the shortest time that was set since."""


@dataclass(eq=False)
class ModelConsumer:
    """A subscription, and the client behind it."""

    channel: ModelChannel
    timeout_ns: int
    sent: list[tuple[ModelConsumer, bytes]]
    """All that the core sends to clients, in order."""
    seen: list[tuple[memoryview | bytes | bytearray, bytes]] = field(default_factory=list)
    """Frames lately sent, as they are handed over and as they were then."""
    ready_count: int = 0
    blocked: bool = False
    closed: bool = False
    grown: Subscriber | None = None
    delivered_count: int = 0
    finished_count: int = 0
    requeued_count: int = 0

    def send_messages(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        """The core sends; what it means is read when the core has returned."""
        assert not self.closed, "a message for a consumer whose channel is gone"
        for frame in frames:
            copy = bytes(frame)
            self.sent.append((self, copy))
            self.seen.append((frame, copy))
        del self.seen[:-4]

    def channel_closed(self) -> None:
        self.closed = True

    def failures_counted(self, max_attempts: int) -> None: ...

    def recalled(self, queue: int) -> None: ...

    def channel_grown(self, channel: PartitionedChannel, consumer: Subscriber) -> None:
        self.grown = consumer

    @property
    def in_flight(self) -> list[int]:
        """The positions that it holds."""
        return [
            channel.position(offset)
            for channel in self.channel.at_queues
            for offset, message in channel.messages.items()
            if message.owner is self
        ]

    def at(self, position: int) -> tuple[ModelChannel, int]:
        """The channel at the queue of a position, or at the first where there is no such, and the
        offset.
        """
        number, parts = position >> OFFSET_BITS, self.channel.at_queues
        return parts[number if 0 <= number < len(parts) else 0], position % (1 << OFFSET_BITS)

    def held(self, position: int) -> ChannelMessage | None:
        """The message at a position, if there is one."""
        channel, offset = self.at(position)
        return channel.messages.get(offset) if channel.position(offset) == position else None

    @property
    def room(self) -> int:
        """How many more messages it takes."""
        return 0 if self.blocked else self.ready_count - len(self.in_flight)


@dataclass(eq=False)
class ModelChannel:
    """A channel at one queue and all messages there that belong to it, by offset.

    The consumers are those of the channel at all queues; they belong to the one at the first.
    """

    topic: ModelTopic
    name: str
    id: int
    created_position: int
    messages: dict[int, ChannelMessage] = field(default_factory=dict)
    consumers: list[ModelConsumer] = field(default_factory=list)
    paused: bool = False
    paused_position: int = 0
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    dropped_count: int = 0

    @property
    def at_queues(self) -> list[ModelChannel]:
        return [topic.channels[self.name] for topic in self.topic.at_queues]

    def position(self, offset: int) -> int:
        """The queue and the offset in one number."""
        return (self.topic.number << OFFSET_BITS) + offset

    def all_in(self, state: MessageState) -> list[int]:
        return [offset for offset, m in self.messages.items() if m.state is state]

    @property
    def visible_fresh(self) -> list[int]:
        """Return the messages that were never delivered and may be."""
        limit = self.topic.limit
        return [offset for offset in self.all_in(MessageState.FRESH) if offset < limit]

    @property
    def depth(self) -> int:
        """How many messages may be delivered now."""
        return len(self.visible_fresh) + len(self.all_in(MessageState.READY))

    def show(self, offset: int, now_ns: int) -> None:
        """The topic hands a message on to the channel."""
        self.message_count += 1
        due_ns = self.topic.messages[offset].deliver_at_ns
        message = self.messages[offset]
        if due_ns and message.state is MessageState.FRESH:
            message.state = MessageState.READY if due_ns <= now_ns else MessageState.DEFERRED
            message.due_ns = due_ns

    def deliver(self, consumer: ModelConsumer, offset: int, attempts: int, now_ns: int) -> None:
        """The core has sent a message; say whether it may."""
        assert not self.paused, "a paused channel delivers nothing"
        assert offset in self.messages, f"offset {offset} does not belong to the channel"
        message = self.messages[offset]
        assert message.state in (MessageState.FRESH, MessageState.READY), (
            f"{offset} is {message.state}"
        )
        if message.state is MessageState.FRESH:
            fresh = self.visible_fresh
            assert fresh, f"{offset} is not handed on to the channel yet"
            assert offset == fresh[0], f"{offset} is delivered before {fresh[0]}"
        assert consumer.room > 0, f"RDY {consumer.ready_count} with {len(consumer.in_flight)}"
        message.attempts += 1
        assert attempts == message.attempts
        message.state = MessageState.IN_FLIGHT
        message.owner = consumer
        message.delivered_at_ns = now_ns
        message.due_ns = now_ns + consumer.timeout_ns
        consumer.delivered_count += 1

    def put_back(self, offset: int) -> None:
        """A message is to be delivered again, at once."""
        message = self.messages[offset]
        message.state, message.owner = MessageState.READY, None

    def done(self, offset: int) -> None:
        message = self.messages[offset]
        message.state, message.owner = MessageState.DONE, None

    def expire(self, now_ns: int) -> None:
        """Mark messages whose time has come as due."""
        for offset, message in self.messages.items():
            if message.due_ns <= now_ns:
                if message.state is MessageState.IN_FLIGHT:
                    self.timeout_count += 1
                    self.put_back(offset)
                elif message.state is MessageState.DEFERRED:
                    self.put_back(offset)

    def replay(self, offset: int, position: int, now_ns: int) -> None:
        """All from an offset on comes again, whatever became of it."""
        message_count = self.message_count
        for again in range(offset, len(self.topic.messages)):
            message = self.messages[again] = ChannelMessage(replayed_position=position)
            if self.topic.messages[again].lost or again in self.topic.emptied:
                message.state = MessageState.DONE
            elif again < self.topic.limit:
                self.show(again, now_ns)
        self.message_count = message_count
        self.messages = dict(sorted(self.messages.items()))

    def written_down(self, position: int) -> None:
        """Everything is in the log below a position."""
        for message in self.messages.values():
            if message.state is MessageState.DONE:
                message.done_position = min(message.done_position, position)

    @property
    def earliest_ns(self) -> int:
        waiting = (MessageState.IN_FLIGHT, MessageState.DEFERRED)
        return min((m.due_ns for m in self.messages.values() if m.state in waiting), default=NEVER)


@dataclass(eq=False)
class ModelTopic:
    """A topic at one of its queues."""

    name: str
    id: int
    created_position: int
    number: int = 0
    at_queues: list[ModelTopic] = field(default_factory=list)
    """The topic at each queue."""
    messages: list[Message] = field(default_factory=list)
    channels: dict[str, ModelChannel] = field(default_factory=dict)
    backlog_offset: int = 0
    paused_at: int | None = None
    changed_position: int = 0
    """Position at which the log has pause and backlog as they are now."""
    emptied: set[int] = field(default_factory=set)
    """Offsets that no channel gets, though they come behind the backlog's."""
    message_bytes: int = 0
    message_count: int = 0
    dropped_count: int = 0
    retention_ms: int = 0
    """How long finished messages are kept."""
    has_holes: bool = False
    """A power cut took messages out of its middle: counts of the rest are not exact."""
    lost_delayed: bool = False
    """Whether a power cut has taken messages while they waited for their time."""

    def __post_init__(self) -> None:
        self.at_queues.append(self)
        assert self.at_queues[self.number] is self

    def grow(self, id: int, position: int) -> None:
        part = ModelTopic(self.name, id, position, len(self.at_queues), self.at_queues)
        part.retention_ms = self.retention_ms
        part.paused_at = None if self.paused_at is None else 0
        part.changed_position = position
        for name, channel in self.channels.items():
            part.channels[name] = ModelChannel(
                part,
                name,
                channel.id,
                position,
                consumers=channel.consumers,
                paused=channel.paused,
                paused_position=position,
            )

    @property
    def limit(self) -> int:
        """The offset up to which channels see it."""
        return len(self.messages) if self.paused_at is None else self.paused_at

    @property
    def depth(self) -> int:
        """Count the messages that no channel has yet."""
        start = self.limit if self.channels else self.backlog_offset
        return sum(offset not in self.emptied for offset in range(start, len(self.messages)))

    def publish(self, bodies: list[bytes], deliver_at_ns: int, position: int, now_ns: int) -> None:
        """A batch is stored, with the log's position behind it."""
        for body in bodies:
            offset = len(self.messages)
            self.messages.append(
                Message(
                    body, deliver_at_ns, position, stored_at_ns=now_ns, kept_ms=self.retention_ms
                )
            )
            self.message_bytes += len(body)
            self.message_count += 1
            for channel in self.channels.values():
                channel.messages[offset] = ChannelMessage()
                if self.paused_at is None:
                    channel.show(offset, now_ns)

    def keep(self, retention_ms: int) -> None:
        """Set the retention of finished messages; dropped ones do not come back."""
        self.retention_ms = retention_ms
        for message in self.messages:
            message.kept_ms = min(message.kept_ms, retention_ms)

    def create_channel(
        self, name: str, id: int, position: int, now_ns: int, start: int | None = None
    ) -> ModelChannel:
        """Make a channel: the first one gets the backlog, unless a start is given."""
        if start is None:
            start = self.limit if self.channels else self.backlog_offset
        channel = self.channels[name] = ModelChannel(self, name, id, position)
        channel.consumers = self.at_queues[0].channels[name].consumers
        for offset in range(start, len(self.messages)):
            channel.messages[offset] = ChannelMessage()
            if self.messages[offset].lost or offset in self.emptied:
                channel.done(offset)
            if offset < self.limit and offset not in self.emptied:
                channel.show(offset, now_ns)
        return channel

    def delete_channel(self, name: str, position: int) -> None:
        """A channel goes; without any, messages gather for the next first one."""
        del self.channels[name]
        if not self.channels:
            self.backlog_offset = self.limit
            self.changed_position = position

    def pause(self, paused: bool, position: int, now_ns: int) -> None:
        """Messages are kept from the channels, or handed on again."""
        if paused == (self.paused_at is not None):
            return
        before, self.paused_at = self.paused_at, len(self.messages) if paused else None
        self.changed_position = position
        if before is not None:
            for channel in self.channels.values():
                for offset in range(before, len(self.messages)):
                    channel.show(offset, now_ns)

    def empty(self, position: int) -> None:
        """Drop the messages that no channel has."""
        self.changed_position = position
        end = len(self.messages)
        if not self.channels:
            self.emptied.update(range(self.backlog_offset, end))
            self.backlog_offset = end
            self.paused_at = None if self.paused_at is None else end
        elif self.paused_at is not None:
            for channel in self.channels.values():
                for offset in range(self.paused_at, end):
                    channel.done(offset)
                    channel.messages[offset].done_position = position
            self.emptied.update(range(self.paused_at, end))
            self.paused_at = end

    def give_up(self, gone: list[int], position: int) -> dict[str, list[int]]:
        """Some messages have gone, and a position will say so.

        Returns which of them each channel had not finished, and under no name what waited for a
        first channel.
        """
        lost: dict[str, list[int]] = {}
        for channel in self.channels.values():
            for offset in gone:
                message = channel.messages.get(offset)
                if message is not None and message.state is not MessageState.DONE:
                    lost.setdefault(channel.name, []).append(offset)
                    channel.done(offset)
                    message.done_position = position
                    channel.dropped_count += 1
        if not self.channels:
            waiting = [o for o in gone if o >= self.backlog_offset and o not in self.emptied]
            lost |= {"": waiting} if waiting else {}
        self.dropped_count += len(set().union(*lost.values()))
        self.emptied.update(gone)
        before = self.backlog_offset, self.paused_at
        self._pass_over_emptied()
        if before != (self.backlog_offset, self.paused_at):
            self.changed_position = position
        return lost

    def pass_over_lost(self) -> None:
        """After a start: what a power cut took keeps no place."""
        self.emptied |= {offset for offset, message in enumerate(self.messages) if message.lost}
        self._pass_over_emptied()

    def _pass_over_emptied(self) -> None:
        while not self.channels and self.backlog_offset in self.emptied:
            self.backlog_offset += 1
        while self.paused_at is not None and self.paused_at in self.emptied:
            self.paused_at += 1
