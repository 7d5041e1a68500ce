"""Backing off when messages fail: the state machine of NSQ's clients, as a table.

Where handlers fail, what they need is probably down, and more messages would only fail as well.  So
nothing more is asked for, anywhere, for a while; then one message is tried; and how it fares tells
whether to wait for longer, or shorter, or to go on as before.

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
throws dice: both are handed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

NOBODY_WAIT_S = 1.0
"""Where there is no connection to try a message at, it is tried so much later."""


class State(Enum):
    """What may flow."""

    OPEN = "open"
    BLOCKED = "blocked"
    TRIAL = "trial"


class Event(Enum):
    """What happened.  Those that end in a condition are told apart by the machine itself."""

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


class Action(Enum):
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
class Step:
    """What an event does: the change of the level, the state after it, and what is to be done."""

    level_change: int
    state: State
    action: Action


_STAY_OPEN = Step(0, State.OPEN, Action.NOTHING)
_STAY_BLOCKED = Step(0, State.BLOCKED, Action.NOTHING)
_STAY_IN_TRIAL = Step(0, State.TRIAL, Action.NOTHING)

TABLE: dict[tuple[State, Event], Step] = {
    (State.OPEN, Event.SUCCESS): _STAY_OPEN,
    (State.OPEN, Event.FAILURE): Step(+1, State.BLOCKED, Action.BLOCK),
    (State.OPEN, Event.FAILURE_AT_LIMIT): _STAY_OPEN,  # Backing off is off.
    (State.OPEN, Event.REQUEUE): _STAY_OPEN,
    (State.OPEN, Event.ELAPSED): _STAY_OPEN,
    (State.OPEN, Event.ELAPSED_ALONE): _STAY_OPEN,
    (State.BLOCKED, Event.SUCCESS): _STAY_BLOCKED,
    (State.BLOCKED, Event.SUCCESS_AT_LEVEL_1): _STAY_BLOCKED,
    (State.BLOCKED, Event.FAILURE): _STAY_BLOCKED,
    (State.BLOCKED, Event.FAILURE_AT_LIMIT): _STAY_BLOCKED,
    (State.BLOCKED, Event.REQUEUE): _STAY_BLOCKED,
    (State.BLOCKED, Event.ELAPSED): Step(0, State.TRIAL, Action.TRY),
    (State.BLOCKED, Event.ELAPSED_ALONE): Step(0, State.BLOCKED, Action.WAIT),
    (State.TRIAL, Event.SUCCESS): Step(-1, State.BLOCKED, Action.BLOCK),
    (State.TRIAL, Event.SUCCESS_AT_LEVEL_1): Step(-1, State.OPEN, Action.RESUME),
    (State.TRIAL, Event.FAILURE): Step(+1, State.BLOCKED, Action.BLOCK),
    (State.TRIAL, Event.FAILURE_AT_LIMIT): Step(0, State.BLOCKED, Action.BLOCK),
    (State.TRIAL, Event.REQUEUE): Step(0, State.BLOCKED, Action.BLOCK),
    (State.TRIAL, Event.ELAPSED): _STAY_IN_TRIAL,
    (State.TRIAL, Event.ELAPSED_ALONE): _STAY_IN_TRIAL,
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
    """Where a consumer stands in the table.

    Args:
        settings: how long to wait.
        chance: throws the dice: from 0 to below 1.

    Attributes:
        state: where it stands.
        level: how often the wait is doubled; 0 where it is open.
        wait_s: what to set the timer to, after `Action.BLOCK` and `Action.WAIT`.
    """

    def __init__(self, settings: FailureBackoff, chance: Callable[[], float]) -> None:
        self.state = State.OPEN
        self.level = 0
        self.wait_s = 0.0
        self._settings = settings
        self._chance = chance

    def feed(self, event: Event, *, is_connected: bool = True) -> Action:
        """This happened: go on, and tell what is to be done."""
        step = TABLE[self.state, self._told_apart(event, is_connected)]
        self.level += step.level_change
        self.state = step.state
        if step.action is Action.BLOCK:
            wait_s = self._settings.wait_s(self.level, self._chance)
            self.wait_s = min(wait_s, self._settings.max_s)
        elif step.action is Action.WAIT:
            self.wait_s = NOBODY_WAIT_S
        return step.action

    def _told_apart(self, event: Event, is_connected: bool) -> Event:
        if event is Event.SUCCESS and self.level == 1:
            return Event.SUCCESS_AT_LEVEL_1
        if event is Event.FAILURE and self.state is not State.BLOCKED:
            next_s = self._settings.wait_s(self.level + 1, self._chance)
            if next_s > self._settings.max_s or not self._settings.max_s:
                return Event.FAILURE_AT_LIMIT
        if event is Event.ELAPSED and not is_connected:
            return Event.ELAPSED_ALONE
        return event
