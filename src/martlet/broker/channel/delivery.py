"""Delivery: how a channel's messages go out to the consumers that have room.

The consumers that would take a message stand in a line.  Delivery goes in grants: the consumer at
the head of the line gets its share of what there is, and stands in line again while it has room.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol

from martlet.broker.offset_ranges import merged
from martlet.broker.queue.consumer import ChannelConsumer, Lease
from martlet.broker.queue.cursor import Cursor
from martlet.broker.queue.in_flight import COMFORTABLE_SPAN
from martlet.broker.queue.started import next_rank, notes_of
from martlet.broker.queue.topology import NearestFirst
from martlet.broker.schedule import Alarm, Schedule
from martlet.broker.tracing.recorder import TraceStep
from martlet.properties.block import lone_frame

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.ordering import Ordering
    from martlet.broker.dead_letters.move import MessageMover
    from martlet.broker.groups.group_queue import GroupQueue
    from martlet.broker.offset_ranges import Stretch
    from martlet.broker.queue.tag_filter import TagFilter
    from martlet.broker.topic.topic import Topic
    from martlet.broker.tracing.recorder import TraceRecorder


class ChannelContext(Protocol):
    """What a channel needs of its broker."""

    clock: Callable[[], int]
    schedule: Schedule
    random: Random
    prefers_near: bool
    transfers: MessageMover

    def topic(self, name: str) -> Topic:
        """The topic of that name, made if it is new. Raises BrokerError and WritesRefused."""

    def changed(self, channel: Channel) -> None:
        """The channel's cursor moved: journal it before long."""

    def write_cursor(self, channel: Channel) -> None:
        """Write down at once where a channel's cursor is. Raises WritesRefused."""

    def delayed_count(self, topic_number: int, /) -> int:
        """How many messages wait until all channels of a topic get them."""

    def put_off(self, channel: Channel, error: OSError) -> None:
        """The channel can not read its messages at the moment; it is tried again."""


class Waiting(Protocol):
    """What wants to know of messages that arrive in a queue."""

    def pump(self) -> None:
        """Some have arrived."""

    def pump_lone(self, offset: int, frame: memoryview) -> None:
        """One has arrived."""


class Source(Protocol):
    """What a channel reads: its topic, as far as it is to be seen."""

    @property
    def limit(self) -> int:
        """The offset up to which the channel sees it."""

    def limit_of(self, cursor: Cursor) -> int:
        """The offset up to which a cursor may go from where it is."""

    def count_from(self, offset: int) -> int:
        """How many messages there are to be seen from an offset on."""

    def stretches(self, first: int, end: int | None = None) -> Iterator[Stretch]:
        """What the channel gets of the offsets from `first` on, up to `end` or the limit."""

    def deferred_from(self, offset: int) -> int:
        """How many of those to be seen from an offset on are deferred ones."""


_PUT_OFF_NS = 1_000_000_000
_LOOK_ON_NS = 100_000
"""So much later a filter looks at the next batches."""
_lease = partial(tuple.__new__, Lease)
"""Makes one of a tuple, without a call in Python."""


