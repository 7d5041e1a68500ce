"""Backing off when messages fail: the state machine of NSQ's clients, as a table.

Where handlers fail, what they need is probably down, and more messages would only fail as well.  So
nothing more is asked for, anywhere, for a while; then one message is tried; its result
decides whether to wait for longer, or shorter, or to continue as before.

========  =====================================================================================
state     ready counts
========  =====================================================================================
OPEN      each connection has its part of ``max_in_flight``; the level is 0
BLOCKED   0 everywhere, until the timer has run
TRIAL     1 at one connection, 0 at the others, until a message is answered
========  =====================================================================================

The level is how often to double the wait.  It changes only when a message is answered in OPEN or in
TRIAL: what is still answered while BLOCKED was received before, so a thousand failures at once are
one step, and so are a thousand successes.  `TABLE` has each step; nothing here reads a clock or
draws random numbers: both are handed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

NOBODY_WAIT_S = 1.0
"""Where there is no connection to try a message at, it is tried so much later."""


class BackoffState(Enum):
    """What may flow."""

    OPEN = "open"
    BLOCKED = "blocked"
    TRIAL = "trial"


class BackoffEvent(Enum):
    """What happened.  The machine itself tells apart those that end in a condition."""

    SUCCESS = auto()
    """A message was finished."""
    SUCCESS_AT_LEVEL_1 = auto()
    FAILURE = auto()
    """A message was requeued because it failed."""
    FAILURE_AT_LIMIT = auto()
    """The next level would wait for longer than is allowed."""
    REQUEUE = auto()
    """A message was requeued for another reason, which says neither that it works nor that not."""
    ELAPSED = auto()
    """The timer has run."""
    ELAPSED_ALONE = auto()
    """The same, without a connection."""


class BackoffAction(Enum):
    """What is to be done."""

    NOTHING = auto()
    BLOCK = auto()
    """Ready counts of 0 everywhere; start the timer."""
    WAIT = auto()
    """Start the timer again."""
    TRY = auto()
    """A ready count of 1 at one connection, whichever."""
    RESUME = auto()
    """To each connection its part."""


@dataclass(frozen=True, slots=True)
class BackoffTransition:
    """What an event does: the change of the level, the state after it, and what is to be done."""

    level_change: int
    state: BackoffState
    action: BackoffAction


_STAY_OPEN = BackoffTransition(0, BackoffState.OPEN, BackoffAction.NOTHING)
_STAY_BLOCKED = BackoffTransition(0, BackoffState.BLOCKED, BackoffAction.NOTHING)
_STAY_IN_TRIAL = BackoffTransition(0, BackoffState.TRIAL, BackoffAction.NOTHING)

TABLE: dict[tuple[BackoffState, BackoffEvent], BackoffTransition] = {
    (BackoffState.OPEN, BackoffEvent.SUCCESS): _STAY_OPEN,
    (BackoffState.OPEN, BackoffEvent.FAILURE): BackoffTransition(
        +1, BackoffState.BLOCKED, BackoffAction.BLOCK
    ),
    (BackoffState.OPEN, BackoffEvent.FAILURE_AT_LIMIT): _STAY_OPEN,  # Backing off is off.
    (BackoffState.OPEN, BackoffEvent.REQUEUE): _STAY_OPEN,
    (BackoffState.OPEN, BackoffEvent.ELAPSED): _STAY_OPEN,
    (BackoffState.OPEN, BackoffEvent.ELAPSED_ALONE): _STAY_OPEN,
    (BackoffState.BLOCKED, BackoffEvent.SUCCESS): _STAY_BLOCKED,
    (BackoffState.BLOCKED, BackoffEvent.SUCCESS_AT_LEVEL_1): _STAY_BLOCKED,
    (BackoffState.BLOCKED, BackoffEvent.FAILURE): _STAY_BLOCKED,
    (BackoffState.BLOCKED, BackoffEvent.FAILURE_AT_LIMIT): _STAY_BLOCKED,
    (BackoffState.BLOCKED, BackoffEvent.REQUEUE): _STAY_BLOCKED,
    (BackoffState.BLOCKED, BackoffEvent.ELAPSED): BackoffTransition(
        0, BackoffState.TRIAL, BackoffAction.TRY
    ),
    (BackoffState.BLOCKED, BackoffEvent.ELAPSED_ALONE): BackoffTransition(
        0, BackoffState.BLOCKED, BackoffAction.WAIT
    ),
    (BackoffState.TRIAL, BackoffEvent.SUCCESS): BackoffTransition(
        -1, BackoffState.BLOCKED, BackoffAction.BLOCK
    ),
    (BackoffState.TRIAL, BackoffEvent.SUCCESS_AT_LEVEL_1): BackoffTransition(
        -1, BackoffState.OPEN, BackoffAction.RESUME
    ),
    (BackoffState.TRIAL, BackoffEvent.FAILURE): BackoffTransition(
        +1, BackoffState.BLOCKED, BackoffAction.BLOCK
    ),
    (BackoffState.TRIAL, BackoffEvent.FAILURE_AT_LIMIT): BackoffTransition(
        0, BackoffState.BLOCKED, BackoffAction.BLOCK
    ),
    (BackoffState.TRIAL, BackoffEvent.REQUEUE): BackoffTransition(
        0, BackoffState.BLOCKED, BackoffAction.BLOCK
    ),
    (BackoffState.TRIAL, BackoffEvent.ELAPSED): _STAY_IN_TRIAL,
    (BackoffState.TRIAL, BackoffEvent.ELAPSED_ALONE): _STAY_IN_TRIAL,
}
"""Each state with each event; what is not here cannot be, since only OPEN has level 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureBackoff:
    """How long nothing is asked for when messages fail.

    Attributes:
        multiplier_s: a level waits for this times two to the power of the level, in seconds.
        max_s: never longer than this, in seconds; 0 never backs off.
        strategy: ``exponential`` waits for just so long, ``full_jitter`` for a time from 0 to that
            which is left to chance, so that many consumers do not all try in the same instant.
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
        """How long that level waits, without regard to the maximum."""
        full_s = self.multiplier_s * 2.0 ** min(level, 1000)
        return full_s if self.strategy == "exponential" else full_s * chance()


class FailureGate:
    """A consumer's state in the table.

    Args:
        settings: how long to wait.
        chance: returns a random number from 0 to below 1.

    Attributes:
        state: the present one.
        level: how often the wait is doubled; 0 where it is open.
        wait_s: what to set the timer to, after `BackoffAction.BLOCK` and `BackoffAction.WAIT`.
    """

    def __init__(self, settings: FailureBackoff, chance: Callable[[], float]) -> None:
        self.state = BackoffState.OPEN
        self.level = 0
        self.wait_s = 0.0
        self._settings = settings
        self._chance = chance

    def feed(self, event: BackoffEvent, *, is_connected: bool = True) -> BackoffAction:
        """Take a step for what happened, and return what is to be done."""
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
