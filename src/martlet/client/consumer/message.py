"""A message as handed to the application."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from martlet.client.consumer.acks import AckBatcher
from martlet.client.errors import AlreadyAnswered, NoRequest, NotSupported
from martlet.client.producer.message import Body
from martlet.client.received import MessageView, ReceivedMessage
from martlet.client.requests.headers import HandlerError, ReplyAddress
from martlet.client.requests.outgoing import OutgoingReply
from martlet.properties.model import TextOrBytes


def check_delay_ms(delay_ms: int) -> int:
    """Return a valid delay. Raises ValueError: it is negative."""
    if delay_ms < 0:
        raise ValueError(f"delay_ms={delay_ms}: a message cannot be delivered in the past")
    return int(delay_ms)


ExecutorKind = Literal["threads", "processes"]
PlainHandler = Callable[[MessageView], object]
"""A handler for a thread or a process."""


class Message(ReceivedMessage):
    """A message, in flight until you finish or requeue it or it times out.

    Attributes:
        attempts: the number of deliveries, this one included.
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
        """The number of earlier failures, if its channel at a Martlet broker has a retry policy;
        else 0.
        """
        return int(self._noted("failures") or 0)

    @property
    def tries(self) -> int:
        """The number of tries, this one included: its failures plus one if the broker counts those,
        else its deliveries, not all of which may have been handled.
        """
        answers = self._answers
        return self.failures + 1 if answers and answers.max_attempts else self.attempts

    @property
    def max_tries(self) -> int:
        """The number of tries after which the broker makes it a dead letter, by its channel's retry
        policy: -1 for no limit, 0 without a policy.
        """
        return self._answers.max_attempts if self._answers else 0

    @property
    def is_suspect(self) -> bool:
        """Whether its last failure was a lost connection, so that it may be crashing programs."""
        return bool(self._noted("suspect"))

    def _noted(self, name: str) -> str:
        return self.properties.system.get(name, "") if self._packed else ""

    def carries(self, packed: bytes) -> None:
        """Set its properties."""
        self._packed = packed

    def __repr__(self) -> str:
        return (
            f"<Message {self.id.decode('ascii', 'replace')} attempts={self.attempts}"
            f" body={len(self.body)} bytes{' answered' if self.is_answered else ''}>"
        )

    @property
    def is_answered(self) -> bool:
        """Whether it was finished or requeued."""
        return self._answers is None

    @property
    def is_out(self) -> bool:
        """Whether it is neither finished nor requeued."""
        return self._answers is not None

    def view(self) -> MessageView:
        """Return a copy without the connection, for a handler in a thread or a process."""
        return MessageView(self.id, self.timestamp_ns, self.attempts, self.body, self.properties)

    def finish(self) -> None:
        """Finish the message: the broker never redelivers it.

        FIN is written at the end of the event loop's turn, with the others. If the connection is
        lost before that, or the message has timed out, the broker redelivers it.

        Raises:
            AlreadyAnswered: it was finished or requeued before.
        """
        self._answer().finish(self.id)

    def reply(self, body: Body, *, headers: Mapping[str, TextOrBytes] | None = None) -> None:
        """Reply to the request, and finish it once the broker has stored the reply.

        ::

            async def handle(message):
                message.reply(await resize(message.body))

        The reply goes to the producer that waits in ``request``. If the broker cannot store it, or
        the connection is lost before, the request is redelivered.

        Args:
            body: the reply, not empty.
            headers: the application's own, for the requester.

        Raises:
            AlreadyAnswered: it was answered before. NoRequest: it is no request. BadBody: the body
            is empty, or above the broker's limit. BadProperties, ValueError: the headers are
            invalid, or reserved.
        """
        answers = self._unanswered("replied to")
        address = ReplyAddress.of(self.properties)
        if address is None:
            raise NoRequest(f"{self!r} is no request: it was published, and no client waits")
        reply = OutgoingReply.of(address, body, headers, answers.max_message_bytes)
        self._answers = None
        answers.reply(reply, self.id)

    def reply_error(self, error: HandlerError, *, finishes: bool = True) -> None:
        """Reply to the request with the error of its handler; finish it, if asked for."""
        answers = self._unanswered("replied to")
        address = ReplyAddress.of(self.properties)
        assert address is not None
        if finishes:
            self._answers = None
        answers.reply(OutgoingReply.of_error(address, error), self.id if finishes else None)

    def requeue(self, delay_ms: int = 0, *, backoff: bool = False, error: str = "") -> None:
        """Requeue the message with a delay in milliseconds.

        If the channel has a retry policy, a delay of 0 means the policy's delay, and after its last
        attempt the message becomes a dead letter. The broker keeps `error` with the message for
        operators; an NSQ broker ignores it.

        The broker shortens a delay above its ``--max-req-timeout`` (an hour by default). By default
        this does not count as a failure; with ``backoff`` it does, as a handler's exception, so
        that the consumer requests no more for a while (see ``FailureBackoff``).

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
        """Requeue the message with the delay of the channel's policy, or without one with the given
        delay, and report the error.
        """
        answers = self._answer()
        if answers.are_extended:
            answers.later(self.id, error, backoff=backoff, otherwise_ms=delay_ms)
        else:
            answers.requeue(self.id, delay_ms, backoff=backoff)

    @property
    def can_be_rejected(self) -> bool:
        """Whether it came from a Martlet broker and is unanswered."""
        return self._answers is not None and self._answers.are_extended

    def reject(
        self, error: str = "", *, reason: Literal["rejected", "given_up"] = "rejected"
    ) -> None:
        """Have the broker move the message to the channel's dead-letter topic, since it would
        always fail.

        Raises:
            AlreadyAnswered: it was finished or requeued before. NotSupported: its broker is an NSQ
            broker, which has no dead-letter topics.
        """
        if self._answers is not None and not self._answers.are_extended:
            raise NotSupported(
                f"{self!r} came from a broker of NSQ, which has no dead-letter topics: publish it"
                " elsewhere and finish it"
            )
        self._answer().reject(self.id, reason, error)

    def give_back(self) -> None:
        """Have the broker deliver the message to others, not counted as a failure."""
        self._answer().give_back_one(self.id)

    def touch(self) -> None:
        """Reset the message's timeout, because handling it takes long.

        The broker allows that until ``--max-msg-timeout`` after the delivery (15 minutes by
        default).

        Raises:
            AlreadyAnswered: it was finished or requeued before.
        """
        self._unanswered("touched").touch(self.id)

    def _unanswered(self, what: str) -> AckBatcher:
        if self._answers is None:
            raise AlreadyAnswered(f"{self!r} cannot be {what} any more")
        return self._answers

    def _answer(self) -> AckBatcher:
        answers = self._answers
        if answers is None:
            raise AlreadyAnswered(f"{self!r} was finished or requeued before")
        self._answers = None
        return answers
