"""Many messages of one queue at once: an object is made of a single one only on demand."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from martlet.client.consumer.columns import Decoded
from martlet.client.errors import AlreadyAnswered
from martlet.client.group.queues.fetched_chunk import FetchedChunk
from martlet.client.group.queues.queue_id import QueueId


class BatchQueue(Protocol):
    """The queue of a batch, as far as the batch needs it."""

    topic: str
    place: QueueId

    def finish_batch(self, batch: PulledBatch) -> None:
        """Have its messages done."""

    def put_back_batch(self, batch: PulledBatch) -> None:
        """Have its messages handed out again."""


class PulledColumns(Decoded):
    """Messages of one queue, in order.

    Attributes:
        topic: the topic's name.
        place: their queue, and at which broker that is.
        piece: their bytes.
    """

    def __init__(self, topic: str, place: QueueId, piece: FetchedChunk) -> None:
        super().__init__(piece.run)
        self.topic = topic
        self.place = place
        self.piece = piece

    def __repr__(self) -> str:
        return (
            f"<PulledBatch {self.topic} {self.place}, {self.count} messages from offset"
            f" {self.piece.first}>"
        )

    @property
    def queue(self) -> int:
        """The number of their queue."""
        return self.place.queue

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The offset of each in the queue, rising; not always without gaps."""
        return np.fromiter(self.piece.offsets(), np.int64, self.count)


class PulledBatch(PulledColumns):
    """Messages of one queue, in order: done when the next batch is asked for, or `finish` called.

    Attributes:
        keys: the offsets under which their queue notes that they were begun.
        is_finished: whether they are done.
    """

    def __init__(self, held: BatchQueue, piece: FetchedChunk, keys: tuple[int, ...]) -> None:
        super().__init__(held.topic, held.place, piece)
        self.keys = keys
        self.is_finished = False
        self._held = held

    @property
    def is_out(self) -> bool:
        """Whether they are not done yet."""
        return not self.is_finished

    def give_back(self) -> None:
        """Have them handed out again."""
        self._held.put_back_batch(self)

    def finish(self) -> None:
        """Let the committed offset pass all of them, which are done.

        Raises:
            AlreadyAnswered: they were finished before.
        """
        if self.is_finished:
            raise AlreadyAnswered(f"{self!r} was finished before")
        self._held.finish_batch(self)
