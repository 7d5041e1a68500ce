"""Ordering: a channel whose messages are handled one after the other, by order key or by queue.

By key, one message of each key is in flight, and later ones wait until it is finished::

    offsets    4      5      6      7      8 ...
    key        a      b      a      -      c
               held   held   parked held   next               6 goes out when 4 is finished

A failed message is redelivered in its place, and all messages of its key wait for it, while other
keys continue. A message without a key waits for no other. A run of FINs is one change and one
delivery: the messages that it frees, and new ones, are given out in shares, each share with one
read of each batch and one write. New messages are parked first, and those that are the first of
their key go out with the freed ones.

Unfinished messages behind the cursor are pending messages, parked ones as such that were never
delivered. So the journal has no entry for the order: a restart rebuilds it from the pending
messages, by offset. The number of parked messages is limited; then the cursor waits.

By queue, the queue is locked for one consumer as long as that acknowledges: another one gets it
when the first leaves, or does nothing for longer than the lock lasts::

    offsets    4        5        6        7        8        9 ...
    held       window   window   window   window   -        -        to one consumer, in order
    handled    now      later    later    later

A client that handles messages in order (see `StartedMessages.in_order`) gets several at a time, as
slices of the log like those of a channel without an order. When one of them fails, the client
drops those behind it, and the broker takes them back (see `Redelivery.recall`): they are pending
messages then, and are delivered before any new one. Behind a message that has failed nothing is
sent until it is finished. Any other client gets one message at a time.

In both, deferred messages are delivered at their time, in no order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection
from heapq import heappop, heappush
from itertools import takewhile

from martlet.broker.channel.delivery import Delivery
from martlet.broker.queue.consumer import ChannelConsumer
from martlet.properties.model import order_key_of

MAX_PARKED = 1000
"""The maximum number of parked messages; then the cursor waits."""
_MAX_AT_ONCE = 1000
"""Messages examined, or deliveries, in one turn of the loop."""
_MAX_AHEAD = 256
"""The maximum number of messages that one client has of one queue: each failure returns them."""


class Ordering(ABC):
    """Delivers a channel's messages in order."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._state = delivery.state
        self._pending = delivery.cursor.pending
        self._has_begun = False
        self._pending.on_removed = self._removed

    def end(self) -> None:
        """Stop ordering: parked messages become ready like all others."""
        self._pending.on_removed = self._pending.on_entered = None
        self._pending.line_up_ready()

    def begin_again(self) -> None:
        """Take in messages that have become unfinished other than by being read."""
        self._has_begun = False

    def pump(self) -> None:
        """Deliver what may be delivered. Raises OSError where the index cannot be read."""
        if not self._has_begun:
            self._delivery.spread()
            self._begin()
            self._has_begun = True
        try:
            self._pump()
        except OSError:
            self._has_begun = False  # Some messages were taken to be delivered, and were not.
            raise

    def _unfinished(self) -> list[int]:
        """Return the pending messages that are not deferred, rising."""
        pending = self._pending
        return sorted(
            offset
            for offset, message in pending.by_offset.items()
            if message.attempts or message.owner is not None or pending.is_ready(offset)
        )

    @abstractmethod
    def _begin(self) -> None:
        """Take in the messages that are unfinished already, and pending."""

    @abstractmethod
    def _pump(self) -> None:
        """Deliver what may be delivered."""

    @abstractmethod
    def _removed(self, offsets: Collection[int]) -> None:
        """Handle that pending messages are finished or deleted."""


