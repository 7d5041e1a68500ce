"""Staging: collects the messages for one queue that arrive in one turn of the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from martlet.broker.queue.queue_log import MAX_BATCH_BYTES, QueueLog, Receipt

if TYPE_CHECKING:
    from martlet.broker.topic.retained import Retained
    from martlet.log.batch import LogBatch
    from martlet.native.raw_bodies import Bodies


class StagingContext(Protocol):
    """The broker's services for staging."""

    def staged(self, topic: Retained) -> LogBatch:
        """Return a new batch for a topic's messages; the former one is appended."""

    def commit_topic(self, topic: Retained, deliver_at_ns: int) -> Receipt:
        """Append the staged messages of a topic, for delivery at a time, 0 for at once."""


class StagedQueue:
    """A queue that messages are staged for; the base of implementations of `Retained`.

    Args:
        context: the broker.
        queue: the queue.
    """

    def __init__(self, context: StagingContext, queue: QueueLog) -> None:
        self._staging = context
        self.queue = queue

    def stage(
        self,
        bodies: Bodies,
        deliver_at_ns: int = 0,
        properties: Sequence[tuple[int, bytes]] = (),
    ) -> Receipt:
        """Stage messages, to be appended at the end of this turn.

        Bodies are copied, so the caller may use their buffer again.  `properties` has the number,
        rising, and the packed properties (see `martlet.properties.model`) of each message that has
        any.
        """
        queue = self.queue
        batch = queue.batch
        if batch is None or deliver_at_ns or batch.end > MAX_BATCH_BYTES:
            batch = self._staging.staged(cast("Retained", self))
        if properties:
            batch.set_properties(batch.count, properties)
        batch.add_bodies(bodies)
        if deliver_at_ns:
            return self._staging.commit_topic(cast("Retained", self), deliver_at_ns)
        return queue.receipt

    @property
    def next_offset(self) -> int:
        """The offset of the next staged message."""
        batch = self.queue.batch
        return self.queue.end_offset + (0 if batch is None else batch.count)
