"""The state of a channel at one queue, shared by the objects of the channel.

It has no rules: those are in `martlet.broker.channel`, and a group's in
`martlet.broker.groups.group_queue`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from martlet.broker.context import BrokerContext
from martlet.broker.policy import ChannelPolicy
from martlet.broker.queue.consumer import INTERNAL_CLIENT, ChannelConsumer, TopologyPreference
from martlet.broker.tracing.finish_ages import FinishAges
from martlet.names import is_ephemeral

if TYPE_CHECKING:
    from martlet.broker.offset_ranges import Stretch
    from martlet.broker.queue.channel_filter import ChannelFilter
    from martlet.broker.queue.cursor import Cursor
    from martlet.broker.retry import DeadLetterReason, RetryPolicy
    from martlet.broker.schedule import Alarm
    from martlet.broker.tracing.recorder import TraceRecorder
    from martlet.log.index import Index, IndexEntry

NEVER_NS = 1 << 62
_ROWS_AT_ONCE = 4096
_MAX_ROWS = 1 << 18
"""How many rows of deferred messages are searched for one behind them that is not deferred."""


class ChannelContext(BrokerContext, Protocol):
    """The broker's services for a channel."""

    moved_channels: deque[ChannelState]
    """Those whose cursors have moved since they were journaled, the longest unwritten first."""

    def write_cursor(self, channel: ChannelState) -> None:
        """Journal a channel's cursor at once. Raises WritesRefused."""

    def delayed_count(self, topic_number: int, /) -> int:
        """Return the number of messages waiting until all channels of a topic get them."""

    def put_off(self, channel: ChannelState, error: OSError) -> None:
        """Report that a channel cannot read its messages at the moment; the read is retried."""

    def move_to_dead_letters(
        self,
        channel: ChannelState,
        offset: int,
        attempts: int,
        failures: int,
        reason: DeadLetterReason,
    ) -> None:
        """Move a message that no consumer holds to the channel's dead-letter topic."""

    def append_again(self, channel: ChannelState, offset: int, attempts: int) -> None:
        """Move a due message to the end of its queue, for its channel alone."""


class Waiting(Protocol):
    """An object to call when messages arrive in a queue."""

    def pump(self) -> None:
        """Handle new messages."""

    def pump_lone(self, offset: int, frame: memoryview) -> None:
        """Handle one new message."""


class Source(Protocol):
    """The messages that a channel reads: its topic, as far as the channel sees it."""

    @property
    def limit(self) -> int:
        """The offset up to which the channel sees the topic."""

    def limit_of(self, cursor: Cursor) -> int:
        """Return the offset up to which a cursor may move from its position."""

    def count_from(self, offset: int) -> int:
        """Count the messages that the channel sees from an offset on."""

    def stretches(self, first: int, end: int | None = None) -> Iterator[Stretch]:
        """Return the ranges that the channel sees from `first` up to `end`, or the limit."""

    def deferred_from(self, offset: int) -> int:
        """Count the deferred messages that it sees from an offset on."""


class ChannelState:
    """A channel at one queue: its cursor, consumers, policy and counts."""

    alarm: Alarm
    """Rings when a message is due, or times out."""
    moving: MovingMessages
    """Messages that are moving to another topic."""

    def __init__(
        self,
        context: ChannelContext,
        id: int,
        topic: str,
        name: str,
        cursor: Cursor,
        source: Source,
    ) -> None:
        self.context = context
        self.id = id
        """Its number in the log, the same at all queues."""
        self.topic = topic
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.cursor = cursor
        self.queue = cursor.queue
        self.topic_id = cursor.queue.topic
        """The topic's number in the log, at this queue."""
        self.source = source
        self.voids: Sequence[Stretch] = ()
        """Offsets of its topic that the channel skips."""
        self.policy = ChannelPolicy()
        self.retry: RetryPolicy | None = None
        """The retry policy for failed messages; None for NSQ's rules."""
        self.channel_filter: ChannelFilter | None = None
        """The filter of its messages; None for all."""
        self.consumers: list[ChannelConsumer] = []
        self.numbers: dict[int, ChannelConsumer] = {}
        """The consumers by their numbers."""
        self.paused = False
        self.closed = False
        """Whether it was deleted."""
        self.dirty = False
        """Whether its cursor has moved since it was last journaled."""
        self.recorder: TraceRecorder | None = None
        """The history of its messages, if they are traced."""
        # Counts of messages, since the broker was started.
        self.retry_count = 0
        """Redelivered."""
        self.timeout_count = 0
        self.requeue_count = 0
        self.committed_count = 0
        """Committed, if it is a group."""
        self.dead_letter_count = 0
        self.dropped_count = 0
        """Dropped to free space, before they were finished."""
        self.delivered_before = 0
        """Delivered to consumers that have left."""
        self.delivered_near_before = [0] * len(TopologyPreference)
        self.counted_from = cursor.next
        """Messages below this offset were stored before the broker was started."""
        self.finishes = FinishAges(cursor.queue.index, context.wall)

    def moved(self) -> None:
        """Schedule the moved cursor to be journaled."""
        if not self.dirty:
            self.dirty = True
            self.context.moved_channels.append(self)

    @property
    def retries(self) -> bool:
        """Whether the broker applies a retry policy to failed messages."""
        return self.retry is not None

    @property
    def max_attempts(self) -> int:
        """How often a message may fail; -1 for ever, 0 where failures are not counted."""
        return 0 if self.retry is None else self.retry.max_attempts or -1

    @property
    def own_mark(self) -> int:
        """The delivery time that marks batches for this group alone; 0 for a channel."""
        return 0 if self.policy.kind == "shared" else -self.id

    @property
    def filtered_count(self) -> int:
        """The number of messages that its filter has rejected since the start; 0 for a group, which
        commits them.
        """
        return self.cursor.filtered_count

    @property
    def delivered_count(self) -> int:
        """The number of deliveries since the start, redeliveries included."""
        return self.delivered_before + sum(c.message_count for c in self.consumers)


