"""The channel: who consumes a topic together.

A channel copies nothing.  It is a cursor over the topic's log, a line of the consumers that have
room, and NSQ's rules of what may be done with a message in flight.  Delivery goes in grants: the
consumer at the head of the line gets its share of what there is, and stands in line again while it
has room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol

from martlet.broker.consumer import Client, Consumer, Lease
from martlet.broker.cursor import Cursor
from martlet.broker.errors import NotInFlight, TooMany
from martlet.broker.name import is_ephemeral
from martlet.broker.schedule import Alarm, Schedule
from martlet.broker.window import COMFORTABLE_SPAN

if TYPE_CHECKING:
    from martlet.broker.window import Offsets


class Surroundings(Protocol):
    """What a channel needs of the house around it."""

    clock: Callable[[], int]
    schedule: Schedule
    random: Random

    def changed(self, channel: Channel) -> None:
        """The channel's cursor moved: journal it before long."""


class Source(Protocol):
    """What a channel reads: its topic, as far as it is to be seen."""

    @property
    def limit(self) -> int:
        """The offset up to which the channel sees it."""

    def limit_of(self, cursor: Cursor) -> int:
        """The offset up to which a cursor may go from where it is."""

    def count_from(self, offset: int) -> int:
        """How many messages there are to be seen from an offset on."""

    def deferred_from(self, offset: int) -> int:
        """How many of them are deferred ones."""


_lease = partial(tuple.__new__, Lease)
"""Makes one of a tuple, without a call in Python."""


