"""A masked source: a topic for a channel that skips some of its messages.

::

    offsets    0 ......... 40 ......... 90 ......... 150 ...
    topic      | all of them are stored                |
    channel a  | its own    | a void    | both have these
    channel b  | before its | its own   | both have these
               | start      |           |

A channel imported from another broker may lack messages that other channels of its topic have. They
are voids to it: ranges that its cursor skips, without state for each message. The voids lie below
the topic's end from the beginning, begin and end at batches, and contain no deferred messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter

from martlet.broker.offset_ranges import Stretch, apart_from
from martlet.broker.queue.channel_state import Source
from martlet.broker.queue.cursor import Cursor


class MaskedSource:
    """The source of a channel with voids of its own, rising and separate."""

    def __init__(self, topic: Source, voids: Sequence[Stretch]) -> None:
        self._topic = topic
        self._voids = voids
        self._passed = 0
        """The number of voids that the cursor has passed."""

    @property
    def limit(self) -> int:
        """The offset up to which the channel sees the topic."""
        return self._topic.limit

    def limit_of(self, cursor: Cursor) -> int:
        """Return the offset up to which the cursor may move; moves it over a void first."""
        limit = self._topic.limit_of(cursor)
        while self._passed and cursor.next < self._voids[self._passed - 1][1]:
            self._passed -= 1
        while self._passed < len(self._voids):
            first, end = self._voids[self._passed]
            if cursor.next < first:
                return min(first, limit)
            if cursor.next < end:
                cursor.skip_to(end, self.deferred_from(end))
                limit = self._topic.limit_of(cursor)
            self._passed += 1
        return limit

    def stretches(self, first: int, end: int | None = None) -> Iterator[Stretch]:
        """Yield the ranges that the channel gets from `first` up to `end`, or the limit."""
        near = bisect_right(self._voids, first, key=itemgetter(1))
        for start, stop in self._topic.stretches(first, end):
            yield from apart_from(self._voids[near:], start, stop)

    def count_from(self, offset: int) -> int:
        """Count the visible messages from an offset on."""
        return sum(end - first for first, end in self.stretches(offset))

    def deferred_from(self, offset: int) -> int:
        """Count the deferred ones of them."""
        return self._topic.deferred_from(offset)