class KeyOrdering(Ordering):
    """Delivers the messages of each order key in order."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery)
        self._keys: dict[int, bytes] = {}
        """The key of each unfinished message that has one, by offset."""
        self._behind: dict[bytes, deque[int]] = {}
        """By key the unfinished messages; the first of each may be delivered."""
        self._free: list[int] = []
        """A heap of the messages that may be delivered now, or could before."""

    @property
    def parked_count(self) -> int:
        """The number of messages waiting for others of their key."""
        return len(self._keys) - len(self._behind)

    def _begin(self) -> None:
        # If the index cannot be read to the end, this runs again from the start.
        for collection in (self._keys, self._behind, self._free):
            collection.clear()
        for offset in self._unfinished():
            self._enter(offset, self._delivery.cursor.properties(offset))
        self._pending.line_up_ready()

    def _pump(self) -> None:
        delivery = self._delivery
        for offset in filter(self._is_first, self._pending.take_ready()):
            heappush(self._free, offset)
        left = _MAX_AT_ONCE
        while (consumer := delivery.first_in_line()) is not None:
            if left <= 0:
                delivery.pump_again_soon()
                return
            offsets = self._next_free(delivery.share(consumer, len(self._free)))
            if offsets:
                delivery.deliver_pending(consumer, offsets)
                left -= len(offsets)
            elif not (count := self._read(min(left, consumer.room))):
                return
            else:
                left -= count

    # the next message

    def _next_free(self, max_count: int) -> list[int]:
        """Take the lowest of the offsets that may be delivered now, rising."""
        is_ready, free = self._pending.is_ready, self._free
        offsets: list[int] = []
        while free and len(offsets) < max_count:
            offset = heappop(free)
            # An offset may be there twice, or have left.
            if is_ready(offset) and self._is_first(offset) and offset not in offsets[-1:]:
                offsets.append(offset)
        return offsets

    def _is_first(self, offset: int) -> bool:
        """Whether a message waits for no other."""
        key = self._keys.get(offset)
        return key is None or self._behind[key][0] == offset

    def _read(self, max_count: int) -> int:
        """Read some new messages; those that need not wait may be delivered. Returns how many were
        read, or 0 where there are none, or none may be read.
        """
        delivery = self._delivery
        max_count = min(max_count, MAX_PARKED - self.parked_count)
        cursor = delivery.cursor
        limit, channel_filter = delivery.limit(), self._state.channel_filter
        if max_count > 0 and cursor.next < limit and channel_filter is not None:
            cursor.pass_over(limit, channel_filter)
            self._state.moved()
            if cursor.next < limit and not cursor.may_test_more:
                delivery.pump_again_soon()
                return 0
        if max_count <= 0 or cursor.next >= limit:
            return 0
        all_properties = cursor.skip_some(max_count, limit)
        self._state.moved()
        first = cursor.next - len(all_properties)
        entered: list[int] = []
        for offset, properties in enumerate(all_properties, first):
            if delivery.wants(properties):
                entered.append(offset)
                if self._enter(offset, properties):
                    heappush(self._free, offset)
        cursor.pending.park(entered, self._state.context.clock())
        return max(1, len(all_properties))

    def _enter(self, offset: int, properties: bytes) -> bool:
        """Add an unfinished message. Returns whether it is the first of its key."""
        key = order_key_of(properties)
        if not key:
            return True
        self._keys[offset] = key
        behind = self._behind.get(key)
        if behind is None:
            self._behind[key] = deque((offset,))
            return True
        behind.append(offset)
        return False

    def _removed(self, offsets: Collection[int]) -> None:
        """Remove finished or deleted messages: the next ones of their keys may be delivered."""
        for offset in offsets:
            key = self._keys.pop(offset, None)
            if key is None:
                continue
            behind = self._behind[key]
            behind.remove(offset)
            if not behind:
                del self._behind[key]
            elif self._pending.is_ready(behind[0]):
                heappush(self._free, behind[0])


class QueueOrdering(Ordering):
    """Delivers the messages of a queue in order; it stays locked for `lock_ns` for a consumer that
    does not acknowledge.
    """

    def __init__(self, delivery: Delivery, lock_ns: int) -> None:
        super().__init__(delivery)
        self._cursor = delivery.cursor
        self._lock_ns = lock_ns
        self._back: list[int] = []
        """The pending messages that are not deferred, rising: they precede all others."""
        self._due: list[int] = []
        """Deferred messages whose time has come."""
        self._holder = 0
        """The number of the consumer that has the lock, also once it is a share; 0 for none."""
        self._lent_until_ns = 0
        self._floor = 0
        self._pending.on_entered = self._entered

    def _begin(self) -> None:
        self._back = self._unfinished()
        self._due.clear()
        self._pending.take_ready()

    def _pump(self) -> None:
        delivery, cursor = self._delivery, self._cursor
        if self._floor != cursor.window.floor:
            self._floor = cursor.window.floor
            self._progressed()
        self._due += [o for o in self._pending.take_ready() if not self._is_back(o)]
        for _ in range(_MAX_AT_ONCE):
            if (consumer := self._next_consumer()) is None:
                return
            room = delivery.within_rate(self._room(consumer))
            limit = delivery.limit()
            if offsets := self._next_pending(consumer, room):
                delivery.deliver_pending(consumer, offsets)
            elif cursor.next >= limit or not (count := min(room, self._max_new(consumer))):
                return
            elif not delivery.grant(consumer, count, limit):
                break
            if consumer.in_flight_count:
                self._holder = consumer.number
                self._progressed()
                if not (consumer.progress.in_order or self._due):
                    return
        delivery.pump_again_soon()

    # the lock

    def _next_consumer(self) -> ChannelConsumer | None:
        """Return the consumer for the next message; None where none has capacity or the lock."""
        delivery, holder = self._delivery, self._state.numbers.get(self._holder)
        if holder is not None and self._state.context.clock() < self._lent_until_ns:
            if delivery.has_room(holder):
                return holder
            self._state.alarm.at(self._lent_until_ns)
            return None
        self._holder = 0
        return delivery.first_in_line()

    def _progressed(self) -> None:
        """Extend the lock."""
        if self._holder:
            self._lent_until_ns = self._state.context.clock() + self._lock_ns

    # the next messages

    def _room(self, consumer: ChannelConsumer) -> int:
        """Return how many more messages a consumer may get: this queue's share of its capacity."""
        if not consumer.progress.in_order:
            return consumer.room
        share = max(1, consumer.ready_count // consumer.queue_count)
        return max(0, min(consumer.room, min(share, _MAX_AHEAD) - consumer.in_flight_count))

    def _next_pending(self, consumer: ChannelConsumer, max_count: int) -> list[int]:
        """Return the pending messages that may be delivered now, rising."""
        window, pending, back = self._cursor.window, self._pending, self._back
        if self._due:
            due = sorted(filter(pending.is_ready, self._due))
            self._due = due[max_count:]
            if due := due[:max_count]:
                return due
        if not max_count or not back or window.floor < window.next or not pending.is_ready(back[0]):
            return []
        if not consumer.progress.in_order or pending.by_offset[back[0]].failures:
            return back[:1]
        return list(takewhile(self._may_go_ahead, back[:max_count]))

    def _may_go_ahead(self, offset: int) -> bool:
        """Whether a message may be sent before the one before it is finished."""
        return self._pending.is_ready(offset) and not self._pending.by_offset[offset].failures

    def _max_new(self, consumer: ChannelConsumer) -> int:
        """Return how many new messages a consumer may get at once."""
        window = self._cursor.window
        if self._back:
            return 0
        if window.floor == window.next:
            return _MAX_AHEAD if consumer.progress.in_order else 1
        is_holder = window.holds(consumer.number, window.floor)
        return _MAX_AHEAD if is_holder and consumer.progress.in_order else 0

    # changes

    def _is_back(self, offset: int) -> bool:
        at = bisect_left(self._back, offset)
        return at < len(self._back) and self._back[at] == offset

    def _entered(self, offset: int) -> None:
        """Take in a message that has left the window; deferred ones are beyond it."""
        if offset < self._cursor.next and not self._is_back(offset):
            insort(self._back, offset)

    def _removed(self, offsets: Collection[int]) -> None:
        for offset in offsets:
            if self._is_back(offset):
                del self._back[bisect_left(self._back, offset)]
        self._progressed()
