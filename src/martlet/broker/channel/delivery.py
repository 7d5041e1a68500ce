"""Delivery: how a channel's messages go out to the consumers that have room.

The consumers that would take a message stand in a line.  Delivery goes in grants: the consumer at
the head of the line gets its share of what there is, and stands in line again while it has room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from martlet.broker.offset_ranges import merged
from martlet.broker.queue.consumer import ChannelConsumer, Lease
from martlet.broker.queue.in_flight import COMFORTABLE_SPAN
from martlet.broker.queue.started import next_rank, notes_of
from martlet.broker.queue.topology import NearestFirst
from martlet.broker.tracing.recorder import TraceStep
from martlet.properties.block import lone_frame

if TYPE_CHECKING:
    from martlet.broker.queue.channel_state import ChannelState, Waiting
    from martlet.broker.tracing.recorder import TraceRecorder

_PUT_OFF_NS = 1_000_000_000
_LOOK_ON_NS = 100_000
"""So much later a filter looks at the next batches."""
_lease = partial(tuple.__new__, Lease)
"""Makes one of a tuple, without a call in Python."""


class Order(Protocol):
    """Hands a channel's messages out in another order than NSQ's, or to members that fetch."""

    def pump(self) -> None:
        """Deliver what may be delivered. Raises OSError where the index can not be read."""


class Delivery:
    """Hands the messages of a channel out.

    Args:
        state: the channel.
        waiting: where it enters itself while a consumer would take a message.
    """

    __slots__ = ("_fresh_turn", "_limit", "_line", "_waiting", "cursor", "order", "state")

    def __init__(self, state: ChannelState, waiting: dict[Waiting, None]) -> None:
        self.state = state
        self.cursor = state.cursor
        self._limit = state.source.limit_of
        self._waiting = waiting
        self._line: deque[ChannelConsumer] | NearestFirst = (
            NearestFirst() if state.context.settings.prefers_near else deque()
        )
        self._fresh_turn = False
        self.order: Order | None = None
        """In which order messages go out; None for NSQ's."""

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

    def leave_line(self, consumer: ChannelConsumer) -> None:
        """Let a consumer stand in line no more."""
        if consumer.is_ready:
            consumer.is_ready = False
            self._line.remove(consumer)
            if not self._line:
                del self._waiting[self]

    def take_place(self, consumer: ChannelConsumer, successor: ChannelConsumer) -> None:
        """Let another consumer stand in line for one that stood there."""
        line = list(self._line)
        line[line.index(consumer)] = successor
        self._line.clear()
        self._line.extend(line)

    def line_up(self, consumers: Iterable[ChannelConsumer]) -> None:
        """Let those consumers stand in line that have room."""
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
        line, state = self._line, self.state
        try:
            if self.order is not None:
                if not state.paused:
                    self.order.pump()
                return
            while line and not state.paused:
                consumer = line[0]
                room = consumer.room
                if room <= 0:
                    self.leave_line(consumer)
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
            state.context.put_off(state, error)
            state.alarm.at(state.context.clock() + _PUT_OFF_NS)

    def pump_lone(self, offset: int, frame: memoryview) -> None:
        """Deliver the message that was just stored, which is what `pump` would do with it.

        Where it waits for nothing, it is handed over without a look at the index.
        """
        state = self.state
        cursor = state.cursor
        window = cursor.window
        line = self._line
        plain = state.wanted is None and self.order is None
        free = window.next == offset and line and not state.paused and plain
        if not free or cursor.stragglers.by_offset or line[0].sample_rate or line[0].room <= 0:
            self.pump()
            return
        if offset - window.floor > COMFORTABLE_SPAN:
            self._thin_out(window.floor + window.crowd())
        consumer = line[0]
        if len(line) > 1:
            line.rotate(-1)
        window.grant_one(consumer.number)
        if not state.dirty:
            state.moved()
        self._lend(consumer, offset, 1)
        consumer.client.send_messages((frame,))

    def _grant(self, consumer: ChannelConsumer, max_count: int, limit: int) -> bool:
        """Deliver fresh messages. False where a filter has let none of very many through."""
        state = self.state
        cursor = state.cursor
        window = cursor.window
        if consumer.sample_rate and self.samples_out(consumer):
            if cursor.take(0, 1, limit)[1]:
                window.advance()
                state.moved()
            return True
        if consumer.sample_rate:
            max_count = 1
        first = window.next
        number, wanted, with_properties = consumer.number, state.wanted, consumer.with_properties
        if wanted is None:
            parts, taken = cursor.take(number, max_count, limit, with_properties=with_properties)
        else:
            parts, taken = cursor.take_matching(
                number, max_count, limit, wanted, with_properties=with_properties
            )
        if not state.dirty:
            state.moved()
        if not taken:
            return wanted is None or window.next >= limit
        self._lend(consumer, first, taken)
        consumer.client.send_messages(parts)
        if window.next - window.floor > COMFORTABLE_SPAN:
            self._thin_out(window.floor + window.crowd())
        return True

    def _lend(self, consumer: ChannelConsumer, first: int, count: int) -> None:
        """Note that a consumer has what the window says since offset `first`."""
        state = self.state
        window = state.cursor.window
        leases = consumer.leases
        now_ns = state.context.clock()
        deadline_ns = now_ns + consumer.timeout_ns
        if state.trail is not None:
            self._trace_delivery(state.trail, consumer, first, count, now_ns)
        if leases and leases[0].end <= window.floor:
            consumer.trim_leases(window.floor)
        leases.append(_lease((first, window.next, deadline_ns, next_rank())))
        consumer.in_flight_count += count
        consumer.message_count += count
        alarm = state.alarm
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

    def _grant_straggler(self, consumer: ChannelConsumer) -> None:
        stragglers = self.cursor.stragglers
        offset = stragglers.next_ready()
        assert offset is not None
        self.deliver_straggler(consumer, offset)

    def deliver_straggler(self, consumer: ChannelConsumer, offset: int) -> None:
        """Deliver one that is ready; drop one that has gone, or is not wanted."""
        cursor = self.cursor
        attempts = cursor.stragglers.by_offset[offset].attempts + 1
        frame = cursor.frame(offset, attempts)
        properties = b""
        if consumer.with_properties or self.state.wanted is not None:
            properties = cursor.properties(offset)
        self.state.moved()
        if frame is None or not self.wants(properties) or self.samples_out(consumer):
            cursor.stragglers.remove(offset)
        else:
            self.hand_out(consumer, offset, attempts, frame, properties)

    def hand_out(
        self,
        consumer: ChannelConsumer,
        offset: int,
        attempts: int,
        frame: memoryview | bytearray,
        properties: bytes,
    ) -> None:
        """Deliver a message that stands, or from now on stands, among the stragglers."""
        state = self.state
        now_ns = state.context.clock()
        deadline_ns = now_ns + consumer.timeout_ns
        stragglers = state.cursor.stragglers
        known = stragglers.by_offset.get(offset)
        failures, asked_rank, is_suspect = 0, 0, False
        if known is not None:
            failures, is_suspect = known.failures, known.is_suspect
            asked_rank = known.asked_rank if known.last_progress is consumer.progress else 0
            if failures and state.retry is not None and consumer.progress.says_started:
                properties += notes_of(failures, is_suspect=is_suspect)
        stragglers.hold(
            offset, attempts, consumer, now_ns, deadline_ns, failures, next_rank(), asked_rank
        ).is_suspect = is_suspect
        if attempts > 1:
            state.retry_count += 1
        if state.trail is not None:
            state.trail.note(TraceStep.DELIVERED, offset, offset + 1, now_ns, consumer, attempts)
        state.alarm.at(deadline_ns)
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
        wanted = self.state.wanted
        return wanted is None or wanted.lets(properties)

    def samples_out(self, consumer: ChannelConsumer) -> bool:
        """Whether a message is not for a consumer that wants only some of all."""
        rate = consumer.sample_rate
        return bool(rate) and self.state.context.random.randrange(100) >= rate

    # what its order asks

    def limit(self) -> int:
        """The offset up to which the cursor may go."""
        return self._limit(self.cursor)

    def first_in_line(self) -> ChannelConsumer | None:
        """The consumer whose turn it is; who has no room leaves the line."""
        while self._line:
            consumer = self._line[0]
            if consumer.room > 0:
                return consumer
            self.leave_line(consumer)
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
            self.leave_line(consumer)
        return consumer.is_ready

    def look_again_soon(self) -> None:
        """Pump when others have had their turn."""
        self.state.alarm.at(self.state.context.clock() + _LOOK_ON_NS)

    def _thin_out(self, end: int) -> None:
        """Few of very many messages are unfinished: give each of the old ones its own place."""
        cursor = self.cursor
        for offset, number in cursor.window.held(cursor.window.floor, end):
            consumer = self.state.numbers[number]
            lease = consumer.lease_of(offset)
            delivered_at_ns = lease.deadline_ns - consumer.timeout_ns
            cursor.window.release(offset)
            cursor.stragglers.hold(
                offset, 1, consumer, delivered_at_ns, lease.deadline_ns, rank=lease.rank
            )
        cursor.window.advance()