class MovingMessages:
    """The messages of a channel at one queue that are moving to another topic.

    They are pending messages in flight to an internal consumer of number 0, so that no other
    consumer gets them. A restart finds them due. `pump` delivers others once one has left.
    """

    __slots__ = ("_pump", "_state", "consumer")

    def __init__(self, state: ChannelState, pump: Callable[[], None]) -> None:
        self._state = state
        self._pump = pump
        self.consumer = ChannelConsumer(INTERNAL_CLIENT, 0, 0)
        """The internal consumer that holds them."""

    def holds(self, offset: int) -> bool:
        """Whether a message is moving, and its channel still exists."""
        state = self._state
        return not state.closed and state.cursor.pending.get(offset, self.consumer) is not None

    def add(self, offset: int, attempts: int, failures: int = 0) -> None:
        """Hold a message that no consumer holds, so that no consumer gets it."""
        pending, now_ns = self._state.cursor.pending, self._state.context.clock()
        if not self.holds(offset):
            self.consumer.in_flight_count += 1
        if (message := pending.by_offset.get(offset)) is not None:
            failures = max(failures, message.failures)
        pending.hold(offset, attempts, self.consumer, now_ns, NEVER_NS, failures)
        self._state.moved()

    def finish(self, offset: int) -> None:
        """Finish a message that has been moved, or was deleted."""
        self._state.cursor.pending.remove(offset)
        self._left()  # With ordering, the next of its key may be waiting.

    def put_back(self, offset: int, attempts: int) -> None:
        """Return a message to its channel, to be delivered as before."""
        pending, now_ns = self._state.cursor.pending, self._state.context.clock()
        message = pending.by_offset.get(offset)
        failures = 0 if message is None else message.failures
        pending.wait(offset, attempts, now_ns, now_ns, failures)
        self._left()

    def _left(self) -> None:
        self.consumer.in_flight_count -= 1
        assert self.consumer.in_flight_count >= 0
        self._state.moved()
        self._pump()


def oldest_age_ns(channel: ChannelState) -> int:
    """Return for how many nanoseconds the oldest waiting message has waited since it was stored or,
    if it was deferred, since it was due; 0 where none waits. It is read from two rows of the index.
    """
    now_ns = channel.context.wall()
    rows = (_lowest_pending(channel), _first_fresh(channel))
    ages_ns = (now_ns - max(row.stored_at_ns, row.deliver_at_ns) for row in rows if row)
    return max((0, *ages_ns))


def _lowest_pending(channel: ChannelState) -> IndexEntry | None:
    """Return the row of the lowest ready message: to be redelivered, or deferred and due now."""
    offset = channel.cursor.pending.lowest_ready()
    index = channel.cursor.queue.index
    number = index.end_row if offset is None else index.find(offset)
    return index.row(number) if number < index.end_row else None


def _first_fresh(channel: ChannelState) -> IndexEntry | None:
    """Return the first row from the cursor on whose messages the channel gets without delay."""
    index, own_mark = channel.cursor.queue.index, channel.own_mark
    for first, end in channel.source.stretches(channel.cursor.next):
        number = index.find(first)
        last = min(index.end_row, number + _MAX_ROWS)
        if number < last:
            row = index.row(number)
            if row.deliver_at_ns not in (0, own_mark):
                row = _first_plain(index, number, last, own_mark) or row
            if row.first_offset < end and row.deliver_at_ns in (0, own_mark):
                return row
    return None


def _first_plain(index: Index, number: int, last: int, own_mark: int) -> IndexEntry | None:
    """Return the first row of some whose messages are not deferred, or for this channel alone."""
    while number < last:
        marks = index.array(number, min(last, number + _ROWS_AT_ONCE))["deliver_at_ns"]
        shown = np.flatnonzero((marks == 0) | (marks == own_mark))
        if len(shown):
            return index.row(number + int(shown[0]))
        number += len(marks)
    return None
