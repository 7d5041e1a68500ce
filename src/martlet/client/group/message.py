"""A message of a queue that is assigned to this consumer."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Protocol

from martlet.client.errors import AlreadyAnswered
from martlet.client.group.queues.queue_id import QueueId
from martlet.client.received import ReceivedMessage
from martlet.protocol.nsq.message_run import Fields


class PulledMessageState(IntEnum):
    """The state of a message's handling."""

    WAITING = 0
    """To be handed out, for the first time or again."""
    OUT = 1
    """Handed out to a handler, or an iterator."""
    DONE = 2


class MessageQueue(Protocol):
    """The queue of a message, as the message sees it."""

    topic: str
    id: QueueId

    def finish(self, message: PulledMessage) -> None:
        """Mark it as done."""

    def put_back(self, message: PulledMessage) -> None:
        """Have it handed out again."""

    def retry_later(self, message: PulledMessage, delay_s: float) -> None:
        """Have it handed out again after a delay in seconds."""

    def give_up(self, message: PulledMessage) -> None:
        """Mark it as done, since it is kept elsewhere."""


class PulledMessage(ReceivedMessage):
    """A message of a queue: done when its handler has returned, or `finish` was called.

    Attributes:
        offset: its offset in the queue.
        attempts: the number of tries of this consumer, this one included.
        errors: the texts of its first and last failure.
        is_rejected: whether its handler raised ``Reject``, so that it is not tried again.
        is_lost: whether it is dead-lettered because members of its group were lost while they
            handled it.
    """

    __slots__ = ("_held", "_stage", "errors", "is_lost", "is_rejected", "offset")

    _held: MessageQueue
    _stage: PulledMessageState
    errors: tuple[str, str]
    is_lost: bool
    is_rejected: bool
    offset: int

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
        return self._held.id.queue

    @property
    def place(self) -> QueueId:
        """Its queue and its broker."""
        return self._held.id

    @property
    def packed(self) -> bytes:
        """Its encoded properties; empty for none."""
        return self._packed

    @property
    def is_finished(self) -> bool:
        """Whether it is done."""
        return self._stage is PulledMessageState.DONE

    @property
    def is_out(self) -> bool:
        """Whether it is handed out and not done."""
        return self._stage is PulledMessageState.OUT

    def view(self) -> PulledMessage:
        """Return the message itself: it is safe in a thread."""
        return self

    def give_back(self) -> None:
        """Have it handed out again, after its handling ended without success."""
        self._held.put_back(self)

    def finish(self) -> None:
        """Mark the message as done, so that the committed offset may pass it.

        If the queue has moved to another member meanwhile, that one gets the message too.

        Raises:
            AlreadyAnswered: it was finished before.
        """
        if self._stage is PulledMessageState.DONE:
            raise AlreadyAnswered(f"{self!r} was finished before")
        self._held.finish(self)


def pulled_messages(
    held: MessageQueue, fields: Iterable[tuple[int, Fields]]
) -> list[PulledMessage]:
    """Make messages from their offsets and fields.

    It calls no `__init__`, which would be a quarter of the client's work for a message.
    """
    messages = []
    make, waiting, no_errors = PulledMessage.__new__, PulledMessageState.WAITING, ("", "")
    for offset, (timestamp_ns, _, message_id, body) in fields:
        message = make(PulledMessage)
        message._held = held
        message._packed = b""
        message._stage = waiting
        message.attempts = 0
        message.errors = no_errors
        message.is_rejected = message.is_lost = False
        message.offset = offset
        message.timestamp_ns = timestamp_ns
        message.id = message_id
        message.body = body
        messages.append(message)
    return messages
