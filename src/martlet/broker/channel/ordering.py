"""Ordering: a channel whose messages are handled one after the other, by queue or by order key.

::

    offsets    4      5      6      7      8 ...              by key: the state of each
    key        a      b      a      -      c
               held   held   parked held   next               6 goes out when 4 is finished

One message of each key is in flight, and later ones wait until it is finished: a failed one is
redelivered in its place, and all messages of its key wait for it, while other keys continue. A
message without a key waits for no other. By queue, all messages have the same key, in effect, and
the queue is locked for one consumer as long as that acknowledges: another one gets it when the
first leaves, or does nothing for longer than the lock lasts.

A run of FINs is one change and one delivery: the messages that it frees, and new ones, are given
out in shares, each share with one read of each batch and one write. New messages are parked first,
and those that are the first of their key go out with the freed ones.

Unfinished messages behind the cursor are pending messages, parked ones as such that were never
delivered. So the journal has no entry for the order: a restart rebuilds it from the pending
messages, by offset. The number of parked messages is limited; then the cursor waits. Deferred
messages are delivered at their time, in no order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from martlet.properties.model import order_key_of

if TYPE_CHECKING:
    from martlet.broker.channel.delivery import Delivery
    from martlet.broker.queue.consumer import ChannelConsumer

MAX_PARKED = 1000
"""The maximum number of parked messages; then the cursor waits."""
_MAX_AT_ONCE = 1000
"""Messages examined in one turn of the loop."""
_ANY = b"\0"
"""The key of all messages when ordered by queue."""


class Ordering:
    """Delivers a channel's messages in order.

    Args:
        delivery: of the channel.
        by_key: by order key; else by queue.
        lock_ns: how long a queue stays locked for a consumer that does not acknowledge.
    """

    def __init__(self, delivery: Delivery, by_key: bool, lock_ns: int) -> None:
        self._delivery = delivery
        self._state = delivery.state
        self._pending = delivery.cursor.pending
        self._by_key = by_key
        self._lock_ns = lock_ns
        self._keys: dict[int, bytes] = {}
        """The key of each unfinished message that has one, by offset."""
        self._behind: dict[bytes, deque[int]] = {}
        """By key the unfinished messages; the first of each may be delivered."""
        self._free: list[int] = []
        """A heap of the messages that may be delivered now, or could before."""
        self._holder: ChannelConsumer | None = None
        self._lent_until_ns = 0
        self._has_begun = False
        self._pending.on_removed = self._removed

    @property
    def parked_count(self) -> int:
        """The number of messages waiting for others of their key."""
        return len(self._keys) - len(self._behind)

    def end(self) -> None:
        """Stop ordering: parked messages become ready like all others."""
        self._pending.on_removed = None
        self._pending.line_up_ready()

    def begin_again(self) -> None:
        """Take in messages that have become unfinished other than by being read."""
        self._has_begun = False

    def _begin(self) -> None:
        """Read the keys of the messages that are unfinished already."""
        # If the index cannot be read to the end, this runs again from the start.
        for known in (self._keys, self._behind, self._free):
            known.clear()
        self._delivery.spread()
        pending = self._pending
        for offset, message in sorted(pending.by_offset.items()):
            is_waiting = message.owner is None and not pending.is_ready(offset)
            if message.attempts or not is_waiting:  # else deferred
                self._enter(offset, self._delivery.cursor.properties(offset))
        pending.line_up_ready()
        self._has_begun = True

    def pump(self) -> None:
        """Deliver what may be delivered. Raises OSError where the index cannot be read."""
        if not self._has_begun:
            self._begin()
        try:
            self._pump()
        except OSError:
            self._has_begun = False  # Some messages were taken from the heap, and not delivered.
            raise

    def _pump(self) -> None:
        delivery = self._delivery
        self._check_ready()
        left = _MAX_AT_ONCE
        while (consumer := self._next_consumer()) is not None:
            if left <= 0:
                delivery.look_again_soon()
                return
            offsets = self._next_free(delivery.share(consumer, len(self._free)))
            if offsets:
                delivery.deliver_pending(consumer, offsets)
                self._lend(consumer)
                left -= len(offsets)
            elif not (count := self._read(min(left, consumer.room))):
                return
            else:
                left -= count

    def _next_consumer(self) -> ChannelConsumer | None:
        """Return the consumer for the next message; None where no consumer has capacity or the
        lock.
        """
        delivery = self._delivery
        if not self._by_key and self._holder is not None:
            now_ns = self._state.context.clock()
            is_there = self._state.numbers.get(self._holder.number) is self._holder
            if is_there and now_ns < self._lent_until_ns:
                if delivery.has_room(self._holder):
                    return self._holder
                self._state.alarm.at(self._lent_until_ns)
                return None
            self._holder = None
        return delivery.first_in_line()

    def _lend(self, consumer: ChannelConsumer) -> None:
        if not self._by_key:
            self._holder = consumer
            self._lent_until_ns = self._state.context.clock() + self._lock_ns

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

    def _check_ready(self) -> None:
        """Check the messages that have become ready since the last time."""
        for offset in self._pending.take_ready():
            self._offer(offset)

    def _offer(self, offset: int) -> None:
        if self._is_first(offset):
            heappush(self._free, offset)

    def _read(self, max_count: int) -> int:
        """Read some new messages; those that need not wait may be delivered. Returns how many were
        read, or 0 where there are none, or none may be read.
        """
        delivery = self._delivery
        max_count = min(max_count, MAX_PARKED - self.parked_count)
        if not self._by_key:
            max_count = 0 if self._keys else 1
        cursor = delivery.cursor
        limit, wanted = delivery.limit(), self._state.wanted
        if max_count > 0 and cursor.next < limit and wanted is not None:
            cursor.pass_over(limit, wanted)
            self._state.moved()
            if cursor.next < limit and not cursor.may_look:
                delivery.look_again_soon()
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
        key = _ANY
        if self._by_key:
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
        if self._holder is not None:
            self._lent_until_ns = self._state.context.clock() + self._lock_ns
