"""Disk space: schedule checkpoints, and free space in a full log.

A checkpoint releases segments that are no longer needed. One is made every
``--checkpoint-interval`` if something has changed, sooner under high load, and in a full log as
soon as it frees a segment.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from martlet.broker.broker import BrokerCore
from martlet.broker.retention.checkpoint import allow_spares
from martlet.broker.retention.eviction import HistoryReclaimer
from martlet.server.flusher import Flusher
from martlet.server.observability.event_log import EventLog

CHECK_NS = 1_000_000_000
"""The interval at which `DiskSpace.check` is called."""
CHECK_WHILE_FULL_NS = 100_000_000
"""The interval at which `DiskSpace.check_while_full` is called."""
_RESTS = 9
"""The pause after a search for space in a full log, as a multiple of its duration."""
_TIGHT_S = 10.0
"""The time for which a log that was full is still checked as a full one."""
_MANY_SEGMENTS = 3
_MANY_BYTES = 64 << 20


class DiskSpace:
    """Free space for a broker's log."""

    def __init__(
        self, broker: BrokerCore, disk: Flusher, relief: HistoryReclaimer, events: EventLog
    ) -> None:
        self._broker = broker
        self._disk = disk
        self._relief = relief
        self._events = events
        self._start_position = broker.log.position
        self._tight_until_s = 0.0

    async def keep_checkpoint(self) -> None:
        """Make a checkpoint if it would record a change or release a segment."""
        log = self._broker.log
        # A full log may accept nothing at all; then only a checkpoint can free segments.
        moved = log.position != self._disk.checkpoint_position
        if moved or log.full is not None or await self._disk.find_room():
            await self._disk.checkpoint()
        else:
            allow_spares(self._broker)

    async def check(self) -> None:
        """Under high load, release segments while their pages are still in memory, for reuse: fresh
        segments cost several times as much.
        """
        log = self._broker.log
        if log.full is not None:
            self._relief.reclaim()
        self._events.check_for_room()
        written = log.position - max(self._disk.checkpoint_position, self._start_position)
        if written >= max(_MANY_SEGMENTS * log.segment_bytes, _MANY_BYTES):
            await self._disk.checkpoint()

    async def check_while_full(self) -> None:
        """Release segments as soon as consumers have finished them, and a while after that."""
        began_s = monotonic()
        if self._broker.log.full is not None:
            self._tight_until_s = began_s + _TIGHT_S
        if began_s < self._tight_until_s:
            await self._disk.free_room()
            await asyncio.sleep(_RESTS * (monotonic() - began_s))
