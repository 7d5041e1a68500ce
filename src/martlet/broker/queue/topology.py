"""Nearness: consumers in the broker's zone are preferred, then those in its region.

Messages that stay near cost less and arrive sooner.  So, where that is asked for, a message goes to
a consumer farther away only while no nearer one has room::

    zone      A  B         A and B take turns while either has room,
    region    C            then C,
    others    D  E         then D and E

nsqd prefers near consumers only for a message that finds them waiting, and lets all compete for
what has piled up; here they are preferred for that, too.  A broker that was given no zone is in
nobody's zone, and the same goes for its region.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.broker.queue.consumer import ChannelConsumer


class TopologyPreference(IntEnum):
    """Where a consumer is, as seen from the broker; the nearest first."""

    ZONE = 0
    REGION = 1
    ELSEWHERE = 2


def nearness(broker: tuple[str, str], client: tuple[str, str]) -> TopologyPreference:
    """How near a client is to a broker, each given by its zone and its region."""
    for near, here, there in zip(TopologyPreference, broker, client, strict=False):
        if here and here == there:
            return near
    return TopologyPreference.ELSEWHERE


class NearestFirst:
    """A line in which the nearest consumers stand first, and take turns among themselves.

    Delivery uses it in the place of a deque; what it sees of it, the length too, is the nearest
    consumers alone.
    """

    def __init__(self) -> None:
        self._lines: tuple[deque[ChannelConsumer], ...] = tuple(deque() for _ in TopologyPreference)

    @property
    def _first(self) -> deque[ChannelConsumer]:
        for line in self._lines:
            if line:
                return line
        return self._lines[0]

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, place: int) -> ChannelConsumer:
        return self._first[place]

    def __iter__(self) -> Iterator[ChannelConsumer]:
        for line in self._lines:
            yield from line

    def rotate(self, count: int) -> None:
        """Let the nearest consumers move by some places."""
        self._first.rotate(count)

    def append(self, consumer: ChannelConsumer) -> None:
        """Stand behind those that are as near."""
        self._lines[consumer.nearness].append(consumer)

    def extend(self, consumers: Iterable[ChannelConsumer]) -> None:
        """Let some stand in line, in their order."""
        for consumer in consumers:
            self.append(consumer)

    def clear(self) -> None:
        """Let all leave."""
        for line in self._lines:
            line.clear()

    def remove(self, consumer: ChannelConsumer) -> None:
        """Leave. Raises ValueError where it does not stand in line."""
        self._lines[consumer.nearness].remove(consumer)
