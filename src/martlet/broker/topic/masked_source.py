"""A view: a topic as a channel sees it that passes over some of its messages.

::

    offsets    0 ......... 40 ......... 90 ......... 150 ...
    topic      | all of them are stored                |
    channel a  | its own    | a void    | both have these
    channel b  | before its | its own   | both have these
               | start      |           |

A channel that came from another broker may lack messages that others of its topic have.  They are
voids to it: stretches that its cursor is taken over, so that nothing is held for each message.
The voids lie below the topic's end from the beginning, begin and end where batches do, and hold no
deferred messages.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING

from martlet.broker.offset_ranges import apart_from

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from martlet.broker.offset_ranges import Stretch
    from martlet.broker.queue.channel_state import Source
    from martlet.broker.queue.cursor import Cursor


class MaskedSource:
    """What a channel with voids of its own reads.

    Args:
        topic: what is looked at.
        voids: as (first, end) offsets, rising and apart from each other.
    """

    def __init__(self, topic: Source, voids: Sequence[Stretch]) -> None:
        self._topic = topic
        self._voids = voids
        self._passed = 0
        """So many of the voids were behind the cursor."""

    @property
    def limit(self) -> int:
        """The offset up to which the channel sees the topic."""
        return self._topic.limit

    def limit_of(self, cursor: Cursor) -> int:
        """The offset up to which the cursor may go from where it is; it is taken over a void."""
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
        """What the channel gets of the offsets from `first` on, up to `end` or the limit."""
        near = bisect_right(self._voids, first, key=itemgetter(1))
        for start, stop in self._topic.stretches(first, end):
            yield from apart_from(self._voids[near:], start, stop)

    def count_from(self, offset: int) -> int:
        """How many messages there are to be seen from an offset on."""
        return sum(end - first for first, end in self.stretches(offset))

    def deferred_from(self, offset: int) -> int:
        """How many of them are deferred ones."""
        return self._topic.deferred_from(offset)
