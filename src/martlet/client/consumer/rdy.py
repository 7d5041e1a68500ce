"""Which ready count (RDY) each connection has, so that their sum never exceeds ``max_in_flight``.

A ready count is how many messages a broker may have in flight to a connection.  It stands until
another is sent, and finishing a message makes room for the next.  Clients of brokers that counted
it down had to send it again when it was used up, at 1, or at a quarter; there is nothing to refill
here, so counts are sent when a connection comes or goes, and not for messages.

Each connection gets its part, ``max_in_flight`` by the number of connections, and what a broker's
``max_rdy_count`` forbids goes to the others.  Counts that go down are sent before those that go up,
and a count goes up only as far as the messages that others still have in flight leave room: where
one connection of 10 messages becomes two, the second gets as the first finishes.  Since a message
that is never answered would hold that up for ever, it is waited for `patience_s` at most.

Where there are more connections than ``max_in_flight`` (or than 1, when a message is tried after
failures), some have none.  Then `redistribute` is to be called every so often: a connection that
received nothing for a while gives its part up, and so does any after a longer while; those get it
that have waited for it the longest.

Nothing here reads a clock or draws random numbers: both are handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class ReadyConnection(Protocol):
    """A connection, as far as the distribution needs it."""

    @property
    def max_ready_count(self) -> int:
        """The highest ready count that the broker takes."""

    @property
    def in_flight(self) -> int:
        """How many messages came and are not answered."""

    @property
    def last_message_s(self) -> float:
        """When the last message came."""


C = TypeVar("C", bound=ReadyConnection)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotation:
    """How connections take turns where there are more of them than ``max_in_flight``.

    Attributes:
        low_rdy_idle_timeout_s: a connection gives its part up when nothing came for so long.
        low_rdy_timeout_s: and whatever came, when it has had its part for so long.
        rdy_redistribute_interval_s: how often that is checked.
    """

    low_rdy_idle_timeout_s: float = 10.0
    low_rdy_timeout_s: float = 30.0
    rdy_redistribute_interval_s: float = 5.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0 seconds")


@dataclass(slots=True)
class _Part:
    """What a connection has.

    Attributes:
        count: the ready count that was sent last.
        wanted: the one that it is to have as soon as others leave room.
        is_chosen: whether it is one of those that have a part.
        since_s: since when it is chosen, or is not.
    """

    since_s: float
    count: int = 0
    wanted: int = 0
    is_chosen: bool = False

    def choose(self, is_chosen: bool, now_s: float) -> None:
        self.is_chosen = is_chosen
        self.since_s = now_s


class RdyDistributor(Generic[C]):
    """Shares ``max_in_flight`` among connections.

    Methods that change something return the counts to send, in the order in which they must be
    sent; ``now_s`` is any clock that does not go back.

    Args:
        max_in_flight: what is shared.
        rotation: how connections take turns where it is not enough for all.
        chance: returns a random number from 0 to below 1, to choose among those that have waited
            equally long.
    """

    def __init__(self, max_in_flight: int, rotation: Rotation, chance: Callable[[], float]) -> None:
        self.max_in_flight = max_in_flight
        self.is_paused = False
        self._rotation = rotation
        self._chance = chance
        self._cap: int | None = None
        self._parts: dict[C, _Part] = {}
        self._owing_since_s: float | None = None

    @property
    def budget(self) -> int:
        """What may be shared now."""
        if self.is_paused:
            return 0
        return self.max_in_flight if self._cap is None else min(self._cap, self.max_in_flight)

    @property
    def counts(self) -> dict[C, int]:
        """The ready count of each connection."""
        return {connection: part.count for connection, part in self._parts.items()}

    @property
    def is_owing(self) -> bool:
        """Whether a count will go up once others have fewer messages in flight."""
        return self._owing_since_s is not None

    @property
    def is_too_many(self) -> bool:
        """Whether some connections have no part because there are too many of them."""
        return len(self._parts) > self.budget > 0

    def add(self, connection: C, now_s: float) -> list[tuple[C, int]]:
        """Add a connection; it starts with 0."""
        self._parts[connection] = _Part(since_s=now_s)
        return self.share(now_s)

    def remove(self, connection: C, now_s: float) -> list[tuple[C, int]]:
        """Remove a connection; the others get its part."""
        self._parts.pop(connection, None)
        return self.share(now_s)

    def change(self, max_in_flight: int, now_s: float) -> list[tuple[C, int]]:
        """Share another number from now on; 0 lets nothing come."""
        self.max_in_flight = max_in_flight
        return self.share(now_s)

    def pause(self, is_paused: bool, now_s: float) -> list[tuple[C, int]]:
        """Ask for no messages from anywhere; or again."""
        self.is_paused = is_paused
        return self.share(now_s)

    def cap(self, count: int | None, now_s: float) -> list[tuple[C, int]]:
        """Share no more than so many for now, or all again."""
        self._cap = count
        if count == 0:
            for part in self._parts.values():
                part.choose(False, now_s)  # So that chance alone says who is tried.
        return self.share(now_s)

    def redistribute(self, now_s: float) -> list[tuple[C, int]]:
        """Let connections give up what they do not use, or have had for long enough."""
        if self.is_too_many:
            for connection, part in self._parts.items():
                if part.is_chosen and self._is_to_give_up(connection, part, now_s):
                    part.choose(False, now_s)
        return self.share(now_s)

    def _is_to_give_up(self, connection: C, part: _Part, now_s: float) -> bool:
        idle_s = now_s - max(connection.last_message_s, part.since_s)
        had_s = now_s - part.since_s
        rotation = self._rotation
        return idle_s > rotation.low_rdy_idle_timeout_s or had_s > rotation.low_rdy_timeout_s

    def share(self, now_s: float) -> list[tuple[C, int]]:
        """Bring the counts to what they should be, as far as there is room.

        To be called again when messages were answered while `is_owing`.
        """
        if len(self._parts) > self.budget:
            self._choose(now_s)
        else:
            self._divide(now_s)
        changes = self._lower()
        changes += self._raise(now_s)
        return changes

    def _choose(self, now_s: float) -> None:
        """A part of 1 for as many connections as there are parts."""
        parts = list(self._parts.values())
        chosen = [part for part in parts if part.is_chosen]
        spare = self.budget - len(chosen)
        if spare < 0:
            chosen.sort(key=lambda part: part.since_s)
            for part in chosen[:-spare]:
                part.choose(False, now_s)
        elif spare > 0:
            waiting = [part for part in parts if not part.is_chosen]
            waiting.sort(key=lambda part: (part.since_s, self._chance()))
            for part in waiting[:spare]:
                part.choose(True, now_s)
        for part in parts:
            part.wanted = min(int(part.is_chosen), self.budget)

    def _divide(self, now_s: float) -> None:
        """To each its part; the smallest limits first, as what one may not take is the others'."""
        left = self.budget
        by_limit = sorted(self._parts.items(), key=lambda item: item[0].max_ready_count)
        for taken, (connection, part) in enumerate(by_limit):
            equal = -(-left // (len(by_limit) - taken))
            part.wanted = min(equal, left, connection.max_ready_count)
            left -= part.wanted
            if not part.is_chosen:
                part.choose(True, now_s)

    def _lower(self) -> list[tuple[C, int]]:
        changes = []
        for connection, part in self._parts.items():
            if part.wanted < part.count:
                part.count = part.wanted
                changes.append((connection, part.count))
        return changes

    def _raise(self, now_s: float) -> list[tuple[C, int]]:
        rising = [item for item in self._parts.items() if item[1].wanted > item[1].count]
        if not rising:
            self._owing_since_s = None
            return []
        patience_s = self._rotation.rdy_redistribute_interval_s
        is_patient = self._cap is None and (
            self._owing_since_s is None or now_s - self._owing_since_s < patience_s
        )
        room = self.budget - sum(
            max(part.count, connection.in_flight) if is_patient else part.count
            for connection, part in self._parts.items()
        )
        changes = []
        is_owing = False
        for connection, part in rising:
            taken = max(part.count, connection.in_flight) if is_patient else part.count
            count = min(part.wanted, taken + max(room, 0))
            room -= max(0, count - taken)
            is_owing = is_owing or count < part.wanted
            if count > part.count:
                part.count = count
                changes.append((connection, count))
        if not is_owing:
            self._owing_since_s = None
        elif self._owing_since_s is None:
            self._owing_since_s = now_s
        return changes