class Channel:
    """A channel of a topic.

    Args:
        around: the broker's clock, schedule and journal.
        id: its number in the log.
        topic: the topic's name.
        name: its own.
        cursor: where it stands.
        source: what it reads.
        waiting: where the channel enters itself while a consumer would take a message.
    """

    def __init__(
        self,
        around: Surroundings,
        id: int,
        topic: str,
        name: str,
        cursor: Cursor,
        source: Source,
        waiting: dict[Channel, None],
        *,
        most_consumers: int = 0,
        max_timeout_ns: int,
    ) -> None:
        self.id = id
        self.topic = topic
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.paused = False
        self.cursor = cursor
        self.consumers: list[Consumer] = []
        self.requeue_count = 0
        self.timeout_count = 0
        self.dirty = False
        self._around = around
        self._source = source
        self._limit = source.limit_of
        self._waiting = waiting
        self.counted_from = cursor.next
        """Messages below this offset came before the broker was started."""
        self._most_consumers = most_consumers
        self._max_timeout_ns = max_timeout_ns
        self._line: deque[Consumer] = deque()
        self._fresh_turn = False
        self._by_number: dict[int, Consumer] = {}
        self._last_number = 0
        self._alarm: Alarm = around.schedule.alarm(self._expire)

    # what it looks like

    @property
    def depth(self) -> int:
        """How many messages wait to be delivered, deferred ones aside."""
        cursor = self.cursor
        fresh = self._source.count_from(cursor.next) - cursor.deferred_ahead
        return fresh + cursor.stragglers.ready_count

    @property
    def message_count(self) -> int:
        """How many messages have come to it since the broker was started."""
        return self._source.limit - self.counted_from

    @property
    def in_flight_count(self) -> int:
        """How many messages are with consumers."""
        return sum(consumer.in_flight_count for consumer in self.consumers)

    @property
    def deferred_count(self) -> int:
        """How many messages wait for a time."""
        return self.cursor.stragglers.waiting_count

    # consumers

    def add_consumer(self, client: Client, timeout_ns: int, sample_rate: int = 0) -> Consumer:
        """Subscribe a client. Raises TooMany."""
        if self._most_consumers and len(self.consumers) >= self._most_consumers:
            raise TooMany(
                f"consumers for {self.topic}:{self.name} exceeds limit of {self._most_consumers}"
            )
        self._last_number += 1
        consumer = Consumer(client, self._last_number, timeout_ns, sample_rate)
        self.consumers.append(consumer)
        self._by_number[consumer.number] = consumer
        return consumer

    def remove_consumer(self, consumer: Consumer) -> None:
        """The client has gone: what it held is delivered to others at once."""
        self.consumers.remove(consumer)
        del self._by_number[consumer.number]
        self._leave_line(consumer)
        now_ns = self._around.clock()
        stragglers = self.cursor.stragglers
        for lease in consumer.leases:
            for offset in self._release(consumer, lease):
                stragglers.wait(offset, 1, now_ns, now_ns)
        for offset, straggler in stragglers.owned_by(consumer):
            stragglers.wait(offset, straggler.attempts, now_ns, now_ns)
        if consumer.in_flight_count:
            consumer.in_flight_count = 0
            self._changed()
            self.pump()

    def set_ready(self, consumer: Consumer, count: int) -> None:
        """RDY: the consumer takes up to so many messages at a time."""
        consumer.ready_count = count
        self.resume(consumer)

    def set_blocked(self, consumer: Consumer, blocked: bool) -> None:
        """The client has stopped, or begun again, to read what it is sent."""
        consumer.blocked = blocked
        if not blocked:
            self.resume(consumer)

    def resume(self, consumer: Consumer) -> None:
        """Deliver to a consumer that may have room."""
        if not consumer.is_ready and consumer.room > 0:
            self._enter_line(consumer)
        if consumer.is_ready:
            self.pump()

    def _enter_line(self, consumer: Consumer) -> None:
        consumer.is_ready = True
        self._line.append(consumer)
        self._waiting[self] = None

    def _leave_line(self, consumer: Consumer) -> None:
        if consumer.is_ready:
            consumer.is_ready = False
            self._line.remove(consumer)
            if not self._line:
                del self._waiting[self]

    # delivery

    def pump(self) -> None:
        """Deliver what can be delivered.

        While there are messages to be delivered again they take turns with the fresh ones, so that
        one that fails again and again keeps no other from its consumer.
        """
        line = self._line
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
                self._grant(consumer, room, limit)

    def pump_lone(self, offset: int, frame: memoryview) -> None:
        """Deliver the message that was just stored, which is what `pump` would do with it.

        Where it waits for nothing, it is handed over without a look at the index.
        """
        cursor = self.cursor
        window = cursor.window
        line = self._line
        free = window.next == offset and line and not self.paused
        if not free or cursor.stragglers.by_offset or line[0].sample_rate or line[0].room <= 0:
            self.pump()
            return
        consumer = line[0]
        if len(line) > 1:
            line.rotate(-1)
        window.grant_one(consumer.number)
        if not self.dirty:
            self._changed()
        self._lend(consumer, offset, 1)
        consumer.client.send_messages((frame,))

    def _grant(self, consumer: Consumer, most: int, limit: int) -> None:
        cursor = self.cursor
        window = cursor.window
        if consumer.sample_rate and self._sampled_out(consumer):
            if cursor.take(0, 1, limit)[1]:
                window.advance()
                self._changed()
            return
        if consumer.sample_rate:
            most = 1
        first = window.next
        parts, taken = cursor.take(consumer.number, most, limit)
        if not self.dirty:
            self._changed()
        if not taken:
            return
        self._lend(consumer, first, taken)
        consumer.client.send_messages(parts)
        if window.next - window.floor > COMFORTABLE_SPAN:
            self._thin_out(window.floor + window.crowd())

    def _lend(self, consumer: Consumer, first: int, count: int) -> None:
        """Note that a consumer has what the window says since offset `first`."""
        window = self.cursor.window
        leases = consumer.leases
        deadline_ns = self._around.clock() + consumer.timeout_ns
        if leases and leases[0].end <= window.floor:
            consumer.trim_leases(window.floor)
        leases.append(_lease((first, window.next, deadline_ns)))
        consumer.in_flight_count += count
        consumer.message_count += count
        alarm = self._alarm
        if alarm.set_for_ns is None or deadline_ns < alarm.set_for_ns:
            alarm.at(deadline_ns)

    def _sampled_out(self, consumer: Consumer) -> bool:
        return self._around.random.randrange(100) >= consumer.sample_rate

    def _grant_straggler(self, consumer: Consumer) -> None:
        stragglers = self.cursor.stragglers
        offset = stragglers.next_ready()
        assert offset is not None
        attempts = stragglers.by_offset[offset].attempts + 1
        frame = self.cursor.frame(offset, attempts)
        self._changed()
        if frame is None or (consumer.sample_rate and self._sampled_out(consumer)):
            stragglers.remove(offset)
            return
        now_ns = self._around.clock()
        deadline_ns = now_ns + consumer.timeout_ns
        stragglers.hold(offset, attempts, consumer, now_ns, deadline_ns)
        self._alarm.at(deadline_ns)
        consumer.in_flight_count += 1
        consumer.message_count += 1
        if len(self._line) > 1:
            self._line.rotate(-1)
        consumer.client.send_messages((frame,))

    def _thin_out(self, end: int) -> None:
        """Few of very many messages are unfinished: give each of the old ones its own place."""
        cursor = self.cursor
        for offset, number in cursor.window.held(cursor.window.floor, end):
            consumer = self._by_number[number]
            deadline_ns = consumer.lease_of(offset).deadline_ns
            delivered_at_ns = deadline_ns - consumer.timeout_ns
            cursor.window.release(offset)
            cursor.stragglers.hold(offset, 1, consumer, delivered_at_ns, deadline_ns)
        cursor.window.advance()

    # what consumers answer

    def finish(self, consumer: Consumer, offset: int) -> None:
        """FIN. Raises NotInFlight."""
        cursor = self.cursor
        if not cursor.window.release_one(consumer.number, offset):
            if cursor.stragglers.get(offset, consumer) is None:
                raise self._not_in_flight(offset)
            cursor.stragglers.remove(offset)
        self._finished(consumer, 1)

    def finish_run(self, consumer: Consumer, offsets: Offsets) -> bool:
        """FIN for strictly rising offsets; False, and nothing done, where one is not in the
        window: then each must be finished by itself.
        """
        if not self.cursor.window.release_run(consumer.number, offsets):
            return False
        self._finished(consumer, len(offsets))
        return True

    def _finished(self, consumer: Consumer, count: int) -> None:
        consumer.in_flight_count -= count
        consumer.finish_count += count
        if not self.dirty:
            self._changed()
        self.resume(consumer)

    def requeue(self, consumer: Consumer, offset: int, delay_ns: int) -> None:
        """REQ: the message is delivered again, after a delay. Raises NotInFlight."""
        attempts, _ = self._let_go(consumer, offset)
        now_ns = self._around.clock()
        self.cursor.stragglers.wait(offset, attempts, now_ns + delay_ns, now_ns)
        if delay_ns:
            self._alarm.at(now_ns + delay_ns)
        consumer.in_flight_count -= 1
        consumer.requeue_count += 1
        self.requeue_count += 1
        self._changed()
        self.resume(consumer)
        self.pump()

    def touch(self, consumer: Consumer, offset: int) -> None:
        """TOUCH: the message's timeout begins anew, up to the maximum since it was delivered.

        Raises NotInFlight.
        """
        attempts, delivered_at_ns = self._let_go(consumer, offset)
        deadline_ns = min(
            self._around.clock() + consumer.timeout_ns, delivered_at_ns + self._max_timeout_ns
        )
        self.cursor.stragglers.hold(offset, attempts, consumer, delivered_at_ns, deadline_ns)
        self._alarm.at(deadline_ns)
        self._changed()

    def _let_go(self, consumer: Consumer, offset: int) -> tuple[int, int]:
        """Take a message in flight out of the window. Returns its attempts and when it was
        delivered; a straggler is left for the caller to put elsewhere.
        """
        cursor = self.cursor
        if cursor.window.holds(consumer.number, offset):
            lease = consumer.lease_of(offset)
            cursor.window.release(offset)
            return 1, lease.deadline_ns - consumer.timeout_ns
        straggler = cursor.stragglers.get(offset, consumer)
        if straggler is None:
            raise self._not_in_flight(offset)
        return straggler.attempts, straggler.delivered_at_ns

    def _not_in_flight(self, offset: int) -> NotInFlight:
        straggler = self.cursor.stragglers.by_offset.get(offset)
        if self.cursor.window.is_held(offset) or (straggler and straggler.owner):
            return NotInFlight("client does not own message")
        return NotInFlight("ID not in flight")

    # time

    def _expire(self, now_ns: int) -> int | None:
        """Requeue what has timed out and deliver what is due. Returns when to look again."""
        stragglers = self.cursor.stragglers
        timed_out = 0
        for consumer in self.consumers:
            leases = consumer.leases
            while leases and leases[0].deadline_ns <= now_ns:
                for offset in self._release(consumer, leases.popleft()):
                    stragglers.wait(offset, 1, now_ns, now_ns)
                    consumer.in_flight_count -= 1
                    timed_out += 1
        for offset, straggler in stragglers.expire(now_ns):
            owner = straggler.owner
            assert owner is not None
            owner.in_flight_count -= 1
            stragglers.wait(offset, straggler.attempts, now_ns, now_ns)
            timed_out += 1
        if timed_out:
            self.timeout_count += timed_out
            self._changed()
            self._line_up(self.consumers)
        self.pump()
        times = [c.leases[0].deadline_ns for c in self.consumers if c.leases]
        earliest_ns = stragglers.earliest_ns()
        if earliest_ns is not None:
            times.append(earliest_ns)
        return min(times, default=None)

    def _release(self, consumer: Consumer, lease: Lease) -> Iterable[int]:
        held = self.cursor.window.release_range(consumer.number, lease.first, lease.end)
        offsets: list[int] = held.tolist()
        return offsets

    def _line_up(self, consumers: Iterable[Consumer]) -> None:
        for consumer in consumers:
            if not consumer.is_ready and consumer.room > 0:
                self._enter_line(consumer)

    # what the operator does

    def schedule(self, first: int, end: int) -> None:
        """See that deferred messages from an offset up to another come at their time."""
        due_ns = self.cursor.schedule(first, end, self._around.clock())
        if due_ns is not None:
            self._alarm.at(due_ns)
            self._changed()

    def arm(self) -> None:
        """Look at all times, after a restart."""
        earliest_ns = self.cursor.stragglers.earliest_ns()
        if earliest_ns is not None:
            self._alarm.at(earliest_ns)

    def set_paused(self, paused: bool) -> None:
        """Stop delivering, or go on."""
        self.paused = paused
        self.pump()

    def empty(self) -> None:
        """Finish everything that is stored for the channel."""
        self.advance(self._source.limit)

    def advance(self, offset: int) -> None:
        """Finish everything below an offset, in flight or not; what is above stays as it is."""
        cursor = self.cursor
        for consumer in self.consumers:
            for lease in consumer.leases:
                end = min(lease.end, offset)
                held = cursor.window.release_range(consumer.number, lease.first, end)
                consumer.in_flight_count -= len(held)
        for known, straggler in list(cursor.stragglers.by_offset.items()):
            if known < offset:
                if straggler.owner is not None:
                    straggler.owner.in_flight_count -= 1
                cursor.stragglers.remove(known)
        if offset > cursor.next:
            cursor.skip_to(offset, self._source.deferred_from(offset))
        self._changed()
        self._line_up(self.consumers)
        self.pump()

    def close(self) -> None:
        """The channel is deleted: its clients are told, and get no more messages."""
        self._alarm.cancel()
        self.paused = True
        for consumer in list(self.consumers):
            consumer.client.channel_closed()

    def _changed(self) -> None:
        if not self.dirty:
            self.dirty = True
            self._around.changed(self)
