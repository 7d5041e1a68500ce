"""Crash charges: messages of a group in one queue that may have crashed a member.

If a group has a retry policy, its members announce the messages that they start to handle. When a
member is lost without having left, every message that it had started and not committed gets one
more failure::

    offset    100       103       110 ... 117      118 ...
              started   started   started          fetched
              charged   charged   charged          -

Of several messages the broker cannot know which caused the loss, so none of them becomes a dead
letter for it. But a member starts a charged message only while it handles nothing else, and says
so: the next loss charges this one alone, and if it has failed ``max_attempts`` times then, it is
over. A member moves it to the dead-letter topic, before any handler gets it (``group.dead``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from martlet.broker.retry import Cause, RetryPolicy

MAX_CHARGES = 10_000
"""The maximum number of charges of a group in one queue; those with the lowest offsets stay."""
MAX_RUNS = 1024
MAX_STARTED = 100_000
"""The maximum number of runs, and of messages, that one member may have started in one queue."""


@dataclass(slots=True)
class Charge:
    """The failures of one message."""

    failures: int
    """How many lost members had started it."""
    due_ns: int = 0
    """When it may be handled again."""
    is_over: bool = False
    """Whether it is to be a dead letter."""


class StartedRange(NamedTuple):
    """The messages that a member has started in one queue, and not finished."""

    runs: tuple[tuple[int, int], ...]
    """Their offsets, as (first, end)."""
    alone: bool
    """Whether it handles nothing else, of any queue or broker."""

    def between(self, first: int, end: int) -> Iterator[int]:
        """Yield the started offsets from `first` up to `end`."""
        for run_first, run_end in self.runs:
            yield from range(max(first, run_first), min(end, run_end))


@dataclass(slots=True)
class CrashCharges:
    """The charges of a group in one queue, by offset."""

    by_offset: dict[int, Charge] = field(default_factory=dict)

    def add(self, offsets: Iterable[int], *, alone: bool, retry: RetryPolicy, now_ns: int) -> None:
        """Charge messages that a lost member had started."""
        for offset in sorted(set(offsets)):
            charge = self.by_offset.setdefault(offset, Charge(0))
            charge.failures += 1
            charge.due_ns = now_ns + retry.delay_ns(charge.failures, Cause.GIVEN_BACK, 0)
            charge.is_over = charge.is_over or (alone and retry.is_over(charge.failures))
        for offset in sorted(self.by_offset)[MAX_CHARGES:]:
            del self.by_offset[offset]

    def drop_below(self, offset: int) -> None:
        """Remove the charges below a committed offset."""
        for charged in [o for o in self.by_offset if o < offset]:
            del self.by_offset[charged]
