"""Ordering by queue: the messages of a queue are handled one after the other.

::

    offsets    4        5        6        7        8        9 ...
    held       window   window   window   window   -        -        to one consumer, in order
    handled    now      later    later    later

The queue is locked for one consumer as long as that acknowledges: another one gets it when the
first leaves, or does nothing for longer than the lock lasts.

A client that handles messages in order (see `martlet.broker.queue.started`) gets several at a time,
as slices of the log like those of a channel without an order. When one of them fails, the client
drops those behind it, and the broker takes them back (see `Redelivery.recall`): they are pending
messages then, and are delivered before any new one. Behind a message that has failed nothing is
sent until it is finished. Any other client gets one message at a time.

Deferred messages are delivered at their time, in no order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from itertools import takewhile

from martlet.broker.channel.delivery import Delivery
from martlet.broker.channel.ordering import Ordering
from martlet.broker.queue.consumer import ChannelConsumer

_MAX_AHEAD = 256
"""The maximum number of messages that one client has of one queue: each failure returns them."""
_MAX_AT_ONCE = 1000
"""Deliveries in one turn of the loop."""


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
