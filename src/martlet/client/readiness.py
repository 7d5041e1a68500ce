"""Which ready count (RDY) each connection has, so that their sum never exceeds ``max_in_flight``.

A ready count is how many messages a broker may have in flight to a connection; it stands until
another is sent, and finishing a message makes room for the next.  So the counts are sent when a
connection comes or goes, and not for every message.

Where there are more connections than ``max_in_flight``, some have none; ``rotate`` gives them their
turn.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


class Readiness(Generic[C]):
    """Shares ``max_in_flight`` among connections.

    Each method returns the counts to send, in the order in which they must be sent: first those
    that go down, so that the sum is never too high.
    """

    def __init__(self, max_in_flight: int) -> None:
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight={max_in_flight}: 1 is the least")
        self._max_in_flight = max_in_flight
        self._paused = False
        self._limits: dict[C, int] = {}
        self._counts: dict[C, int] = {}

    @property
    def counts(self) -> dict[C, int]:
        """The ready count of each connection."""
        return dict(self._counts)

    @property
    def starved(self) -> bool:
        """Whether a connection has no part because there are too many of them."""
        return len(self._limits) > self._max_in_flight and not self._paused

    def add(self, connection: C, max_ready_count: int) -> list[tuple[C, int]]:
        """A connection whose broker takes ready counts up to that came; it starts with 0."""
        self._limits[connection] = max_ready_count
        self._counts[connection] = 0
        return self._share()

    def remove(self, connection: C) -> list[tuple[C, int]]:
        """A connection is gone; the others get its part."""
        self._limits.pop(connection, None)
        self._counts.pop(connection, None)
        return self._share()

    def change(self, max_in_flight: int) -> list[tuple[C, int]]:
        """Share another number from now on."""
        self._max_in_flight = max_in_flight
        return self._share()

    def pause(self) -> list[tuple[C, int]]:
        """No more messages from anywhere."""
        self._paused = True
        return self._share()

    def rotate(self) -> list[tuple[C, int]]:
        """Let the connections that have no part have one, and others wait."""
        if not self.starved:
            return []
        order = list(self._limits.items())
        self._limits = dict(order[self._max_in_flight :] + order[: self._max_in_flight])
        return self._share()

    def _share(self) -> list[tuple[C, int]]:
        left = 0 if self._paused else self._max_in_flight
        wanted: dict[C, int] = {}
        # The smallest limits first: what a connection may not take is left to the others.
        order = list(self._limits)
        by_limit = sorted(order, key=lambda connection: self._limits[connection])
        for taken, connection in enumerate(order if self.starved else by_limit):
            part = -(-left // (len(order) - taken))
            wanted[connection] = min(part, left, self._limits[connection])
            left -= wanted[connection]
        changes = [(c, wanted[c]) for c in order if wanted[c] != self._counts[c]]
        changes.sort(key=lambda change: change[1] - self._counts[change[0]])
        self._counts.update(wanted)
        return changes
