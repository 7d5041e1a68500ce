"""Disk space: when checkpoints are made, and how a full log gets space again.

A checkpoint releases segments that are no longer needed.  One is made every
``--checkpoint-interval`` where something has changed, sooner under much load, and as soon as it
frees something where the log is full.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from martlet.broker.retention.checkpoint import allow_spares

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.retention.reclaim import HistoryReclaimer
    from martlet.server.flusher import Flusher
    from martlet.server.observability.event_log import EventLog

LOOK_NS = 1_000_000_000
"""How often `DiskSpace.look` is to be called."""
LOOK_WHILE_FULL_NS = 100_000_000
"""How often `DiskSpace.look_while_full` is."""
_RESTS = 9
"""After a search for space a full log rests for so many times its duration."""
_TIGHT_S = 10.0
"""For so long after it was full, a log is looked at as if it were."""
_MANY_SEGMENTS = 3
_MANY_BYTES = 64 << 20


class DiskSpace:
    """Makes space for a broker's log.

    Args:
        broker: has the log.
        disk: makes its checkpoints.
        relief: releases history.
        events: logs when messages are accepted again.
    """

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
        """Make a checkpoint where there is something to write down, or to release."""
        log = self._broker.log
        # A full log may not move at all; then only a checkpoint can free segments.
        moved = log.position != self._disk.checkpoint_position
        if moved or log.full is not None or await self._disk.find_room():
            await self._disk.checkpoint()
        else:
            allow_spares(self._broker)

    async def look(self) -> None:
        """Under much load, release segments while their pages are still in memory, to be
        written again: fresh ones cost several times as much.
        """
        log = self._broker.log
        if log.full is not None:
            self._relief.reclaim()
        self._events.look_for_room()
        written = log.position - max(self._disk.checkpoint_position, self._start_position)
        if written >= max(_MANY_SEGMENTS * log.segment_bytes, _MANY_BYTES):
            await self._disk.checkpoint()

    async def look_while_full(self) -> None:
        """Release segments as soon as consumers have finished their messages.

        That goes on for a while once there is some space: more follows, as a rule.
        """
        began_s = monotonic()
        if self._broker.log.full is not None:
            self._tight_until_s = began_s + _TIGHT_S
        if began_s < self._tight_until_s:
            await self._disk.free_room()
            await asyncio.sleep(_RESTS * (monotonic() - began_s))
