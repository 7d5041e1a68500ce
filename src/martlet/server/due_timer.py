"""The due timer: runs the core's scheduled work when it is due, and follows the wall clock."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from martlet.server.clock import BEAT_NS
from martlet.text import SECOND_NS, format_duration

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.server.clock import Clock

_GRACE_S = 0.1
"""After a pause nothing times out for this long."""


class DueTimer:
    """Calls `BrokerCore.run` at the times of its schedule.

    Args:
        broker: has the schedule.
        clock: the broker's.
        log: takes the errors.
    """

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
