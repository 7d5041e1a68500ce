"""Topology: prefer consumers in the broker's zone, then those in its region.

Local traffic costs less and is faster. So, if enabled, a message goes to a farther consumer only
while no nearer one has capacity::

    zone      A  B         A and B take turns while either has capacity,
    region    C            then C,
    others    D  E         then D and E

nsqd prefers near consumers only for a message that finds them waiting, and lets all compete for a
backlog; here they are preferred for that, too. A broker without a zone shares none with any client,
and the same applies to its region.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.broker.queue.consumer import ChannelConsumer


class TopologyPreference(IntEnum):
    """The distance of a consumer from the broker; the nearest first."""

    ZONE = 0
    REGION = 1
    ELSEWHERE = 2


def nearness(broker: tuple[str, str], client: tuple[str, str]) -> TopologyPreference:
    """Return a client's distance from a broker, each given by its zone and its region."""
    for near, here, there in zip(TopologyPreference, broker, client, strict=False):
        if here and here == there:
            return near
    return TopologyPreference.ELSEWHERE


class NearestFirst:
    """A ready line with the nearest consumers first, which take turns among themselves.

    It replaces a deque; its elements and length are those of the nearest consumers alone.
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

    def __getitem__(self, index: int) -> ChannelConsumer:
        return self._first[index]

    def __iter__(self) -> Iterator[ChannelConsumer]:
        for line in self._lines:
            yield from line

    def rotate(self, count: int) -> None:
        """Rotate the nearest consumers."""
        self._first.rotate(count)

    def append(self, consumer: ChannelConsumer) -> None:
        """Add a consumer behind those of the same distance."""
        self._lines[consumer.nearness].append(consumer)

    def extend(self, consumers: Iterable[ChannelConsumer]) -> None:
        """Add consumers, in their order."""
        for consumer in consumers:
            self.append(consumer)

    def clear(self) -> None:
        """Remove all consumers."""
        for line in self._lines:
            line.clear()

    def remove(self, consumer: ChannelConsumer) -> None:
        """Remove a consumer. Raises ValueError where it is not in the line."""
        self._lines[consumer.nearness].remove(consumer)