class Delivery(ABC):
    """The part of a channel that hands messages out.

    Args:
        context: the broker's clock, schedule and journal.
        cursor: where the channel stands.
        source: what it reads.
        waiting: where the channel enters itself while a consumer would take a message.
    """

    def __init__(
        self,
        context: ChannelContext,
        cursor: Cursor,
        source: Source,
        waiting: dict[Waiting, None],
    ) -> None:
        self.cursor = cursor
        self.paused = False
        self.dirty = False
        self.retry_count = 0
        """Messages that were delivered again since the broker was started."""
        self._context = context
        self.source = source
        self._limit = source.limit_of
        self._waiting = waiting
        self._line: deque[ChannelConsumer] | NearestFirst = (
            NearestFirst() if context.prefers_near else deque()
        )
        self._fresh_turn = False
        self.wanted: TagFilter | None = None
        """Which messages it gets; None for all."""
        self.trail: TraceRecorder | None = None
        """What becomes of its messages, where that is traced."""
        self.counts_failures = False
        """Whether a policy decides about messages that fail."""
        self.order: Ordering | GroupQueue | None = None
        """In which order messages go out; None for NSQ's."""
        self._by_number: dict[int, ChannelConsumer] = {}
        self._alarm: Alarm = context.schedule.alarm(self._expire)

    @abstractmethod
    def _expire(self, now_ns: int) -> int | None:
        """Do what is due. Returns when to look again."""

    @abstractmethod
    def _changed(self) -> None:
        """The cursor has moved."""

    @abstractmethod
    def _put_off(self, error: OSError) -> None:
        """Nothing can be read at the moment."""

    # the line

    def set_ready(self, consumer: ChannelConsumer, count: int) -> None:
        """RDY: the consumer takes up to so many messages at a time."""
        consumer.ready_count = count
        self.resume(consumer)

    def set_blocked(self, consumer: ChannelConsumer, blocked: bool) -> None:
        """The client has stopped, or begun again, to read what it is sent."""
        consumer.blocked = blocked
        if not blocked:
            self.resume(consumer)

    def resume(self, consumer: ChannelConsumer) -> None:
        """Deliver to a consumer that may have room."""
        if not consumer.is_ready and consumer.room > 0:
            self._enter_line(consumer)
        if consumer.is_ready:
            self.pump()

    def _enter_line(self, consumer: ChannelConsumer) -> None:
        consumer.is_ready = True
        self._line.append(consumer)
        self._waiting[self] = None

    def _leave_line(self, consumer: ChannelConsumer) -> None:
        if consumer.is_ready:
            consumer.is_ready = False
            self._line.remove(consumer)
            if not self._line:
                del self._waiting[self]

    def _take_place(self, consumer: ChannelConsumer, successor: ChannelConsumer) -> None:
        """Let another consumer stand in line for one that stood there."""
        line = list(self._line)
        line[line.index(consumer)] = successor
        self._line.clear()
        self._line.extend(line)

    def _line_up(self, consumers: Iterable[ChannelConsumer]) -> None:
        for consumer in consumers:
            if not consumer.is_ready and consumer.room > 0:
                self._enter_line(consumer)
            consumer.offer_room()

    # delivery

    def pump(self) -> None:
        """Deliver what can be delivered.

        While there are messages to be delivered again they take turns with the fresh ones, so that
        one that fails again and again keeps no other from its consumer.  Where the index can not be
        read, as when there are too many open files, it is tried again a second later.
        """
        line = self._line
        try:
            if self.order is not None:
                if not self.paused:
                    self.order.pump()
                return
            while line and not self.paused:
                consumer = line[0]
                room = consumer.room
                if room <= 0:
                    self._leave_line(consumer)
                    continue
                limit = self._limit(self.cursor)
                available = limit - self.cursor.next
                some_again = self.cursor.stragglers.ready_count
                if some_again and (available <= 0 or not self._fresh_turn):
                    self._fresh_turn = True
                    self._grant_straggler(consumer)
                elif available <= 0:
                    return
                else:
                    self._fresh_turn = False
                    if some_again:
                        room = 1
                    elif len(line) > 1:
                        room = min(room, -(-available // len(line)))
                        line.rotate(-1)
                    if not self._grant(consumer, room, limit):
                        self.look_again_soon()
                        return
        except OSError as error:
            self._put_off(error)
            self._alarm.at(self._context.clock() + _PUT_OFF_NS)

    def pump_lone(self, offset: int, frame: memoryview) -> None:
        """Deliver the message that was just stored, which is what `pump` would do with it.

        Where it waits for nothing, it is handed over without a look at the index.
        """
        cursor = self.cursor
        window = cursor.window
        line = self._line
        plain = self.wanted is None and self.order is None
        free = window.next == offset and line and not self.paused and plain
        if not free or cursor.stragglers.by_offset or line[0].sample_rate or line[0].room <= 0:
            self.pump()
            return
        if offset - window.floor > COMFORTABLE_SPAN:
            self._thin_out(window.floor + window.crowd())
        consumer = line[0]
        if len(line) > 1:
            line.rotate(-1)
        window.grant_one(consumer.number)
        if not self.dirty:
            self._changed()
        self._lend(consumer, offset, 1)
        consumer.client.send_messages((frame,))

    def _grant(self, consumer: ChannelConsumer, max_count: int, limit: int) -> bool:
        """Deliver fresh messages. False where a filter has let none of very many through."""
        cursor = self.cursor
        window = cursor.window
        if consumer.sample_rate and self._sampled_out(consumer):
            if cursor.take(0, 1, limit)[1]:
                window.advance()
                self._changed()
            return True
        if consumer.sample_rate:
            max_count = 1
        first = window.next
        told = consumer.with_properties
        if self.wanted is None:
            parts, taken = cursor.take(consumer.number, max_count, limit, with_properties=told)
        else:
            parts, taken = cursor.take_matching(
                consumer.number, max_count, limit, self.wanted, with_properties=told
            )
        if not self.dirty:
            self._changed()
        if not taken:
            return self.wanted is None or window.next >= limit
        self._lend(consumer, first, taken)
        consumer.client.send_messages(parts)
        if window.next - window.floor > COMFORTABLE_SPAN:
            self._thin_out(window.floor + window.crowd())
        return True

    def _lend(self, consumer: ChannelConsumer, first: int, count: int) -> None:
        """Note that a consumer has what the window says since offset `first`."""
        window = self.cursor.window
        leases = consumer.leases
        now_ns = self._context.clock()
        deadline_ns = now_ns + consumer.timeout_ns
        if self.trail is not None:
            self._trace_delivery(self.trail, consumer, first, count, now_ns)
        if leases and leases[0].end <= window.floor:
            consumer.trim_leases(window.floor)
        leases.append(_lease((first, window.next, deadline_ns, next_rank())))
        consumer.in_flight_count += count
        consumer.message_count += count
        alarm = self._alarm
        if alarm.set_for_ns is None or deadline_ns < alarm.set_for_ns:
            alarm.at(deadline_ns)

    def _trace_delivery(
        self, trail: TraceRecorder, consumer: ChannelConsumer, first: int, count: int, now_ns: int
    ) -> None:
        window = self.cursor.window
        end = window.next
        if end - first == count:
            trail.note(TraceStep.DELIVERED, first, end, now_ns, consumer, 1)
            return
        held = window.held_offsets(first, end)
        for begin, stop in merged(held, held + 1):
            trail.note(TraceStep.DELIVERED, begin, stop, now_ns, consumer, 1)

    def _sampled_out(self, consumer: ChannelConsumer) -> bool:
        return self._context.random.randrange(100) >= consumer.sample_rate

    def _grant_straggler(self, consumer: ChannelConsumer) -> None:
        stragglers = self.cursor.stragglers
        offset = stragglers.next_ready()
        assert offset is not None
        self.deliver_straggler(consumer, offset)

    def deliver_straggler(self, consumer: ChannelConsumer, offset: int) -> None:
        """Deliver one that is ready; one that has gone, or is not wanted, is let go of."""
        cursor = self.cursor
        attempts = cursor.stragglers.by_offset[offset].attempts + 1
        frame = cursor.frame(offset, attempts)
        told = b""
        if consumer.with_properties or self.wanted is not None:
            told = cursor.properties(offset)
        self._changed()
        if frame is None or not self.wants(told) or self.samples_out(consumer):
            cursor.stragglers.remove(offset)
        else:
            self.hand_out(consumer, offset, attempts, frame, told)

    def hand_out(
        self,
        consumer: ChannelConsumer,
        offset: int,
        attempts: int,
        frame: memoryview | bytearray,
        properties: bytes,
    ) -> None:
        """Deliver a message that stands, or from now on stands, among the stragglers."""
        now_ns = self._context.clock()
        deadline_ns = now_ns + consumer.timeout_ns
        stragglers = self.cursor.stragglers
        known = stragglers.by_offset.get(offset)
        failures, asked_rank, is_suspect = 0, 0, False
        if known is not None:
            failures, is_suspect = known.failures, known.is_suspect
            asked_rank = known.asked_rank if known.last_progress is consumer.progress else 0
            if failures and self.counts_failures and consumer.progress.says_started:
                properties += notes_of(failures, is_suspect=is_suspect)
        stragglers.hold(
            offset, attempts, consumer, now_ns, deadline_ns, failures, next_rank(), asked_rank
        ).is_suspect = is_suspect
        if attempts > 1:
            self.retry_count += 1
        if self.trail is not None:
            self.trail.note(TraceStep.DELIVERED, offset, offset + 1, now_ns, consumer, attempts)
        self._alarm.at(deadline_ns)
        consumer.in_flight_count += 1
        consumer.message_count += 1
        if len(self._line) > 1:
            self._line.rotate(-1)
        if properties and consumer.with_properties:
            consumer.client.send_messages((lone_frame(properties), frame))
        else:
            consumer.client.send_messages((frame,))

    def wants(self, properties: bytes) -> bool:
        """Whether its filter lets a message with such properties through."""
        return self.wanted is None or self.wanted.lets(properties)

    def samples_out(self, consumer: ChannelConsumer) -> bool:
        """Whether a message is not for a consumer that wants only some of all."""
        return bool(consumer.sample_rate) and self._sampled_out(consumer)

    # what its order asks

    @property
    def numbers(self) -> Mapping[int, ChannelConsumer]:
        """Its consumers by their numbers."""
        return self._by_number

    def now_ns(self) -> int:
        """The time."""
        return self._context.clock()

    def limit(self) -> int:
        """The offset up to which the cursor may go."""
        return self._limit(self.cursor)

    def moved(self) -> None:
        """The cursor has moved."""
        if not self.dirty:
            self._changed()

    def first_in_line(self) -> ChannelConsumer | None:
        """The consumer whose turn it is; who has no room leaves the line."""
        while self._line:
            consumer = self._line[0]
            if consumer.room > 0:
                return consumer
            self._leave_line(consumer)
        return None

    def spread(self) -> None:
        """Give each message in flight its own place."""
        window = self.cursor.window
        if window.floor < window.next:
            self._thin_out(window.next)

    def has_room(self, consumer: ChannelConsumer) -> bool:
        """Whether a consumer would take a message; who has no room leaves the line, and what makes
        room, at whichever queue, lines it up again.
        """
        if consumer.is_ready and consumer.room <= 0:
            self._leave_line(consumer)
        return consumer.is_ready

    def look_again_at(self, time_ns: int) -> None:
        """Pump then."""
        self._alarm.at(time_ns)

    def look_again_soon(self) -> None:
        """Pump when others have had their turn."""
        self._alarm.at(self._context.clock() + _LOOK_ON_NS)

    def _thin_out(self, end: int) -> None:
        """Few of very many messages are unfinished: give each of the old ones its own place."""
        cursor = self.cursor
        for offset, number in cursor.window.held(cursor.window.floor, end):
            consumer = self._by_number[number]
            lease = consumer.lease_of(offset)
            delivered_at_ns = lease.deadline_ns - consumer.timeout_ns
            cursor.window.release(offset)
            cursor.stragglers.hold(
                offset, 1, consumer, delivered_at_ns, lease.deadline_ns, rank=lease.rank
            )
        cursor.window.advance()
