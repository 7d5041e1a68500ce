"""The due timer: runs the core's scheduled work when it is due."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.server.clock import Clock


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

    def start(self) -> None:
        """Run all due work, now and from now on."""
        self._broker.schedule.on_earlier = self._set
        self._set(self._broker.run())

    def follow_clock(self) -> None:
        """Reset the timer after the wall clock was set forward."""
        if self._clock.adjust():
            self._set(self._broker.schedule.next_ns())

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, time_ns: int | None) -> None:
        self.close()
        if time_ns is not None:
            delay_ns = max(0, time_ns - self._clock())
            self._timer = self._loop.call_later(delay_ns / 1e9, self._run)

    def _run(self) -> None:
        self._timer = None
        try:
            self._broker.run()
        except Exception:
            # Without the next line the timer would never fire again.
            self._log.exception("something that is due failed; it is tried again")
        self._set(self._broker.schedule.next_ns())
