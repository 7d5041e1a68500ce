"""Batches of one queue's messages: single message objects are made only on demand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from struct import Struct
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from martlet.client.consumer.batch import Decoded
from martlet.client.errors import AlreadyAnswered
from martlet.client.group.message import PulledMessage
from martlet.client.group.queues.queue_id import QueueId
from martlet.protocol.nsq.frames import MESSAGE
from martlet.protocol.nsq.message_run import FRAME_SIZE_EXTRA, MessageRun

_MASK = (1 << 64) - 1
_HEAD = Struct(">IIqH16s")


class FetchedChunk(NamedTuple):
    """Messages of one queue, in order."""

    run: MessageRun
    first: int
    """The offset of the first one; there may be gaps between it and the last one."""
    last: int

    @classmethod
    def of(cls, run: MessageRun, id_base: int) -> FetchedChunk:
        """Make a chunk of a run, in which a message's id is the base plus its offset."""
        ids = run.ids()
        first, last = (((int(bytes(ids[index]), 16) - id_base) & _MASK) for index in (0, -1))
        return cls(run, first, last)

    @classmethod
    def again(cls, messages: Sequence[PulledMessage]) -> FetchedChunk:
        """Make a chunk of message objects made of an earlier chunk."""
        frames: list[bytes] = []
        ends: list[int] = []
        end = 0
        for message in messages:
            size = len(message.body) + FRAME_SIZE_EXTRA
            head = _HEAD.pack(size, MESSAGE, message.timestamp_ns, 1, message.id)
            frames += (head, message.body)
            end += size + 4
            ends.append(end)
        run = MessageRun(b"".join(frames), ends)
        run.properties = {
            index: message.packed for index, message in enumerate(messages) if message.packed
        }
        return cls(run, messages[0].offset, messages[-1].offset)

    def offsets(self) -> Sequence[int]:
        """The offset of each message."""
        if self.last - self.first + 1 == self.run.count:
            return range(self.first, self.last + 1)
        ids = [int(message_id, 16) for message_id in self.run.ids().view("S16").tolist()]
        return [self.first + ((message_id - ids[0]) & _MASK) for message_id in ids]

    def split(self, count: int) -> tuple[FetchedChunk, FetchedChunk]:
        """Split into the first messages of a given number, and the others."""
        offsets = self.offsets()
        head, rest = self.run.split(count)
        return (
            FetchedChunk(head, self.first, offsets[count - 1]),
            FetchedChunk(rest, offsets[count], self.last),
        )


def joined(pieces: Sequence[FetchedChunk]) -> FetchedChunk:
    """Join adjacent chunks."""
    if len(pieces) == 1:
        return pieces[0]
    run = MessageRun.joined([piece.run for piece in pieces])
    return FetchedChunk(run, pieces[0].first, pieces[-1].last)


class BatchQueue(Protocol):
    """The queue of a batch, as the batch sees it."""

    topic: str
    id: QueueId

    def finish_batch(self, batch: PulledBatch) -> None:
        """Mark its messages as done."""

    def put_back_batch(self, batch: PulledBatch) -> None:
        """Have its messages handed out again."""


class PulledColumns(Decoded):
    """Messages of one queue, in order.

    Attributes:
        place: their queue and its broker.
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
        super().__init__(held.topic, held.id, piece)
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
