"""Priority turns: which queue of a channel delivers next, where messages have priorities.

The messages of each priority are in a queue of their own, so that one priority keeps its order, and
a backlog of any size is read like every other. A client that gets capacity is served from the
highest priority that has messages. So that no priority starves, each lower one that has messages
counts what is delivered above it meanwhile, and gets a turn of up to `TURN` messages after
`MAX_PASSED` of those::

    priority 9   ### ... 500 messages      ### ... 500 messages      ### ... 500 messages
    priority 4                        #####                     #####
    priority 0                             #####                     #####

Turns are of several messages, because to deliver one costs nearly as much as to deliver many. Where
a client has capacity for fewer, the turn is shorter, and the next one comes sooner: each message of
a turn counts off `MAX_PASSED` / `TURN`.

A topic may have a thousand queues, so no answer of a client visits all of them. Each level knows
the queues in which messages may wait, and each client those whose ready line it is not in; the
queues that are in both deliver next. Both sets are bits, by the number of the queue::

    queue                       7  6  5  4  3  2  1  0
    messages may wait           1  0  0  1  0  0  0  1
    the client is in no line    1  1  1  0  0  1  1  1     in line at 4: a rate or an order holds
    next                        1  0  0  0  0  0  0  1     its messages back

A queue that is found empty is struck off until messages may wait there again. Where a message comes
again, a queue delivers to the clients in its line too: they may have had no capacity until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.rate_limit import Limited, RateLimit, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.delivery import Delivery
    from martlet.broker.channel.subscriber import Subscriber

MAX_PASSED = 500
"""After this number of messages of higher priorities, a lower one that has messages gets a turn."""
TURN = 5
"""The maximum number of messages of such a turn: 1 % of what passed it."""
ROUND = 100
"""Of so much that the rate limit allows, one turn is for a lower priority: 1 %, as without it."""


def highest_first(queue_channels: Iterable[Channel]) -> list[Channel]:
    """Return a channel at its queues in the order in which they begin to deliver."""
    return sorted(queue_channels, key=lambda channel: channel.queue.priority, reverse=True)


class _Level:
    """The queues of one priority, which take turns."""

    def __init__(self, queue_channels: Sequence[Channel]) -> None:
        self.passed = 0
        """Messages of higher priorities that were delivered since its last turn."""
        self.may_wait = 0
        """The queues in which messages may wait: bits, by number."""
        self.changed = 0
        """Those of them in which messages came again since they delivered."""
        self._turn = 0
        """The number from which on the next queue is searched."""
        self._deliveries = {channel.queue.number: channel.delivery for channel in queue_channels}
        for number, delivery in self._deliveries.items():
            delivery.watch(_Watch(self, number, delivery))
            self.may_wait |= 1 << number

    @property
    def has_messages(self) -> bool:
        """Whether messages wait that could be delivered now."""
        while self.may_wait:
            if self._has_messages(_lowest(self.may_wait)):
                return True
        return False

    def _has_messages(self, number: int) -> bool:
        delivery = self._deliveries[number]
        if delivery.has_messages:
            return True
        self.may_wait &= ~(1 << number)
        delivery.watch_arrivals()
        return False

    def deliver(self, subscriber: Subscriber, max_count: int) -> int:
        """Deliver up to a number of messages to a client. Returns how many it got."""
        before, ready_count = subscriber.in_flight_count, subscriber.ready_count
        subscriber.ready_count = limited = min(ready_count, before + max_count)
        try:
            self._deliver(subscriber)
        finally:
            if subscriber.ready_count == limited:  # else the client takes no more
                subscriber.ready_count = ready_count
        return subscriber.in_flight_count - before

    def _deliver(self, subscriber: Subscriber) -> None:
        queues = self.may_wait & (subscriber.out_bits | self.changed)
        before_turn = queues & ((1 << self._turn) - 1)
        for some in (queues ^ before_turn, before_turn):
            left = some
            while left and subscriber.room > 0:
                number = _lowest(left)
                left &= left - 1
                if self._has_messages(number):
                    self.changed &= ~(1 << number)
                    self._deliveries[number].resume(subscriber.shares[number])
                    if subscriber.room <= 0:
                        self._turn = number + 1


class _Watch:
    """Notes that messages may wait in a queue."""

    __slots__ = ("_bit", "_delivery", "_level")

    def __init__(self, level: _Level, number: int, delivery: Delivery) -> None:
        self._level = level
        self._bit = 1 << number
        self._delivery = delivery

    def pump(self) -> None:
        """Handle new messages."""
        self._level.may_wait |= self._bit
        self._level.changed |= self._bit
        self._delivery.ignore_arrivals()

    def pump_lone(self, offset: int, frame: memoryview) -> None:
        """Handle one new message."""
        self.pump()


def _lowest(bits: int) -> int:
    """Return the lowest number whose bit is set."""
    return (bits & -bits).bit_length() - 1


class PriorityTurns:
    """The turns of the priorities of one channel."""

    def __init__(self, queue_channels: Sequence[Channel]) -> None:
        self._first = queue_channels[0]
        by_priority: dict[int, list[Channel]] = {}
        for channel in queue_channels:
            by_priority.setdefault(channel.queue.priority, []).append(channel)
        self._levels = [
            _Level(by_priority[priority]) for priority in sorted(by_priority, reverse=True)
        ]

    def deliver(self, subscriber: Subscriber) -> None:
        """Deliver what waits to a client, as far as it has capacity."""
        if subscriber.room <= 0:
            return
        waiting: list[_Level] = []
        for level in self._levels:
            if not self._first.paused and level.has_messages:
                waiting.append(level)
            else:
                level.passed = 0
        while waiting and (room := subscriber.room) > 0:
            level, max_count = self._next(waiting, room)
            count = level.deliver(subscriber, max_count)
            level.passed = max(0, level.passed - count * (MAX_PASSED // TURN))
            for lower in waiting[waiting.index(level) + 1 :]:
                lower.passed += count
            if count < max_count:
                # It has no more for this client: a filter goes on, or an order holds some back.
                waiting.remove(level)

    def _next(self, waiting: Sequence[_Level], room: int) -> tuple[_Level, int]:
        """Choose the level whose turn it is, and the maximum number of its messages."""
        highest, *lower = waiting
        for level in lower:
            if level.passed >= MAX_PASSED:
                return level, min(room, TURN)
        return highest, min([room, *(MAX_PASSED - level.passed for level in lower)])


class ChannelRate(RateLimit):
    """The limit of a channel's rate, at all of its queues; it limits their deliveries.

    While the rate is used up, messages of each priority wait, and those of the highest go first, up
    to `ROUND` times; then those of one of the lower ones do, in turns. So none of them starves.
    """

    __slots__ = ("_rings",)

    def __init__(
        self, bucket: TokenBucket, clock: Callable[[], int], call_at: Callable[[int], object]
    ) -> None:
        super().__init__(bucket, clock, call_at)
        self._rings = 0
        """How often messages of several priorities waited."""

    def _in_turn(self, waiting: list[Limited]) -> list[Limited]:
        """Return the deliveries in the order in which they may go."""
        priorities = {_priority(delivery) for delivery in waiting}
        if len(priorities) < 2:
            return super()._in_turn(waiting)
        self._rings += 1
        ordered = sorted(super()._in_turn(waiting), key=_priority, reverse=True)
        if self._rings % ROUND == 0:
            lower = sorted(priorities)[:-1]
            chosen = lower[self._rings // ROUND % len(lower)]
            ordered.sort(key=lambda delivery: _priority(delivery) != chosen)
        return ordered


def _priority(delivery: Limited) -> int:
    priority: int = delivery.state.queue.priority  # type: ignore[attr-defined]
    return priority
