"""Distribute ready counts (RDY) so that their sum never exceeds ``max_in_flight``.

A ready count is the maximum number of messages in flight to a connection. It holds until another is
sent, and finishing a message lets the broker send the next. Old brokers counted it down, so their
clients sent it again at 1 or at a quarter; here nothing needs a refill, so counts are sent when a
connection comes or goes, and not for messages.

Each connection gets an equal part of ``max_in_flight``; any surplus above a broker's
``max_rdy_count`` goes to the others. Lower counts are sent before higher ones, and a count rises
only as far as ``max_in_flight`` minus the messages that others still have in flight: when a second
connection joins one with 10 messages, its count rises as the first one finishes. An unanswered
message would hold that up for ever, so the wait is at most `patience_s`.

If there are more connections than ``max_in_flight`` (or than 1, in a trial after failures), some
have a count of 0. Then call `redistribute` at intervals: a connection that received nothing for a
while loses its part, and so does any other after a longer while; the connections that have waited
longest get the parts.

Time and random numbers are passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class ReadyConnection(Protocol):
    """A connection, as the distribution sees it."""

    @property
    def max_ready_count(self) -> int:
        """The broker's maximum ready count."""

    @property
    def in_flight(self) -> int:
        """The number of received and unanswered messages."""

    @property
    def last_message_s(self) -> float:
        """The time of the last message."""


C = TypeVar("C", bound=ReadyConnection)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotation:
    """How connections take turns if there are more of them than ``max_in_flight``.

    Attributes:
        low_rdy_idle_timeout_s: a connection without a message for this time loses its part.
        low_rdy_timeout_s: any connection loses its part after this time.
        rdy_redistribute_interval_s: the interval of the check.
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
    """A connection's part of ``max_in_flight``."""

    since_s: float
    """The time of the last change of `is_chosen`."""
    count: int = 0
    """The last ready count sent."""
    target: int = 0
    """To be reached as other connections finish messages."""
    is_chosen: bool = False
    """Whether it has a part."""

    def choose(self, is_chosen: bool, now_s: float) -> None:
        self.is_chosen = is_chosen
        self.since_s = now_s


class RdyDistributor(Generic[C]):
    """Distribute ``max_in_flight`` among connections.

    Methods that change something return the counts to send, in the required order; ``now_s`` is any
    monotonic time.

    Args:
        rotation: how connections take turns if it is not enough for all.
        chance: returns a random number from 0 to below 1, to choose among connections that have
            waited equally long.
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
        """The number to distribute now."""
        if self.is_paused:
            return 0
        return self.max_in_flight if self._cap is None else min(self._cap, self.max_in_flight)

    @property
    def counts(self) -> dict[C, int]:
        """The ready count of each connection."""
        return {connection: part.count for connection, part in self._parts.items()}

    @property
    def is_owing(self) -> bool:
        """Whether a count will rise once others have fewer messages in flight."""
        return self._owing_since_s is not None

    @property
    def is_too_many(self) -> bool:
        """Whether there are too many connections for each to have a part."""
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
        """Change ``max_in_flight``; 0 lets nothing come."""
        self.max_in_flight = max_in_flight
        return self.share(now_s)

    def pause(self, is_paused: bool, now_s: float) -> list[tuple[C, int]]:
        """Pause or resume all connections."""
        self.is_paused = is_paused
        return self.share(now_s)

    def cap(self, count: int | None, now_s: float) -> list[tuple[C, int]]:
        """Set a temporary limit of the number to distribute, or remove it."""
        self._cap = count
        if count == 0:
            for part in self._parts.values():
                part.choose(False, now_s)  # So that the connection to try is chosen at random.
        return self.share(now_s)

    def redistribute(self, now_s: float) -> list[tuple[C, int]]:
        """Take parts from idle connections, and from those that have had them for long enough."""
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
        """Move the counts towards their targets, as far as ``max_in_flight`` allows.

        Call it again after answers while `is_owing`.
        """
        if len(self._parts) > self.budget:
            self._choose(now_s)
        else:
            self._divide(now_s)
        changes = self._lower()
        changes += self._raise(now_s)
        return changes

    def _choose(self, now_s: float) -> None:
        """Give as many connections as possible a part of 1."""
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
            part.target = min(int(part.is_chosen), self.budget)

    def _divide(self, now_s: float) -> None:
        """Give each its part, the lowest limits first: a surplus above them goes to others."""
        left = self.budget
        by_limit = sorted(self._parts.items(), key=lambda item: item[0].max_ready_count)
        for taken, (connection, part) in enumerate(by_limit):
            equal = -(-left // (len(by_limit) - taken))
            part.target = min(equal, left, connection.max_ready_count)
            left -= part.target
            if not part.is_chosen:
                part.choose(True, now_s)

    def _lower(self) -> list[tuple[C, int]]:
        changes = []
        for connection, part in self._parts.items():
            if part.target < part.count:
                part.count = part.target
                changes.append((connection, part.count))
        return changes

    def _raise(self, now_s: float) -> list[tuple[C, int]]:
        rising = [item for item in self._parts.items() if item[1].target > item[1].count]
        if not rising:
            self._owing_since_s = None
            return []
        patience_s = self._rotation.rdy_redistribute_interval_s
        # Messages in flight at a lowered connection still count, or the sum would exceed it.
        # A trial after failures (the cap) does not wait for them: they may never be answered.
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
            count = min(part.target, taken + max(room, 0))
            room -= max(0, count - taken)
            is_owing = is_owing or count < part.target
            if count > part.count:
                part.count = count
                changes.append((connection, count))
        if not is_owing:
            self._owing_since_s = None
        elif self._owing_since_s is None:
            self._owing_since_s = now_s
        return changes
