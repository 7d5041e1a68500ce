"""The queues whose messages the log keeps: a topic at one of its queues, and hidden topics.

Hidden topics are internal messages of the broker, half or delayed ones, invisible to clients. They
have no channels; their subclass determines which messages are needed.

So channels see a topic at one of its queues. They get the offsets below the limit, except voids::

    offsets   0 ....... 40 .... 50 .......... 90 ...... 120
    stored    | backlog  | void  |             |         |
                ^ where the first channel begins         ^ the queue's end
                                               ^ the limit, where the topic was paused

A channel imported from another broker may lack messages that other channels of its topic have. They
are voids to it alone: ranges that its cursor skips, without state for each message::

    topic      | all of them are stored                |
    channel a  | its own    | a void    | both have these
    channel b  | before its | its own   | both have these
               | start      |           |

Its voids lie below the topic's end from the beginning, begin and end at batches, and contain no
deferred messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from martlet.broker.journal.entries import ChannelRecord, TopicRecord
from martlet.broker.offset_ranges import Offsets, Stretch, apart_from
from martlet.broker.policy import TopicPolicy
from martlet.broker.queue.channel_state import Source, Waiting
from martlet.broker.queue.cursor import Cursor
from martlet.broker.queue.queue_log import MAX_BATCH_BYTES, QueueLog, Receipt
from martlet.broker.topic.ephemeral_limit import keep_within

if TYPE_CHECKING:
    import numpy.typing as npt

    from martlet.broker.channel.channel import Channel
    from martlet.broker.topic.topic import Topic, TopicContext
    from martlet.native.raw_bodies import Bodies


class Retained(ABC):
    """The messages of one queue of the log, those staged for it, and which of them are needed.

    A topic at one of its queues is one; hidden topics are others.
    """

    id: int
    name: str
    ephemeral: bool
    policy: TopicPolicy
    at_queues: Sequence[Retained]
    """The topic at each of its queues, by number."""
    target: Topic | None
    """The topic at the queue that gets its messages; None where each names its own."""
    loss_label: str
    """The label of lost messages that no channel had."""
    voids: list[Stretch]
    """Offsets, rising, that nothing needs; their messages may be missing in the log."""
    dropped_count: int
    """Messages dropped to free space before they were finished."""

    def __init__(self, context: TopicContext, queue: QueueLog) -> None:
        self._context = context
        self.queue = queue

    def stage(
        self, bodies: Bodies, deliver_at_ns: int = 0, properties: Sequence[tuple[int, bytes]] = ()
    ) -> Receipt:
        """Stage messages, to be appended at the end of this turn; the bodies are copied.

        `properties` has the number, rising, and the packed properties of each message with any.
        """
        queue = self.queue
        batch = queue.batch
        if batch is None or deliver_at_ns or batch.end > MAX_BATCH_BYTES:
            batch = self._context.staged(self)
        if properties:
            batch.set_properties(batch.count, properties)
        batch.add_bodies(bodies)
        if deliver_at_ns:
            return self._context.commit_topic(self, deliver_at_ns)
        return queue.receipt

    @property
    def next_offset(self) -> int:
        """The offset of the next staged message."""
        batch = self.queue.batch
        return self.queue.end_offset + (0 if batch is None else batch.count)

    @property
    @abstractmethod
    def lowest_needed(self) -> int:
        """The offset below which nothing is needed, now or later."""

    @property
    @abstractmethod
    def floor(self) -> int:
        """The offset from which on every message counts as needed."""

    @property
    @abstractmethod
    def passed(self) -> int:
        """The offset below which nothing reads a void any more."""

    @property
    @abstractmethod
    def lowest_unread(self) -> int:
        """The lowest offset that is still to be read."""

    @abstractmethod
    def pending_below(self, floor: int) -> npt.NDArray[np.uint64]:
        """Return the needed offsets below a floor, rising."""

    @abstractmethod
    def unfinished(self, gone: Sequence[Stretch]) -> Mapping[Channel | None, Offsets]:
        """Return each channel's unfinished messages in some ranges, rising; None stands for no
        channel.
        """

    @abstractmethod
    def drop_ranges(self, gone: Sequence[Stretch]) -> None:
        """Drop the messages of some deleted ranges."""

    def resume_delivery(self) -> None:  # noqa: B027  # a hidden topic has no consumer
        """Deliver what may be delivered after that."""

    @abstractmethod
    def stored(self, first: int, end: int, deferred: bool) -> None:
        """Handle a new batch, the offsets from `first` up to `end`."""

    @abstractmethod
    def describe(self, channels: Sequence[Channel] | None = None) -> TopicRecord:
        """Describe it for the journal; in a snapshot with its end and some channels."""

    def journal_marks(self, *, certain: bool) -> bytes | None:
        """Pack the marks of done messages that no channel or transaction tracks: all, or those that
        are certain to be durable; None for none.
        """
        return None


class HiddenTopic(Retained):
    """The base of hidden topics, with names that no client's topic has."""

    def __init__(self, context: TopicContext, id: int, name: str, queue: QueueLog) -> None:
        super().__init__(context, queue)
        self.id = id
        self.name = name
        self.ephemeral = False
        self.policy = TopicPolicy()
        self.at_queues = (self,)
        self.voids: list[Stretch] = []
        self.dropped_count = 0

    def record(self, backlog_offset: int, channels: Sequence[Channel] | None) -> TopicRecord:
        """Describe it for the journal; in a snapshot with its end, and no channels."""
        return TopicRecord(
            id=self.id,
            name=self.name,
            id_base=self.queue.id_base,
            paused_at=None,
            backlog_offset=backlog_offset,
            voids=tuple(self.voids),
            end_offset=None if channels is None else self.queue.end_offset,
            channels=None if channels is None else (),
        )


