"""Delivery: sends a channel's messages to the consumers that have capacity.

The consumers that would take a message form a queue, the ready line. Delivery works in grants: the
consumer at the head of the line gets its share of the available messages, and joins the end of the
line again while it has capacity.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

from martlet.broker.offset_ranges import merged
from martlet.broker.queue.channel_state import ChannelState, Waiting
from martlet.broker.queue.consumer import ChannelConsumer, Lease, NearestFirst, next_rank, notes_of
from martlet.broker.queue.cursor import with_attempts
from martlet.broker.queue.in_flight import COMFORTABLE_SPAN
from martlet.broker.tracing.recorder import TraceRecorder, TraceStep
from martlet.properties.block import frame as property_frame
from martlet.properties.block import pack_block
from martlet.rate_limit import RateLimit

_PUT_OFF_NS = 1_000_000_000
_PUMP_AGAIN_NS = 100_000
"""The delay before a filter searches the next batches."""
_lease = partial(tuple.__new__, Lease)
"""Makes a `Lease` of a tuple, without a call in Python."""


class Order(Protocol):
    """Delivers a channel's messages in another order than NSQ's, or to members that fetch."""

    def pump(self) -> None:
        """Deliver what may be delivered. Raises OSError where the index cannot be read."""


class Delivery:
    """Delivers the messages of a channel."""

    __slots__ = (
        "_fresh_turn",
        "_limit",
        "_line",
        "_waiting",
        "_watch",
        "cursor",
        "order",
        "rate_limit",
        "state",
    )

    def __init__(self, state: ChannelState, waiting: dict[Waiting, None]) -> None:
        self.state = state
        self.cursor = state.cursor
        self._limit = state.source.limit_of
        self._waiting = waiting
        self._line: deque[ChannelConsumer] | NearestFirst = (
            NearestFirst() if state.context.settings.prefers_near else deque()
        )
        self._fresh_turn = False
        self._watch: Waiting | None = None
        self.order: Order | None = None
        """The order of delivery; None for NSQ's."""
        self.rate_limit: RateLimit | None = None
        """The limit of the channel's rate, at all queues; None for none."""

    # the ready line

    def set_ready(self, consumer: ChannelConsumer, count: int) -> None:
        """Handle RDY: the consumer takes up to `count` messages at a time."""
        consumer.ready_count = count
        self.resume(consumer)

    def set_blocked(self, consumer: ChannelConsumer, blocked: bool) -> None:
        """Note whether the client has stopped reading from its socket."""
        consumer.blocked = blocked
        if not blocked:
            self.resume(consumer)

    def resume(self, consumer: ChannelConsumer) -> None:
        """Deliver to a consumer that may have capacity.

        In an order, its answer may also have freed a message for another consumer.
        """
        if not consumer.is_ready and consumer.room > 0:
            self._enter_line(consumer)
        if self.order is not None and consumer.is_held and len(self.state.consumers) == 1:
            self.leave_line(consumer)  # It is resumed behind its other queues.
        elif consumer.is_ready or self.order is not None:
            self.pump()

    def _enter_line(self, consumer: ChannelConsumer) -> None:
        consumer.is_ready = True
        self._line.append(consumer)
        self._waiting[self] = None

    def leave_line(self, consumer: ChannelConsumer) -> None:
        """Remove a consumer from the ready line."""
        if consumer.is_ready:
            consumer.is_ready = False
            self._line.remove(consumer)
            if not self._line:
                del self._waiting[self]

    def replace_in_line(self, consumer: ChannelConsumer, successor: ChannelConsumer) -> None:
        """Replace a consumer in the ready line by its successor."""
        line = list(self._line)
        line[line.index(consumer)] = successor
        self._line.clear()
        self._line.extend(line)

    def line_up(self, consumers: Iterable[ChannelConsumer]) -> None:
        """Put those of the consumers that have capacity into the ready line."""
        for consumer in consumers:
            if not consumer.is_ready and consumer.room > 0:
                self._enter_line(consumer)
            self.changed()
            consumer.offer_room()

    # for priorities

    @property
    def has_messages(self) -> bool:
        """Whether messages wait that could be delivered, were the channel not paused."""
        cursor = self.cursor
        return cursor.pending.ready_count > 0 or self._limit(cursor) > cursor.next

    def watch(self, watch: Waiting | None) -> None:
        """Set the object to call when messages may wait; None for none."""
        self.ignore_arrivals()
        self._watch = watch
        self.cursor.pending.on_ready = None if watch is None else watch.pump

    def watch_arrivals(self) -> None:
        """Call the watch when new messages arrive, too: there are none now."""
        assert self._watch is not None
        self._waiting[self._watch] = None

    def ignore_arrivals(self) -> None:
        """Call the watch no more when new messages arrive."""
        if self._watch is not None:
            self._waiting.pop(self._watch, None)

    def changed(self) -> None:
        """Note that messages may be delivered that could not be before."""
        if self._watch is not None:
            self._watch.pump()

    # delivery

    def pump(self) -> None:
        """Deliver what can be delivered.

        Redeliveries take turns with new messages, so that a message that fails again and again
        keeps no other from its consumer. Where the index cannot be read, as when there are too many
        open files, the read is retried a second later.
        """
        line, state, rate_limit = self._line, self.state, self.rate_limit
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
                some_again = self.cursor.pending.ready_count
                if rate_limit is not None and (available > 0 or some_again):
                    allowed = rate_limit.room(self)
                    if not allowed:
                        return
                    available, room = min(available, allowed), min(room, allowed)
                if some_again and (available <= 0 or not self._fresh_turn):
                    self._fresh_turn = True
                    offset = self.cursor.pending.next_ready()
                    assert offset is not None
                    self.deliver_pending(consumer, (offset,))
                elif available <= 0:
                    return
                else:
                    self._fresh_turn = False
                    if some_again:
                        room = 1
                    elif len(line) > 1:
                        room = min(room, -(-available // len(line)))
                        line.rotate(-1)
                    if not self.grant(consumer, room, limit):
                        self.pump_again_soon()
                        return
        except OSError as error:
            state.context.put_off(state, error)
            state.alarm.at(state.context.clock() + _PUT_OFF_NS)

    def pump_lone(self, offset: int, frame: memoryview) -> None:
        """Deliver the message that was just stored, as `pump` would.

        If no message waits before it, this does not read the index.
        """
        state = self.state
        cursor = state.cursor
        window = cursor.window
        line = self._line
        plain = state.channel_filter is None and self.order is None and self.rate_limit is None
        free = window.next == offset and line and not state.paused and plain
        if not free or cursor.pending.by_offset or line[0].sample_rate or line[0].room <= 0:
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

    def grant(self, consumer: ChannelConsumer, max_count: int, limit: int) -> bool:
        """Deliver new messages. Returns False where a filter has tested very many."""
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
        number, with_properties = consumer.number, consumer.with_properties
        channel_filter = state.channel_filter
        if channel_filter is None:
            frames, taken = cursor.take(number, max_count, limit, with_properties=with_properties)
        else:
            frames, taken = cursor.take_matching(
                number, max_count, limit, channel_filter, with_properties=with_properties
            )
        if not state.dirty:
            state.moved()
        if not taken:
            return channel_filter is None or window.next >= limit
        self._lend(consumer, first, taken)
        consumer.client.send_messages(frames)
        if window.next - window.floor > COMFORTABLE_SPAN:
            self._thin_out(window.floor + window.crowd())
        return channel_filter is None or cursor.may_test_more

    def _lend(self, consumer: ChannelConsumer, first: int, count: int) -> None:
        """Record that a consumer holds the window's offsets from `first` on."""
        state = self.state
        window = state.cursor.window
        leases = consumer.leases
        now_ns = state.context.clock()
        deadline_ns = now_ns + consumer.timeout_ns
        if state.recorder is not None:
            self._trace_delivery(state.recorder, consumer, first, count, state.context.wall())
        if leases and leases[0].end <= window.floor:
            consumer.trim_leases(window.floor)
        leases.append(_lease((first, window.next, deadline_ns, next_rank())))
        consumer.in_flight_count += count
        consumer.message_count += count
        if self.rate_limit is not None:
            self.rate_limit.take(count)
        alarm = state.alarm
        if alarm.set_for_ns is None or deadline_ns < alarm.set_for_ns:
            alarm.at(deadline_ns)

    def _trace_delivery(
        self,
        recorder: TraceRecorder,
        consumer: ChannelConsumer,
        first: int,
        count: int,
        now_ns: int,
    ) -> None:
        window = self.cursor.window
        end = window.next
        if end - first == count:
            recorder.note(TraceStep.DELIVERED, first, end, now_ns, consumer, 1)
            return
        held = window.held_offsets(first, end)
        for begin, stop in merged(held, held + 1):
            recorder.note(TraceStep.DELIVERED, begin, stop, now_ns, consumer, 1)

    def deliver_pending(self, consumer: ChannelConsumer, offsets: Sequence[int]) -> None:
        """Deliver ready pending messages, at rising offsets; drop deleted and filtered ones."""
        state, cursor = self.state, self.cursor
        pending, progress = cursor.pending, consumer.progress
        with_properties = consumer.with_properties
        notes_failures = state.retry is not None and progress.says_started
        is_plain = state.channel_filter is None and not consumer.sample_rate
        held: list[int] = []
        frames: list[memoryview | bytes | bytearray] = []
        entries: list[tuple[int, bytes]] = []
        for offset, frame, properties in cursor.messages(
            offsets, with_properties=with_properties or state.channel_filter is not None
        ):
            is_wanted = is_plain or (self.wants(properties) and not self.samples_out(consumer))
            if frame is None or not is_wanted:
                pending.remove(offset)
                continue
            message = pending.by_offset[offset]
            if message.last_progress is not progress:
                message.first_rank = 0
            if message.failures and notes_failures:
                properties += notes_of(message.failures, is_suspect=message.is_suspect)
            if properties and with_properties:
                entries.append((len(frames), properties))
            if message.attempts:
                state.retry_count += 1
                frames.append(with_attempts(frame, message.attempts + 1))
            else:
                frames.append(frame)
            held.append(offset)
        state.moved()
        if not held:
            return
        if entries:
            frames.insert(0, property_frame(pack_block(entries)))
        self._lend_pending(consumer, held)
        consumer.client.send_messages(frames)

    def _lend_pending(self, consumer: ChannelConsumer, offsets: Sequence[int]) -> None:
        """Record that a consumer holds pending messages."""
        state = self.state
        now_ns = state.context.clock()
        deadline_ns = now_ns + consumer.timeout_ns
        pending = self.cursor.pending
        pending.lend(offsets, consumer, now_ns, deadline_ns, next_rank())
        if state.recorder is not None:
            date_ns = state.context.wall()
            for offset in offsets:
                attempts = pending.by_offset[offset].attempts
                state.recorder.note(
                    TraceStep.DELIVERED, offset, offset + 1, date_ns, consumer, attempts
                )
        state.alarm.at(deadline_ns)
        if self.rate_limit is not None:
            self.rate_limit.take(len(offsets))
        consumer.in_flight_count += len(offsets)
        consumer.message_count += len(offsets)
        if len(self._line) > 1:
            self._line.rotate(-1)

    def wants(self, properties: bytes) -> bool:
        """Whether the channel's filter accepts such properties; counts messages that it rejects."""
        channel_filter = self.state.channel_filter
        if channel_filter is None or channel_filter.accepts(properties):
            return True
        self.cursor.filtered_count += 1
        return False

    def samples_out(self, consumer: ChannelConsumer) -> bool:
        """Whether sampling skips a message for this consumer."""
        rate = consumer.sample_rate
        return bool(rate) and self.state.context.random.randrange(100) >= rate

    # for `Order`

    def limit(self) -> int:
        """Return the offset up to which the cursor may move."""
        return self._limit(self.cursor)

    def first_in_line(self) -> ChannelConsumer | None:
        """Return the consumer whose turn it is; None where no consumer has capacity, or the
        channel's rate is used up. Those without capacity leave the line.
        """
        while self._line and self._is_within_rate:
            consumer = self._line[0]
            if consumer.room > 0:
                return consumer
            self.leave_line(consumer)
        return None

    def share(self, consumer: ChannelConsumer, available: int) -> int:
        """Return how many of the available messages the consumer whose turn it is gets."""
        available = self.within_rate(available)
        return min(consumer.room, -(-available // max(1, len(self._line))))

    def within_rate(self, count: int) -> int:
        """Return how many of a number of messages the channel's rate lets go now."""
        return count if self.rate_limit is None else min(count, self.rate_limit.room(self))

    def spread(self) -> None:
        """Make each message in flight a pending message of its own."""
        window = self.cursor.window
        if window.floor < window.next:
            self._thin_out(window.next)

    def has_room(self, consumer: ChannelConsumer) -> bool:
        """Whether a consumer would take a message, and the channel's rate lets one go.

        A consumer without capacity leaves the line; freed capacity, at any queue, puts it back.
        """
        if consumer.is_ready and consumer.room <= 0:
            self.leave_line(consumer)
        return consumer.is_ready and self._is_within_rate

    @property
    def _is_within_rate(self) -> bool:
        return self.rate_limit is None or self.rate_limit.room(self) > 0

    def pump_again_soon(self) -> None:
        """Pump again in a later turn of the loop."""
        self.state.alarm.at(self.state.context.clock() + _PUMP_AGAIN_NS)

    def _thin_out(self, end: int) -> None:
        """Make the few unfinished of very many old messages pending, so that the window shrinks."""
        cursor = self.cursor
        for offset, number in cursor.window.held(cursor.window.floor, end):
            consumer = self.state.numbers[number]
            lease = consumer.lease_of(offset)
            delivered_at_ns = lease.deadline_ns - consumer.timeout_ns
            cursor.window.release(offset)
            cursor.pending.hold(
                offset, 1, consumer, delivered_at_ns, lease.deadline_ns, rank=lease.rank
            )
        cursor.window.advance()
