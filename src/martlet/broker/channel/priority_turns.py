"""Priority turns: which queue of a channel delivers next, where messages have priorities.

The messages of each priority are in a queue of their own, so that one priority keeps its order, and
a backlog of any size is read like every other. A client that gets capacity is served from the
highest priority that has messages. So that no priority starves, each lower one that has messages
counts what is delivered above it meanwhile, and gets a turn of `TURN` messages after `MAX_PASSED`
of those::

    priority 9   ### ... 500 messages      ### ... 500 messages      ### ... 500 messages
    priority 4                        #####                     #####
    priority 0                             #####                     #####

Turns are of several messages, because to deliver one costs nearly as much as to deliver many.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.subscriber import Subscriber

MAX_PASSED = 500
"""After this number of messages of higher priorities, a lower one that has messages gets a turn."""
TURN = 5
"""The messages of such a turn: 1 % of what passed it."""


def highest_first(parts: Iterable[Channel]) -> list[Channel]:
    """Return a channel's parts in the order in which all of them begin to deliver."""
    return sorted(parts, key=lambda part: part.queue.priority, reverse=True)


class _Level:
    """The queues of one priority, which take turns.

    Args:
        parts: the channel at each of them.
    """

    def __init__(self, parts: Sequence[Channel]) -> None:
        self.parts = deque(parts)
        self.passed = 0
        """Messages of higher priorities that were delivered since its last turn."""

    @property
    def has_messages(self) -> bool:
        """Whether messages wait that could be delivered now."""
        for part in self.parts:
            cursor = part.cursor
            waits = cursor.pending.ready_count or part.delivery.limit() > cursor.next
            if waits and not part.paused:
                return True
        return False

    def deliver(self, subscriber: Subscriber, max_count: int) -> int:
        """Deliver up to a number of messages to a client. Returns how many it got."""
        before, ready_count = subscriber.in_flight_count, subscriber.ready_count
        subscriber.ready_count = limited = min(ready_count, before + max_count)
        try:
            for _ in range(len(self.parts)):
                if subscriber.room <= 0:
                    break
                part = self.parts[0]
                self.parts.rotate(-1)
                part.resume(subscriber.shares[part.queue.number])
        finally:
            if subscriber.ready_count == limited:  # else the client takes no more
                subscriber.ready_count = ready_count
        return subscriber.in_flight_count - before


class PriorityTurns:
    """The turns of the priorities of one channel.

    Args:
        parts: the channel at each queue, by number.
    """

    def __init__(self, parts: Sequence[Channel]) -> None:
        by_priority: dict[int, list[Channel]] = {}
        for part in parts:
            by_priority.setdefault(part.queue.priority, []).append(part)
        self._levels = [_Level(by_priority[each]) for each in sorted(by_priority, reverse=True)]

    def deliver(self, subscriber: Subscriber) -> None:
        """Deliver what waits to a client, as far as it has capacity."""
        if subscriber.room <= 0:
            return
        waiting: list[_Level] = []
        for level in self._levels:
            if level.has_messages:
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
                # It has no more for this client: a filter looks on, or an order holds some back.
                waiting.remove(level)

    def _next(self, waiting: Sequence[_Level], room: int) -> tuple[_Level, int]:
        """Choose the level whose turn it is, and the maximum number of its messages."""
        highest, *lower = waiting
        for level in lower:
            if level.passed >= MAX_PASSED:
                return level, min(room, TURN)
        return highest, min([room, *(MAX_PASSED - level.passed for level in lower)])
