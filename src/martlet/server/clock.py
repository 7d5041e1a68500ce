"""The clocks that are handed to the core: the running time and the date, nanoseconds since 1970.

::

    the system's monotonic clock   ------------ stopped (SIGSTOP) ------------->
    running time                   ------------|.....at most 1 s.....|--------->
    the system's wall clock        -----------------------> set ahead   ------->
    date                           -----------------------> followed    ------->

What lasts, such as message timeouts and leases, goes by the running time. So a wall clock that is
set ahead or back ends no timeout and prolongs none. Nor does time count in which the process did
not run, since it was stopped, or its machine was suspended: the clients' answers to that time wait
in the sockets.

What others have granted to this process, or may do without it, goes by `elapsed_ns`, which counts
all of that: a permission of the auth server, and being the primary.
"""

from __future__ import annotations

import time

BEAT_NS = 250_000_000
"""How often `beat` is called while the process runs."""
PAUSE_NS = 1_000_000_000
"""After so long without a beat the process was paused; this part of the pause counts."""
STEP_NS = 1_000_000_000
"""The wall clock is followed where it differs by more; smaller steps are those of NTP."""

_NEVER_NS = 1 << 62
_ELAPSED_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The monotonic clock of Linux stands still while the machine is suspended."""


def elapsed_ns() -> int:
    """Return a time that goes on while the process is stopped and while the machine is suspended;
    no step of the wall clock changes it.
    """
    return time.clock_gettime_ns(_ELAPSED_CLOCK)


class Clock:
    """The running time and the date of a process.

    Attributes:
        pauses: how often the process was paused since the first beat.
    """

    def __init__(self) -> None:
        self.pauses = 0
        self._beaten_ns = _NEVER_NS
        self._running_ahead_ns = self._wall_ahead_ns = time.time_ns() - time.monotonic_ns()
        self._followed_ns = 0

    def __call__(self) -> int:
        """Return the running time. It never goes back."""
        now_ns = time.monotonic_ns()
        if now_ns - self._beaten_ns > PAUSE_NS:
            self._running_ahead_ns -= now_ns - self._beaten_ns - PAUSE_NS
            self._beaten_ns = now_ns - PAUSE_NS
            self.pauses += 1
        return now_ns + self._running_ahead_ns

    def wall(self) -> int:
        """Return the date; it follows steps of the wall clock with the next beat."""
        return time.monotonic_ns() + self._wall_ahead_ns

    def beat(self) -> int | None:
        """Note that the process runs, and follow the wall clock. Returns by how much it was set
        where the date has moved against the running time, which pauses do too: what is due at a
        date has to be looked at. None where it has not.
        """
        self()
        self._beaten_ns = now_ns = time.monotonic_ns()
        step_ns = time.time_ns() - now_ns - self._wall_ahead_ns
        if abs(step_ns) <= STEP_NS:
            step_ns = 0
        self._wall_ahead_ns += step_ns
        ahead_ns = self._wall_ahead_ns - self._running_ahead_ns
        if ahead_ns == self._followed_ns:
            return None
        self._followed_ns = ahead_ns
        return step_ns
