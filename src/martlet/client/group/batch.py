"""Many messages of one queue at once: nothing is made of a single one unasked."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from martlet.client.consumer.columns import Decoded
from martlet.client.errors import AlreadyAnswered
from martlet.client.group.queues.fetched_chunk import FetchedChunk
from martlet.client.group.queues.queue_id import QueueId

if TYPE_CHECKING:
    from martlet.client.group.queues.assigned_queue import AssignedQueue


class PulledBatch(Decoded):
    """Messages of one queue, in order: done when the next batch is asked for, or `finish` called.

    Attributes:
        count: how many there are.
        piece: their bytes.
        keys: by which their queue knows that they were begun.
        is_finished: whether they are done.
    """

    def __init__(self, held: AssignedQueue, piece: FetchedChunk, keys: tuple[int, ...]) -> None:
        super().__init__(piece.run)
        self.piece = piece
        self.keys = keys
        self.is_finished = False
        self._held = held

    def __repr__(self) -> str:
        return (
            f"<PulledBatch {self.topic} {self.place}, {self.count} messages from offset"
            f" {self.piece.first}>"
        )

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._held.topic

    @property
    def queue(self) -> int:
        """The number of their queue."""
        return self._held.place.queue

    @property
    def place(self) -> QueueId:
        """Their queue, and at which broker that is."""
        return self._held.place

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The place of each in the queue, rising; not always without gaps."""
        return np.fromiter(self.piece.offsets(), np.int64, self.count)

    @property
    def is_out(self) -> bool:
        """Whether they are not done yet."""
        return not self.is_finished

    def give_back(self) -> None:
        """Have them handed out again, which are not done."""
        self._held.put_back_batch(self)

    def finish(self) -> None:
        """All of them have been dealt with: the offset that is committed may pass them.

        Raises:
            AlreadyAnswered: they were finished before.
        """
        if self.is_finished:
            raise AlreadyAnswered(f"{self!r} was finished before")
        self._held.finish_batch(self)