class SingleQueueTopic(Retained):
    """The messages of one queue of a topic, on their way to its channels, and which of them those
    need.
    """

    def __init__(self, context: TopicContext, queue: QueueLog) -> None:
        super().__init__(context, queue)
        self.number = queue.number
        self.channels: dict[str, Channel] = {}
        self.backlog_offset = queue.start_offset
        """The start of the first channel."""
        self.paused_at: int | None = None
        self.voids: list[tuple[int, int]] = []
        """Offsets that were emptied before any channel read them: no channel gets them. Rising."""
        self.awaiting: dict[Waiting, None] = {}
        """What to call when messages arrive: delivery, and fetches that wait."""
        self.held_from: int | None = None
        """From here on messages wait for the end of a large commit before readers see them."""
        self._held: list[tuple[int, int, bool]] = []
        """Those that are confirmed, as arguments of `stored`."""
        self.bounded = False
        """Whether it or one of its channels is ephemeral."""
        self.message_count = 0

    def stored(self, first: int, end: int, deferred: bool) -> None:
        """Deliver a confirmed batch, the offsets from `first` up to `end`, to the channels."""
        if self.held_from is not None and first >= self.held_from:
            self._hold_back(first, end, deferred)
            return
        assert self.queue.visible_end == first < end <= self.queue.end_offset
        self.queue.visible_end = end
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

    def hold(self, offset: int) -> None:
        """Show no client the messages from an offset on, the next one's, before `release`."""
        assert self.held_from is None and not self._held
        assert offset == self.queue.end_offset
        self.held_from = offset

    def hold_stored(self, offset: int) -> None:
        """Hold messages from an offset on, stored ones included, before any client has come."""
        queue = self.queue
        assert self.held_from is None and not self._held
        self.held_from = min(offset, queue.end_offset)
        if self.held_from < queue.end_offset:
            queue.visible_end = self.held_from
            self._held.append((self.held_from, queue.end_offset, False))

    def _hold_back(self, first: int, end: int, deferred: bool) -> None:
        held = self._held
        if held and held[-1][1:] == (first, deferred):
            first = held.pop()[0]
        held.append((first, end, deferred))

    def release(self) -> None:
        """Deliver the held messages."""
        held, self._held = self._held, []
        self.held_from = None
        for first, end, deferred in held:
            self.stored(first, end, deferred)

    def _keep_within_bounds(self) -> None:
        keep_within(self, -(-max(0, self._context.settings.max_ephemeral) // len(self.at_queues)))

    def stored_lone(self, offset: int, frame: memoryview) -> None:
        """Deliver a confirmed message that was appended by itself to the channels."""
        self.queue.visible_end = offset + 1
        self.message_count += 1
        if self.paused_at is None and self.awaiting:
            for waiting in list(self.awaiting):
                waiting.pump_lone(offset, frame)
        if self.bounded:
            self._keep_within_bounds()

    @property
    def holders(self) -> list[Channel]:
        """The channels for which messages are kept: all except followers without ``retain``."""
        return [channel for channel in self.channels.values() if channel.policy.retain == "on"]

    @property
    def paused(self) -> bool:
        """Whether the topic is paused."""
        return self.paused_at is not None

    @property
    def limit(self) -> int:
        """The offset up to which channels see the topic."""
        end = self.queue.visible_end
        return end if self.paused_at is None else min(end, self.paused_at)

    def limit_of(self, cursor: Cursor) -> int:
        """Return the offset up to which a cursor may move; moves it over a void first."""
        voids = self.voids
        number = len(voids)
        while number and cursor.next < voids[number - 1][1]:
            number -= 1
        for first, end in voids[number:]:
            if cursor.next < first:
                return min(first, self.limit)
            cursor.skip_to(end, self.deferred_from(end))
        return self.limit

    def stretches(self, first: int, end: int | None = None) -> Iterator[Stretch]:
        """Return the ranges that channels get from `first` up to `end`, or the limit."""
        return apart_from(self.voids, first, self.limit if end is None else end)

    def count_from(self, offset: int) -> int:
        """Count the messages that channels get from an offset on."""
        return sum(end - first for first, end in self.stretches(offset))

    def deferred_from(self, offset: int) -> int:
        """Count the deferred ones of them."""
        index = self.queue.index
        return sum(index.count_deferred(first, end) for first, end in self.stretches(offset))

    def describe_channel(self, channel: Channel) -> ChannelRecord:
        """Describe the channel at this queue for the journal."""
        return ChannelRecord(
            id=channel.id,
            name=channel.name,
            paused=channel.paused,
            start=channel.cursor.lowest_needed,
            voids=tuple(channel.voids),
            limit=self.limit,
            policy=channel.policy.to_json() or None,
        )

    @property
    def message_bytes(self) -> int:
        """The size of all visible bodies stored since the start."""
        queue = self.queue
        hidden_bytes = 0 if queue.visible_end == queue.end_offset else queue.hidden_bytes()
        return queue.message_bytes - hidden_bytes

    @property
    def depth(self) -> int:
        """The number of messages waiting for a first channel, or for the topic to be unpaused."""
        waiting = 0 if self.holders else self.count_from(self.backlog_offset)
        hidden = self.stretches(self.limit, self.queue.visible_end)
        return waiting + sum(end - first for first, end in hidden)

    @property
    def lowest_needed(self) -> int:
        """The offset below which no channel needs a message, and no new one will."""
        if not (holders := self.holders):
            return self.backlog_offset
        lowest = min(channel.cursor.lowest_needed for channel in holders)
        return min(lowest, self.limit)

    @property
    def floor(self) -> int:
        """The offset from which on the channels, and new ones, need every message."""
        if not (holders := self.holders):
            return self.backlog_offset
        floors = [channel.cursor.window.floor for channel in holders]
        return min(*floors, self.limit)

    def pending_below(self, floor: int) -> npt.NDArray[np.uint64]:
        """Return the unfinished offsets of any channel below a floor, rising."""
        some = [
            np.fromiter(by_offset, np.uint64, len(by_offset))
            for channel in self.channels.values()
            if (by_offset := channel.cursor.pending.by_offset)
        ]
        if not some:
            return np.empty(0, np.uint64)
        offsets = np.unique(np.concatenate(some))
        return offsets[: np.searchsorted(offsets, floor)]

    @property
    def lowest_unread(self) -> int:
        """The lowest offset that a channel, or the first one, has yet to read."""
        if not (holders := self.holders):
            return self.backlog_offset
        return min(self.limit, *(channel.cursor.next for channel in holders))

    def unfinished(self, gone: Sequence[Stretch]) -> dict[Channel | None, Offsets]:
        """Return each channel's unfinished messages in some ranges, rising; those that wait for a
        first channel under None.
        """
        if holders := self.holders:
            return {channel: channel.unfinished(gone) for channel in holders}
        start = self.backlog_offset
        waiting = [np.empty(0, np.int64)]
        for first, end in gone:
            for begin, stop in self.stretches(max(first, start), max(end, start)):
                waiting.append(np.arange(begin, stop, dtype=np.int64))
        return {None: np.concatenate(waiting)}

    def drop_ranges(self, gone: Sequence[Stretch]) -> None:
        """Drop the messages of some deleted ranges; the channels know of it already."""
        # Sorted with the voids: one that touches a deleted range is skipped with it.
        for first, end in sorted([*gone, *self.voids]):
            if not self.holders and first <= self.backlog_offset < end:
                self.backlog_offset = end
            if self.paused_at is not None and first <= self.paused_at < end:
                for channel in self.channels.values():
                    channel.counted_from += end - self.paused_at
                self.paused_at = end
        assert self.backlog_offset <= self.queue.end_offset
        assert self.paused_at is None or self.paused_at <= self.queue.end_offset

    def resume_delivery(self) -> None:
        """Deliver to consumers that may have capacity since some of their messages were dropped."""
        for channel in list(self.channels.values()):
            channel.resume_delivery()

    @property
    def passed(self) -> int:
        """The offset that every channel has reached, and below which none can start or go back."""
        nexts = [channel.cursor.next for channel in self.holders]
        return min([self.queue.start_offset, *(nexts or [self.backlog_offset])])


class MaskedSource:
    """The source of a channel with voids of its own, rising and separate."""

    def __init__(self, topic: Source, voids: Sequence[Stretch]) -> None:
        self._topic = topic
        self._voids = voids
        self._passed = 0
        """The number of voids that the cursor has passed."""

    @property
    def limit(self) -> int:
        """The offset up to which the channel sees the topic."""
        return self._topic.limit

    def limit_of(self, cursor: Cursor) -> int:
        """Return the offset up to which the cursor may move; moves it over a void first."""
        limit = self._topic.limit_of(cursor)
        while self._passed and cursor.next < self._voids[self._passed - 1][1]:
            self._passed -= 1
        while self._passed < len(self._voids):
            first, end = self._voids[self._passed]
            if cursor.next < first:
                return min(first, limit)
            if cursor.next < end:
                cursor.skip_to(end, self.deferred_from(end))
                limit = self._topic.limit_of(cursor)
            self._passed += 1
        return limit

    def stretches(self, first: int, end: int | None = None) -> Iterator[Stretch]:
        """Yield the ranges that the channel gets from `first` up to `end`, or the limit."""
        near = bisect_right(self._voids, first, key=itemgetter(1))
        for start, stop in self._topic.stretches(first, end):
            yield from apart_from(self._voids[near:], start, stop)

    def count_from(self, offset: int) -> int:
        """Count the visible messages from an offset on."""
        return sum(end - first for first, end in self.stretches(offset))

    def deferred_from(self, offset: int) -> int:
        """Count the deferred ones of them."""
        return self._topic.deferred_from(offset)
