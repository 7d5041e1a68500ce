"""Backoff after failures: the state machine of NSQ's clients, as a table.

When handlers fail, something that they need is probably down, and more messages would only fail as
well. So the consumer requests nothing from any broker for a while, then tries one message; its
result decides whether to wait for longer, or shorter, or to continue as before.

========  =====================================================================================
state     ready counts
========  =====================================================================================
OPEN      each connection has its part of ``max_in_flight``; the level is 0
BLOCKED   0 everywhere, until the timer has run
TRIAL     1 at one connection, 0 at the others, until a message is answered
========  =====================================================================================

The level is the number of times to double the wait. It changes only when a message is answered in
OPEN or in TRIAL: messages answered while BLOCKED were received before, so a thousand failures at
once are one step, and so are a thousand successes. `TABLE` has each step. Time and random numbers
are passed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

NOBODY_WAIT_S = 1.0
"""The wait before another trial if there is no connection for one."""


class BackoffState(Enum):
    """The state of the delivery."""

    OPEN = "open"
    BLOCKED = "blocked"
    TRIAL = "trial"


class BackoffEvent(Enum):
    """An event. The machine itself derives those with a condition in their name."""

    SUCCESS = auto()
    """A message was finished."""
    SUCCESS_AT_LEVEL_1 = auto()
    FAILURE = auto()
    """A message was requeued because it failed."""
    FAILURE_AT_LIMIT = auto()
    """It failed, and the next level would exceed the maximum wait."""
    REQUEUE = auto()
    """A message was requeued for another reason, which is neither success nor failure."""
    ELAPSED = auto()
    """The timer has expired."""
    ELAPSED_ALONE = auto()
    """The timer has expired, without a connection."""


class BackoffAction(Enum):
    """The action to take."""

    NOTHING = auto()
    BLOCK = auto()
    """Ready counts of 0 everywhere; start the timer."""
    WAIT = auto()
    """Start the timer again."""
    TRY = auto()
    """A ready count of 1 at any one connection."""
    RESUME = auto()
    """Give each connection its part."""


@dataclass(frozen=True, slots=True)
class BackoffTransition:
    """The effect of an event: the change of the level, the next state, and the action."""

    level_change: int
    state: BackoffState
    action: BackoffAction


_OPEN, _BLOCKED, _TRIAL = BackoffState
_STAY_OPEN = BackoffTransition(0, _OPEN, BackoffAction.NOTHING)
_STAY_BLOCKED = BackoffTransition(0, _BLOCKED, BackoffAction.NOTHING)
_STAY_IN_TRIAL = BackoffTransition(0, _TRIAL, BackoffAction.NOTHING)

TABLE: dict[tuple[BackoffState, BackoffEvent], BackoffTransition] = {
    (_OPEN, BackoffEvent.SUCCESS): _STAY_OPEN,
    (_OPEN, BackoffEvent.FAILURE): BackoffTransition(+1, _BLOCKED, BackoffAction.BLOCK),
    (_OPEN, BackoffEvent.FAILURE_AT_LIMIT): _STAY_OPEN,  # Backoff is disabled.
    (_OPEN, BackoffEvent.REQUEUE): _STAY_OPEN,
    (_OPEN, BackoffEvent.ELAPSED): _STAY_OPEN,
    (_OPEN, BackoffEvent.ELAPSED_ALONE): _STAY_OPEN,
    (_BLOCKED, BackoffEvent.SUCCESS): _STAY_BLOCKED,
    (_BLOCKED, BackoffEvent.SUCCESS_AT_LEVEL_1): _STAY_BLOCKED,
    (_BLOCKED, BackoffEvent.FAILURE): _STAY_BLOCKED,
    (_BLOCKED, BackoffEvent.FAILURE_AT_LIMIT): _STAY_BLOCKED,
    (_BLOCKED, BackoffEvent.REQUEUE): _STAY_BLOCKED,
    (_BLOCKED, BackoffEvent.ELAPSED): BackoffTransition(0, _TRIAL, BackoffAction.TRY),
    (_BLOCKED, BackoffEvent.ELAPSED_ALONE): BackoffTransition(0, _BLOCKED, BackoffAction.WAIT),
    (_TRIAL, BackoffEvent.SUCCESS): BackoffTransition(-1, _BLOCKED, BackoffAction.BLOCK),
    (_TRIAL, BackoffEvent.SUCCESS_AT_LEVEL_1): BackoffTransition(-1, _OPEN, BackoffAction.RESUME),
    (_TRIAL, BackoffEvent.FAILURE): BackoffTransition(+1, _BLOCKED, BackoffAction.BLOCK),
    (_TRIAL, BackoffEvent.FAILURE_AT_LIMIT): BackoffTransition(0, _BLOCKED, BackoffAction.BLOCK),
    (_TRIAL, BackoffEvent.REQUEUE): BackoffTransition(0, _BLOCKED, BackoffAction.BLOCK),
    (_TRIAL, BackoffEvent.ELAPSED): _STAY_IN_TRIAL,
    (_TRIAL, BackoffEvent.ELAPSED_ALONE): _STAY_IN_TRIAL,
}
"""The effect of each event in each state; other pairs cannot occur, since only OPEN has level 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureBackoff:
    """The waits of the backoff.

    Attributes:
        multiplier_s: the wait is this times two to the power of the level, in seconds.
        max_s: the maximum wait, in seconds; 0 disables backoff.
        strategy: ``exponential`` waits for exactly that time, ``full_jitter`` for a random time
            from 0 to that, so that many consumers do not all try in the same instant.
    """

    multiplier_s: float = 1.0
    max_s: float = 120.0
    strategy: Literal["exponential", "full_jitter"] = "exponential"

    def __post_init__(self) -> None:
        for name, value in (("multiplier_s", self.multiplier_s), ("max_s", self.max_s)):
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name}={value} must be a number of seconds, 0 or more")
        if self.strategy not in ("exponential", "full_jitter"):
            raise ValueError(f"strategy={self.strategy!r} must be exponential or full_jitter")

    def wait_s(self, level: int, chance: Callable[[], float]) -> float:
        """Return the wait of a level, regardless of the maximum."""
        full_s = self.multiplier_s * 2.0 ** min(level, 1000)
        return full_s if self.strategy == "exponential" else full_s * chance()


