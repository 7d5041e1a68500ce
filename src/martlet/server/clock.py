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

import asyncio
import logging
import time
from time import perf_counter_ns
from typing import TYPE_CHECKING

from martlet.text import MILLISECOND_NS, SECOND_NS, format_duration

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore

BEAT_NS = 250_000_000
"""How often `beat` is called while the process runs."""
PAUSE_NS = 1_000_000_000
"""After so long without a beat the process was paused; this part of the pause counts."""
STEP_NS = 1_000_000_000
"""The wall clock is followed where it differs by more; smaller steps are those of NTP."""

_NEVER_NS = 1 << 62
_ELAPSED_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The monotonic clock of Linux stands still while the machine is suspended."""
SLICE_NS = 2 * MILLISECOND_NS
_GRACE_S = 0.1
"""After a pause nothing times out for this long."""


def elapsed_ns() -> int:
    """Return a time that also runs while the process is stopped or the machine suspended."""
    return time.clock_gettime_ns(_ELAPSED_CLOCK)


def _wall_ahead_ns() -> int:
    """Return the wall clock minus the monotonic one, by the quickest of some readings of both: this
    process may be interrupted between two.
    """
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(5)]
    return min((after - before, wall - after) for before, wall, after in readings)[1]


class Clock:
    """The running time and the date of a process.

    Attributes:
        pauses: how often the process was paused since the first beat.
    """

    def __init__(self) -> None:
        self.pauses = 0
        self._beaten_ns = _NEVER_NS
        self._running_ahead_ns = self._wall_ahead_ns = _wall_ahead_ns()
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
        self._beaten_ns = time.monotonic_ns()
        step_ns = _wall_ahead_ns() - self._wall_ahead_ns
        if abs(step_ns) <= STEP_NS:
            step_ns = 0
        self._wall_ahead_ns += step_ns
        ahead_ns = self._wall_ahead_ns - self._running_ahead_ns
        if ahead_ns == self._followed_ns:
            return None
        self._followed_ns = ahead_ns
        return step_ns


class TimeSlice:
    """The time slices of one job; the first begins at once.

    Put ``await pace.rest()`` where the job may be interrupted: after each step of some
    microseconds. A count taken in one slice may be outdated by the next.
    """

    __slots__ = ("_until_ns",)

    def __init__(self) -> None:
        self._until_ns = perf_counter_ns() + SLICE_NS

    @property
    def over(self) -> bool:
        """Return whether the slice is over."""
        return perf_counter_ns() > self._until_ns

    async def rest(self) -> None:
        """Yield to the event loop if the slice is over."""
        if perf_counter_ns() > self._until_ns:
            await asyncio.sleep(0)
            self._until_ns = perf_counter_ns() + SLICE_NS


class DueTimer:
    """Calls `BrokerCore.run` at the times of its schedule."""

    def __init__(self, broker: BrokerCore, clock: Clock, log: logging.Logger) -> None:
        self._broker = broker
        self._clock = clock
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._pauses = 0

    def start(self) -> None:
        """Run all due work, now and from now on."""
        self._broker.schedule.on_earlier = self._set
        self._set(self._broker.run())
        self._beat()

    def _beat(self) -> None:
        """Note that the process runs; look at what is due at dates after the wall clock was set."""
        self._beating = self._loop.call_later(BEAT_NS / SECOND_NS, self._beat)
        step_ns = self._clock.beat()
        if step_ns is None:
            return
        if step_ns:
            self._log.warning(
                "CLOCK: the wall clock was set %s by %s: what is due at a date follows it, timeouts"
                " and leases do not",
                "ahead" if step_ns > 0 else "back",
                format_duration(abs(step_ns)),
            )
        self._broker.follow_wall()
        self._set(self._broker.schedule.next_ns())

    def close(self) -> None:
        """Stop the timers."""
        self._stop_timer()
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, time_ns: int | None) -> None:
        self._stop_timer()
        if time_ns is not None:
            delay_ns = max(0, time_ns - self._clock())
            self._timer = self._loop.call_later(delay_ns / 1e9, self._run)

    def _run(self) -> None:
        self._timer = None
        self._clock()
        if self._clock.pauses != self._pauses:
            self._pauses = self._clock.pauses
            # Answers may lie in the sockets, which the loop reads first.
            self._timer = self._loop.call_later(_GRACE_S, self._run)
            return
        try:
            self._broker.run()
        except Exception:
            # Without the next line the timer would never fire again.
            self._log.exception("something that is due failed; it is tried again")
        self._set(self._broker.schedule.next_ns())
