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
`martlet.broker.queue.started`), and is redelivered at once.  The frame's attempts count deliveries,
as NSQ's clients expect.  (RocketMQ counts the times that a message was consumed again, so its 16 is
17 here.)  The delays are RocketMQ's levels from the third on, unless others are set: 10 s, 30 s, 1
min and so on up to 2 h.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

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
