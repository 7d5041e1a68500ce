"""The journal writer: schedules when moved cursors are written.

Each moved cursor is written within ``--journal-interval``, and sooner behind the batches of a busy
broker, since a crash redelivers each message that was finished after the last write. A cursor costs
some microseconds and up to 200 bytes of the log, so two things are bounded:

- Time: after some cursors the loop serves other work for 19 times as long, but never for longer
  than the interval.  With thousands of busy channels a round takes longer than the interval, and
  each cursor is written less often.
- Bytes: behind batches a few cursors go once the log has grown by several times their size.
"""

from __future__ import annotations

import asyncio
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore

REST = 19
"""The pause after a write, as a multiple of its duration: the journal takes 5 % of the time."""
_BESIDE_BATCHES_S = 0.01
_BESIDE_BATCHES_BYTES = 1 << 16
"""The minimum pause between writes behind batches, and the minimum of bytes stored between them."""
MAX_BESIDE_BATCHES = 8
"""The maximum number of cursors, those unwritten for longest, behind the batches of one turn."""


class JournalWriter:
    """Write a broker's cursors.

    Args:
        broker: owns the cursors.
        interval_ns: the maximum pause between two writes.
    """

    def __init__(self, broker: BrokerCore, interval_ns: int) -> None:
        self._broker = broker
        self._max_rest_s = interval_ns / 1e9
        self._position = broker.log.position
        self._not_before_s = 0.0

    async def write(self) -> None:
        """Write all cursors that have moved by now, a few at a time. Raises WritesRefused."""
        # Processor time, not wall time: a wait for other programs does not predict the next write.
        began_s = thread_time()
        for _ in self._broker.write_some_journal():
            await asyncio.sleep(min(REST * (thread_time() - began_s), self._max_rest_s))
            began_s = thread_time()

    def turn_ended(self) -> None:
        """Write some cursors after a turn's batches, if they add little. Raises WritesRefused."""
        broker = self._broker
        grown_bytes = broker.log.position - self._position
        if grown_bytes < _BESIDE_BATCHES_BYTES or not broker.moved:
            return
        now_s = perf_counter()
        if now_s >= self._not_before_s:
            broker.moved.write(MAX_BESIDE_BATCHES)
            self._position = broker.log.position
            self._not_before_s = now_s + _BESIDE_BATCHES_S
