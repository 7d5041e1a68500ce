"""A message as it is handed to the application."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from martlet.client.consumer.acks import AckBatcher
from martlet.client.errors import AlreadyAnswered, NotSupported
from martlet.properties.model import NONE, Properties


def check_delay_ms(delay_ms: int) -> int:
    """The delay, if it is one.

    Raises:
        ValueError: it is negative.
    """
    if delay_ms < 0:
        raise ValueError(f"delay_ms={delay_ms}: a message cannot be delivered in the past")
    return int(delay_ms)


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message as a handler in a thread or a process gets it.

    Attributes:
        id: 16 bytes, unique at its broker.
        timestamp_ns: when it was published, in nanoseconds since 1970.
        attempts: how often it has been delivered, this time included.
        body: what was published.
        properties: what was published beside it.
    """

    id: bytes
    timestamp_ns: int
    attempts: int
    body: bytes
    properties: Properties = NONE


class ReceivedMessage(ABC):
    """A message as any consumer hands it out.

    Attributes:
        id: 16 bytes, unique at its broker.
        timestamp_ns: when it was published, in nanoseconds since 1970.
        body: what was published.
    """

    __slots__ = ("_packed", "attempts", "body", "id", "timestamp_ns")

    id: bytes
    timestamp_ns: int
    attempts: int
    body: bytes
    _packed: bytes

    @property
    def properties(self) -> Properties:
        """Its tag, keys, headers and other properties that were published beside the body."""
        return Properties.unpack(self._packed) if self._packed else NONE

    @property
    @abstractmethod
    def is_out(self) -> bool:
        """Whether it is handed out, and neither finished nor to be handled again."""

    @abstractmethod
    def finish(self) -> None:
        """Have it never handled again."""

    @abstractmethod
    def give_back(self) -> None:
        """Have it handled again, without a failure."""

    @abstractmethod
    def view(self) -> MessageView | ReceivedMessage:
        """Return what a handler in a thread or a process gets of it."""


class Message(ReceivedMessage):
    """A message, in flight to you until you finish or requeue it or its time runs out.

    Attributes:
        attempts: how often it has been delivered, this time included.
    """

    __slots__ = ("__weakref__", "_answers")

    def __init__(
        self,
        answers: AckBatcher | None,
        timestamp_ns: int,
        attempts: int,
        id: bytes,
        body: bytes,
    ) -> None:
        self._answers = answers
        self.timestamp_ns = timestamp_ns
        self.attempts = attempts
        self.id = id
        self.body = body
        self._packed = b""

    @property
    def failures(self) -> int:
        """How often it has failed before, where a Martlet broker counts that: where its channel has
        a retry policy. 0 elsewhere.
        """
        return int(self._noted("failures") or 0)

    @property
    def tries(self) -> int:
        """How often it has been tried, this time included: one more than its failures where the
        broker counts those, else its attempts, of which it may not have been handled at each.
        """
        answers = self._answers
        return self.failures + 1 if answers and answers.max_attempts else self.attempts

    @property
    def is_suspect(self) -> bool:
        """Whether its last failure was a lost connection, so that it may be what ends programs."""
        return bool(self._noted("suspect"))

    def _noted(self, name: str) -> str:
        return self.properties.system.get(name, "") if self._packed else ""

    def carries(self, packed: bytes) -> None:
        """These are its properties."""
        self._packed = packed

    def __repr__(self) -> str:
        return (
            f"<Message {self.id.decode('ascii', 'replace')} attempts={self.attempts}"
            f" body={len(self.body)} bytes{' answered' if self.is_answered else ''}>"
        )

    @property
    def is_answered(self) -> bool:
        """Whether it has been finished or requeued."""
        return self._answers is None

    @property
    def is_out(self) -> bool:
        """Whether it is neither finished nor requeued."""
        return self._answers is not None

    def view(self) -> MessageView:
        """Return a copy without the connection, for a handler in a thread or a process."""
        return MessageView(self.id, self.timestamp_ns, self.attempts, self.body, self.properties)

    def finish(self) -> None:
        """Tell the broker that the message has been dealt with and never comes back.

        It is written at the end of the event loop's turn, with the others.  If the connection is
        lost before that, or the message's time has run out, the broker delivers it again.

        Raises:
            AlreadyAnswered: it was finished or requeued before.
        """
        self._answer().finish(self.id)

    def requeue(self, delay_ms: int = 0, *, backoff: bool = False, error: str = "") -> None:
        """Have the broker deliver the message again, after so many milliseconds.

        Where the channel has a retry policy, a delay of 0 stands for the one of the policy, and
        after its last attempt the message becomes a dead letter.  What `error` says went wrong is
        kept with that, for an operator to see; a broker of NSQ does not take it.

        The broker shortens a delay above its ``--max-req-timeout`` (an hour by default).  The
        message is only put off; with ``backoff`` that counts as a failure, as a handler's exception
        does, so that the consumer asks for no more for a while (see ``FailureBackoff``).

        Raises:
            AlreadyAnswered: it was finished or requeued before.
            ValueError: the delay is negative.
        """
        delay_ms = check_delay_ms(delay_ms)
        answers = self._answer()
        if error and answers.are_extended:
            answers.later(self.id, error, backoff=backoff, delay_ms=delay_ms)
        else:
            answers.requeue(self.id, delay_ms, backoff=backoff)

    def fail(self, error: str, delay_ms: int, *, backoff: bool = True) -> None:
        """Have the broker deliver the message again when the channel's policy has it, or where it
        has none after so many milliseconds; say what went wrong.
        """
        answers = self._answer()
        if answers.are_extended:
            answers.later(self.id, error, backoff=backoff, otherwise_ms=delay_ms)
        else:
            answers.requeue(self.id, delay_ms, backoff=backoff)

    @property
    def can_be_rejected(self) -> bool:
        """Whether it came from a Martlet broker, and is not answered."""
        return self._answers is not None and self._answers.are_extended

    def reject(
        self, error: str = "", *, reason: Literal["rejected", "given_up"] = "rejected"
    ) -> None:
        """Have the broker put the message into the channel's dead-letter topic: it would fail again
        however often it came.

        Raises:
            AlreadyAnswered: it was finished or requeued before.
            NotSupported: its broker is no Martlet, and has no dead-letter topics.
        """
        if self._answers is not None and not self._answers.are_extended:
            raise NotSupported(
                f"{self!r} came from a broker of NSQ, which has no dead-letter topics: publish it"
                " elsewhere and finish it"
            )
        self._answer().reject(self.id, reason, error)

    def give_back(self) -> None:
        """Have the broker deliver the message to others: it has not failed."""
        self._answer().give_back_one(self.id)

    def touch(self) -> None:
        """Have the message's time start anew, because dealing with it takes long.

        The broker allows it until its ``--max-msg-timeout`` since the delivery (15 minutes by
        default).

        Raises:
            AlreadyAnswered: it was finished or requeued before.
        """
        if self._answers is None:
            raise AlreadyAnswered(f"{self!r} cannot be touched any more")
        self._answers.touch(self.id)

    def _answer(self) -> AckBatcher:
        answers = self._answers
        if answers is None:
            raise AlreadyAnswered(f"{self!r} was finished or requeued before")
        self._answers = None
        return answers
