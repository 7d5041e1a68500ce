"""Charges: messages of a group in one queue that a member may have been lost by.

Where a group has a retry policy, its members say what they start to handle before they do.  When
one is lost, without having left, all that it had started and not committed has failed once more::

    offset    100       103       110 ... 117      118 ...
              started   started   started          fetched
              charged   charged   charged          -

Of several it cannot be known which one it was, so none of them is given up for that.  But a member
starts a message that was charged before only while it handles nothing else, and says so: the next
loss charges that one alone, and one that has failed ``max_attempts`` times then is over.  It is a
member that moves it to the dead-letter topic, before any handler gets it (``group.dead``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from martlet.broker.retry import Cause

if TYPE_CHECKING:
    from martlet.broker.retry import RetryPolicy

MAX_CHARGES = 10_000
"""Of one group in one queue; those with the lowest offsets are kept."""
MAX_RUNS = 1024
MAX_STARTED = 100_000
"""So many runs, and messages, one member may have started in one queue."""


@dataclass(slots=True)
class Charge:
    """What is known of one message.

    Attributes:
        failures: how often it was started by a member that was lost.
        due_ns: when it may be handled again.
        is_over: whether it is to be a dead letter.
    """

    failures: int
    due_ns: int = 0
    is_over: bool = False


class StartedRange(NamedTuple):
    """What a member has started in one queue, and not done.

    Attributes:
        runs: first and end offsets.
        alone: whether it handles nothing else, of any queue or broker.
    """

    runs: tuple[tuple[int, int], ...]
    alone: bool

    def between(self, first: int, end: int) -> Iterator[int]:
        """The offsets of these."""
        for run_first, run_end in self.runs:
            yield from range(max(first, run_first), min(end, run_end))


@dataclass(slots=True)
class CrashCharges:
    """Those of a group in one queue, by offset."""

    by_offset: dict[int, Charge] = field(default_factory=dict)

    def add(self, offsets: Iterable[int], *, alone: bool, retry: RetryPolicy, now_ns: int) -> None:
        """A member was lost that had started these."""
        for offset in sorted(set(offsets)):
            charge = self.by_offset.setdefault(offset, Charge(0))
            charge.failures += 1
            charge.due_ns = now_ns + retry.delay_ns(charge.failures, Cause.GIVEN_BACK, 0)
            charge.is_over = charge.is_over or (alone and retry.is_over(charge.failures))
        for offset in sorted(self.by_offset)[MAX_CHARGES:]:
            del self.by_offset[offset]

    def drop_below(self, offset: int) -> None:
        """What is below an offset is done."""
        for known in [known for known in self.by_offset if known < offset]:
            del self.by_offset[known]
