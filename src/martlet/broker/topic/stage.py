"""Staging: messages for one queue, gathered to be appended with all that a turn brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from martlet.broker.queue.queue_log import MAX_BATCH_BYTES, QueueLog, Receipt

if TYPE_CHECKING:
    from martlet.broker.topic.retained import Retained
    from martlet.log.batch import Bytes, LogBatch


class StagingContext(Protocol):
    """What staging needs of its broker."""

    def staged(self, topic: Retained) -> LogBatch:
        """A new batch that takes a topic's messages; what it had before is appended."""

    def commit_topic(self, topic: Retained, deliver_at_ns: int) -> Receipt:
        """Append what is staged for a topic, to be delivered at a time, 0 for at once."""


class StagedQueue:
    """One queue that messages are staged for; what is `Retained` extends it.

    Args:
        context: the broker.
        queue: where they go.
    """

    def __init__(self, context: StagingContext, queue: QueueLog) -> None:
        self._staging = context
        self.queue = queue

    def stage(
        self,
        bodies: list[bytes] | Bytes,
        deliver_at_ns: int = 0,
        properties: Sequence[tuple[int, bytes]] = (),
    ) -> Receipt:
        """Take messages, to be appended with all that this turn brings.

        Bodies are copied, so the caller may use their buffer again.  A matrix ``uint8[n, size]``
        holds n of one size.  `properties` has the number, rising, of each message that has any,
        and those, packed (see `martlet.properties.model`).
        """
        queue = self.queue
        batch = queue.batch
        if batch is None or deliver_at_ns or batch.end > MAX_BATCH_BYTES:
            batch = self._staging.staged(cast("Retained", self))
        if properties:
            batch.set_properties(batch.count, properties)
        if type(bodies) is list:
            if len(bodies) == 1:
                batch.add(bodies[0])
            else:
                batch.add_many(bodies)
        else:
            batch.add_matrix(cast("Bytes", bodies))
        if deliver_at_ns:
            return self._staging.commit_topic(cast("Retained", self), deliver_at_ns)
        return queue.receipt

    @property
    def next_offset(self) -> int:
        """The offset of the message that is staged next."""
        batch = self.queue.batch
        return self.queue.end_offset + (0 if batch is None else batch.count)
