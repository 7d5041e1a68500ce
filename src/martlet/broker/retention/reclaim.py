"""Reclaim: delete history at once when a segment cannot be allocated, before a publish is refused.

As a rule a checkpoint deletes history, by its limits and the disk usage. Publishers may be faster.
So a segment that held only history when the last checkpoint was made durable, and still does, may
be deleted at any time between two checkpoints: the checkpoint does not need it, and later journal
entries are behind it. Segments that channels need are not deleted; those that nothing needed at the
checkpoint are gone already.
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
    """Frees space in a broker's log by deleting history only.

    Args:
        broker: the broker; sets its log's `on_full`.
    """

    def __init__(self, broker: RetentionContext) -> None:
        self._broker = broker
        self.evicted_count = 0
        """The number of segments deleted although channels needed them."""
        broker.log.on_full = self.make_room

    def make_room(self) -> bool:
        """Delete the oldest segment that holds only history. Returns False where there is none."""
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

    def reclaim(self) -> None:
        """Free space when a journal write was refused: no publish may come to trigger it."""
        log = self._broker.log
        log.refresh_full()
        with suppress(StorageFull):
            while log.full is not None and log.failed is None and self.make_room():
                log.refresh_full()
