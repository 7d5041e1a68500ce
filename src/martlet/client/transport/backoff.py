"""Delays before another try: longer each time, up to a limit, with jitter."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """A delay that doubles with each attempt.

    Attributes:
        first_s: before the second attempt, in seconds.
        max_s: the maximum, in seconds.
        jitter: the random part of the delay, 0 to 1, so that a thousand clients of a restarted
            broker do not all reconnect in the same instant.
    """

    first_s: float = 0.05
    max_s: float = 5.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.first_s <= self.max_s:
            raise ValueError(f"first_s={self.first_s} must be from 0 to max_s={self.max_s}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter={self.jitter} must be from 0 to 1")

    def delay_s(self, attempt: int, chance: float | None = None) -> float:
        """Return the seconds to wait after a failed attempt, the first being 1.

        ``chance``, from 0 to 1, replaces the random number in tests.
        """
        if attempt < 1:
            return 0.0
        # 2.0**1023 is the largest power that a float holds.
        full = min(self.max_s, self.first_s * 2.0 ** min(attempt - 1, 1000))
        if chance is None:
            chance = random.random()
        return full * (1 - self.jitter * chance)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearDelay:
    """A delay that grows by the same step with each attempt, as go-nsq requeues messages.

    Attributes:
        step_s: the delay after the first attempt, and the increase for each further one: go-nsq's
            ``default_requeue_delay``, in seconds.
        max_s: the maximum: ``max_requeue_delay``, in seconds.
    """

    step_s: float = 90.0
    max_s: float = 900.0

    def __post_init__(self) -> None:
        if not 0 <= self.step_s <= self.max_s:
            raise ValueError(f"step_s={self.step_s} must be from 0 to max_s={self.max_s}")

    def delay_s(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt, the first being 1."""
        return min(self.max_s, self.step_s * max(attempt, 0))
