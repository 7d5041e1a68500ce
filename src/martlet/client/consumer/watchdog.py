"""The watchdog, which detects a consumer that has silently stopped, and logs why.

A consumer without messages and a stalled one look alike from outside. From inside they differ:
messages wait and none is taken or answered, or nothing is requested though nothing forbids it, or
an overdue timer has not run. State and time are passed in.

It also detects a blocked event loop: while a handler blocks it no heartbeat is answered, and after
two missed ones the broker closes the connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from martlet.client.consumer.handling.backoff import BackoffState
from martlet.client.hooks import guarded

logger = logging.getLogger("martlet.client")

MAX_PAUSE_S = 1.0
LATE_S = 1.0
"""The minimum time of a blocked loop that is logged."""
QUIET_S = 60.0
"""The minimum interval between two such lines."""


@dataclass(frozen=True, slots=True)
class ConsumerSnapshot:
    """A consumer's state, as the watchdog sees it."""

    connected: int
    """The number of connected brokers."""
    ready: int
    """The sum of its ready counts."""
    is_held_back: bool
    """Whether it must not request messages."""
    backoff: BackoffState
    trial_at_s: float
    """When the next trial of its backoff is due."""
    waiting: int
    """The number of messages that wait to be handed out."""
    progress: Hashable
    """A value that changes whenever a message is handed out or answered."""


class Watchdog:
    """Check a consumer at intervals.

    Args:
        after_s: the time without progress that is a stall; 0 never checks.
        on_stall: called with the cause, once for each stall.
    """

    def __init__(
        self,
        after_s: float,
        poll: Callable[[], ConsumerSnapshot],
        on_stall: Callable[[str], object] | None = None,
    ) -> None:
        if after_s < 0:
            raise ValueError(f"stall_after_s={after_s}: must be at least 0, for never")
        self.stall = ""
        """The cause of the present stall; empty for none."""
        self._after_s = after_s
        self._poll = poll
        self._on_stall = guarded("on_stall", on_stall) if on_stall is not None else None
        self._since_s: dict[str, float] = {}
        self._progress: Hashable = None
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_until_s = 0.0

    def begin(self) -> None:
        """Start checking."""
        if self._after_s:
            self._pause(time.monotonic())

    def end(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def report(self, cause: str) -> None:
        """Report a stall."""
        logger.error("the consumer has stalled: %s", cause)
        if self._on_stall is not None:
            self._on_stall(cause)

    def check(self, snapshot: ConsumerSnapshot, now_s: float) -> str:
        """Return the cause of a stall; empty for none."""
        has_progressed = snapshot.progress != self._progress
        self._progress = snapshot.progress
        conditions = {
            "handlers": snapshot.waiting > 0 and not has_progressed,
            "ready": (
                snapshot.connected > 0
                and snapshot.ready == 0
                and snapshot.backoff is not BackoffState.BLOCKED
                and not snapshot.is_held_back
            ),
            "timer": snapshot.backoff is BackoffState.BLOCKED
            and not snapshot.is_held_back
            and now_s > snapshot.trial_at_s,
        }
        for name, holds in conditions.items():
            if holds:
                self._since_s.setdefault(name, now_s)
            else:
                self._since_s.pop(name, None)
        for name, since_s in self._since_s.items():
            for_s = now_s - since_s
            if for_s >= self._after_s:
                return _CAUSES[name].format(for_s=for_s, snapshot=snapshot)
        return ""

    def _pause(self, now_s: float) -> None:
        pause_s = min(MAX_PAUSE_S, self._after_s / 4)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(pause_s, self._tick, now_s + pause_s)

    def _tick(self, due_s: float) -> None:
        now_s = time.monotonic()
        late_s = max(0.0, now_s - due_s)
        self._check_loop(late_s, now_s)
        for name in self._since_s:
            self._since_s[name] += late_s  # Nothing could progress while the loop was blocked.
        was = bool(self.stall)
        self.stall = self.check(self._poll(), now_s)
        if self.stall and not was:
            self.report(self.stall)
        elif was and not self.stall:
            logger.warning("the consumer progresses again")
        self._pause(now_s)

    def _check_loop(self, late_s: float, now_s: float) -> None:
        if late_s > LATE_S and now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + QUIET_S
            logger.warning(
                "the event loop was held up for %.3g s, while no heartbeat is answered: a handler"
                " that blocks is for run(..., on='threads') or on='processes'",
                late_s,
            )


_CAUSES = {
    "handlers": (
        "for {for_s:.3g} s no message was handed out or answered, though {snapshot.waiting} wait"
        " here: handlers hang, or no messages are taken"
    ),
    "ready": (
        "for {for_s:.3g} s no messages were requested (ready counts are 0), though"
        " {snapshot.connected} brokers are connected and nothing holds it back"
    ),
    "timer": ("the backoff was over {for_s:.3g} s ago, and its timer has not run"),
}
