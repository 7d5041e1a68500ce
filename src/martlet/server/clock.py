"""The clock that is handed to the core: nanoseconds since 1970 that never go back."""

from __future__ import annotations

import time

_STEP_NS = 1_000_000_000


class Clock:
    """Wall-clock time that runs as evenly as the monotonic clock.

    A wall clock that is set back would stop all timeouts for that long.  This one follows a step of
    the wall clock only in `adjust`, and never backwards.
    """

    def __init__(self) -> None:
        self._shift_ns = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> int:
        """Now."""
        return time.monotonic_ns() + self._shift_ns

    def adjust(self) -> bool:
        """Follow the wall clock where it is ahead by more than a second. Returns whether it was:
        timers then have to be set anew.
        """
        shift_ns = time.time_ns() - time.monotonic_ns()
        if shift_ns - self._shift_ns <= _STEP_NS:
            return False
        self._shift_ns = shift_ns
        return True