class FailureGate:
    """A consumer's state in the table; ``chance`` returns a random number from 0 to below 1."""

    def __init__(self, settings: FailureBackoff, chance: Callable[[], float]) -> None:
        self.state = BackoffState.OPEN
        self.level = 0
        """The number of times the wait is doubled; 0 if open."""
        self.wait_s = 0.0
        """The timer's duration, after `BackoffAction.BLOCK` and `BackoffAction.WAIT`."""
        self._settings = settings
        self._chance = chance

    def feed(self, event: BackoffEvent, *, is_connected: bool = True) -> BackoffAction:
        """Take the step of an event, and return the action to take."""
        step = TABLE[self.state, self._classify(event, is_connected)]
        self.level += step.level_change
        self.state = step.state
        if step.action is BackoffAction.BLOCK:
            wait_s = self._settings.wait_s(self.level, self._chance)
            self.wait_s = min(wait_s, self._settings.max_s)
        elif step.action is BackoffAction.WAIT:
            self.wait_s = NOBODY_WAIT_S
        return step.action

    def _classify(self, event: BackoffEvent, is_connected: bool) -> BackoffEvent:
        if event is BackoffEvent.SUCCESS and self.level == 1:
            return BackoffEvent.SUCCESS_AT_LEVEL_1
        if event is BackoffEvent.FAILURE and self.state is not BackoffState.BLOCKED:
            next_s = self._settings.wait_s(self.level + 1, self._chance)
            if next_s > self._settings.max_s or not self._settings.max_s:
                return BackoffEvent.FAILURE_AT_LIMIT
        if event is BackoffEvent.ELAPSED and not is_connected:
            return BackoffEvent.ELAPSED_ALONE
        return event
