"""Relief: history goes at once where a segment finds no room, so that nobody is refused for it.

As a rule a checkpoint lets history go, by its limits and by how full the disk is.  Publishers may
be quicker than that.  So what stood in no channel's way when the last checkpoint was made durable,
and does not now, may go at any time between two of them: the checkpoint does not need it, and
whatever was written down since stands behind it.  What channels need is not touched, nor what
nobody needed even then: that has gone already.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from martlet.broker.retention.checkpoint import forget, needs
from martlet.log.retention import needed_bytes
from martlet.log.storage import StorageFull

if TYPE_CHECKING:
    from martlet.broker.retention.context import RetentionContext


class HistoryReclaimer:
    """Makes room in a broker's log, of history alone.

    Args:
        broker: whose log; its `on_full` is taken.
    """

    def __init__(self, broker: RetentionContext) -> None:
        self._broker = broker
        self.evicted_count = 0
        """How many segments went though channels needed them."""
        broker.log.on_full = self.make_room

    def make_room(self) -> bool:
        """Take the oldest segment that holds nothing but history. False where there is none."""
        broker = self._broker
        log = broker.log
        if not broker.history_bases:
            return False
        needed = needed_bytes(log.segments, needs(broker))
        for segment, bytes_needed in zip(log.segments, needed, strict=True):
            is_history = segment.base in broker.history_bases and not bytes_needed
            if is_history and log.is_releasable(segment):
                log.retire(segment)
                forget(broker, segment)
                return True
        return False

    def relieve(self) -> None:
        """Make room where a piece of the journal found none: nobody else may come to do it."""
        log = self._broker.log
        log.refresh_full()
        with suppress(StorageFull):
            while log.full is not None and log.failed is None and self.make_room():
                log.refresh_full()
