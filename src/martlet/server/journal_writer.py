"""The journal writer: when the cursors that moved are written down.

Each cursor that moved is written down within ``--journal-interval``, and sooner behind the batches
of a busy broker, since a message that was finished later than that comes again after a crash.  A
cursor costs some microseconds and up to 200 bytes of the log, so two things are bounded:

- Time: some cursors are written, and then the loop is left to others for 19 times as long, but
  never for longer than the interval.  With thousands of busy channels a round takes longer than
  the interval, and each cursor is written less often.
- Bytes: behind batches a few cursors go once the log has grown by several times their size.
"""

from __future__ import annotations

import asyncio
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore

REST = 19
"""After a write the journal rests for so many times as long: it takes 5 % of the loop's time."""
_BESIDE_BATCHES_S = 0.01
_BESIDE_BATCHES_BYTES = 1 << 16
"""Cursors are written behind batches no more often than that, nor before so much was stored."""
MAX_BESIDE_BATCHES = 8
"""So many cursors, the longest unwritten, go behind the batches of one turn."""


class JournalWriter:
    """Writes a broker's cursors.

    Args:
        broker: whose.
        interval_ns: what is asked for, and the longest rest between two writes.
    """

    def __init__(self, broker: BrokerCore, interval_ns: int) -> None:
        self._broker = broker
        self._max_rest_s = interval_ns / 1e9
        self._position = broker.log.position
        self._not_before_s = 0.0

    async def write(self) -> None:
        """Write all cursors that have moved by now, some at a time. Raises WritesRefused."""
        # The processor's time: one that other programs keep from us says nothing of the next write.
        began_s = thread_time()
        for _ in self._broker.write_some_journal():
            await asyncio.sleep(min(REST * (thread_time() - began_s), self._max_rest_s))
            began_s = thread_time()

    def turn_ended(self) -> None:
        """A turn's batches were written: write some cursors too, where that costs little beside
        them. Raises WritesRefused.
        """
        broker = self._broker
        grown_bytes = broker.log.position - self._position
        if grown_bytes < _BESIDE_BATCHES_BYTES or not broker.moved:
            return
        now_s = perf_counter()
        if now_s >= self._not_before_s:
            broker.moved.write(MAX_BESIDE_BATCHES)
            self._position = broker.log.position
            self._not_before_s = now_s + _BESIDE_BATCHES_S
