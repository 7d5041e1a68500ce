"""Batches of one queue's messages: single message objects are made only on demand."""

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
    """The queue of a batch, as the batch sees it."""

    topic: str
    place: QueueId

    def finish_batch(self, batch: PulledBatch) -> None:
        """Mark its messages as done."""

    def put_back_batch(self, batch: PulledBatch) -> None:
        """Have its messages handed out again."""


class PulledColumns(Decoded):
    """Messages of one queue, in order.

    Attributes:
        topic: the topic's name.
        place: their queue and its broker.
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
        """The offset of each in the queue, rising, possibly with gaps."""
        return np.fromiter(self.piece.offsets(), np.int64, self.count)


class PulledBatch(PulledColumns):
    """Messages of one queue, in order: done when the next batch is requested, or `finish` called.

    Attributes:
        keys: the offsets under which their queue tracks them.
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
        """Mark all of them as done, so that the committed offset may pass them.

        Raises:
            AlreadyAnswered: they were finished before.
        """
        if self.is_finished:
            raise AlreadyAnswered(f"{self!r} was finished before")
        self._held.finish_batch(self)
