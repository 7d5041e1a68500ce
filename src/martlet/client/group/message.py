"""A message of a queue that this consumer holds."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from martlet.client.errors import AlreadyAnswered
from martlet.client.group.queues.queue_id import QueueId
from martlet.properties.model import NONE, Properties

if TYPE_CHECKING:
    from martlet.client.group.queues.assigned_queue import AssignedQueue


class PulledMessageState(IntEnum):
    """Where the handling of a message stands."""

    WAITING = 0
    """To be handed out, for the first time or again."""
    OUT = 1
    """Somebody is at work on it."""
    DONE = 2


class PulledMessage:
    """A message of a queue: done when its handler has returned, or `finish` was called.

    Attributes:
        id: 16 bytes, unique at its broker.
        offset: its place in the queue.
        timestamp_ns: when it was published, in nanoseconds since 1970.
        attempts: how often this consumer has begun to handle it, this time included.
        body: what was published.
        errors: what was said when it failed first and last.
        is_rejected: whether its handler has said that there is no use in trying again.
        is_lost: whether it is given up since members of its group were lost while they handled it.
    """

    __slots__ = (
        "_held",
        "_packed",
        "_stage",
        "attempts",
        "body",
        "errors",
        "id",
        "is_lost",
        "is_rejected",
        "offset",
        "timestamp_ns",
    )

    def __init__(
        self,
        held: AssignedQueue,
        offset: int,
        timestamp_ns: int,
        id: bytes,
        body: bytes,
        packed: bytes,
    ) -> None:
        self._held = held
        self._packed = packed
        self._stage = PulledMessageState.WAITING
        self.attempts = 0
        self.errors = ("", "")
        self.is_rejected = self.is_lost = False
        self.offset = offset
        self.timestamp_ns = timestamp_ns
        self.id = id
        self.body = body

    def __lt__(self, other: PulledMessage) -> bool:
        return self.offset < other.offset

    def __repr__(self) -> str:
        return (
            f"<PulledMessage {self.topic} {self.place} offset={self.offset}"
            f" attempts={self.attempts} body={len(self.body)} bytes>"
        )

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._held.topic

    @property
    def queue(self) -> int:
        """The number of its queue."""
        return self._held.place.queue

    @property
    def place(self) -> QueueId:
        """Its queue, and at which broker that is."""
        return self._held.place

    @property
    def packed(self) -> bytes:
        """Its properties, as they came; empty for none."""
        return self._packed

    @property
    def properties(self) -> Properties:
        """Its tag, keys, headers and whatever else was published beside the body."""
        return Properties.unpack(self._packed) if self._packed else NONE

    @property
    def is_finished(self) -> bool:
        """Whether it is done."""
        return self._stage is PulledMessageState.DONE

    @property
    def is_out(self) -> bool:
        """Whether somebody is at work on it."""
        return self._stage is PulledMessageState.OUT

    def give_back(self) -> None:
        """Have it handed out again: nobody is at work on it any more, and it is not done."""
        self._held.put_back(self)

    def finish(self) -> None:
        """It has been dealt with: the offset that is committed may pass it.

        Where the queue has gone to another member meanwhile, that one gets the message too.

        Raises:
            AlreadyAnswered: it was finished before.
        """
        if self._stage is PulledMessageState.DONE:
            raise AlreadyAnswered(f"{self!r} was finished before")
        self._held.finish(self)
