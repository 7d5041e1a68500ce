"""Retry: when a channel's policy redelivers a failed message.

Without a policy NSQ's rules apply: a requeued message is redelivered after the delay that its
consumer names, a timed-out one at once, and both without limit. With a policy, the broker decides::

    failure                          redelivered after
    REQ with a delay                 that delay, as with a level of RocketMQ
    REQ without (0), timeout         the delay of its number of failures
    lost connection                  no delay after the first failure, as other consumers are there;
                                     then the delay of its number of failures, so that a message
                                     that crashes its consumer does not crash all of them at once
    any, at the last failure         never: it becomes a dead letter

A failure is not a delivery: a message that was delivered and not handled, because it waited in a
client that left, returned it or let it time out, has not failed (see
`martlet.broker.queue.consumer`) and is redelivered at once.  The frame's attempts count deliveries,
as NSQ's clients expect.  (RocketMQ counts the times that a message was consumed again, so its 16 is
17 here.)  The delays are RocketMQ's levels from the third on, unless others are set: 10 s, 30 s, 1
min and so on up to 2 h.

If a group has a retry policy, its members announce the messages that they start to handle. When a
member is lost without having left, every message that it had started and not committed is charged,
as it may have crashed the member: it gets one more failure::

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
from enum import Enum, StrEnum
from typing import NamedTuple

from martlet.broker.policy import ChannelPolicy

MILLISECOND_NS = 1_000_000
_MINUTE_MS = 60_000
DELAY_LEVELS_MS = (
    *(1_000, 5_000, 10_000, 30_000),
    *(minutes * _MINUTE_MS for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
"""RocketMQ's delay levels, from 1."""
FIRST_LEVEL = 3
"""The level of a message that has failed once."""
DEFAULT_ATTEMPTS = 16
MAX_ERROR_LENGTH = 1000
"""The maximum length of an error text that is kept."""


class DeadLetterReason(StrEnum):
    """The reason why a message became a dead letter."""

    MAX_ATTEMPTS = "max_attempts"
    """It was requeued at its last attempt."""
    TIMEOUT = "timeout"
    """It timed out at its last attempt."""
    DISCONNECTED = "disconnected"
    """The consumer of its last attempt has left, or returned it."""
    REJECTED = "rejected"
    """A consumer has rejected it."""
    GIVEN_UP = "given_up"
    """A consumer with a limit of its own has tried it often enough."""


class Cause(Enum):
    """The cause of a redelivery; the value is the reason of a dead letter at the last attempt."""

    REQUEUED = DeadLetterReason.MAX_ATTEMPTS
    TIMED_OUT = DeadLetterReason.TIMEOUT
    GIVEN_BACK = DeadLetterReason.DISCONNECTED


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A channel's policy, ready to be applied."""

    max_attempts: int
    """The maximum number of failures; 0 for no limit."""
    delays_ns: tuple[int, ...]
    """After the first failure, the second, and so on; the last applies to all others."""

    @classmethod
    def of(cls, policy: ChannelPolicy) -> RetryPolicy | None:
        """Return the retry policy of a channel's policy; None where NSQ's rules apply."""
        if not (policy.max_attempts or policy.retry_delays_ms or policy.dead_letter_topic):
            return None
        delays_ms = policy.retry_delays_ms or DELAY_LEVELS_MS[FIRST_LEVEL - 1 :]
        return cls(
            max(0, policy.max_attempts or DEFAULT_ATTEMPTS),
            tuple(delay_ms * MILLISECOND_NS for delay_ms in delays_ms),
        )

    def is_over(self, failures: int) -> bool:
        """Whether a message with this number of failures is not redelivered."""
        return 0 < self.max_attempts <= failures

    def delay_ns(self, failures: int, cause: Cause, requested_ns: int) -> int:
        """Return the delay of a message with this number of failures and a requested delay."""
        if requested_ns or (cause is Cause.GIVEN_BACK and failures <= 1):
            return requested_ns
        number = max(1, min(failures, len(self.delays_ns)))
        return self.delays_ns[number - 1]


def level_ms(level: int) -> int:
    """Return the delay of one of RocketMQ's levels; a higher level counts as the highest."""
    return DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1]


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
