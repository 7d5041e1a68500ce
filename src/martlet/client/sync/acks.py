"""Answers to messages from threads other than the event loop's."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import cast

from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.message import Message
from martlet.client.requests.outgoing import OutgoingReply
from martlet.client.sync.loop_thread import LoopThread


class PostedAnswers:
    """Replace the answers of a message's connection: post answers to the loop."""

    __slots__ = ("_thread", "answers", "is_handed_out")

    def __init__(self, answers: AckBatcher, thread: LoopThread) -> None:
        self.answers = answers
        self._thread = thread
        self.is_handed_out = False

    @property
    def max_message_timeout_s(self) -> float:
        """The maximum time of a message, with any number of touches."""
        return self.answers.max_message_timeout_s

    def finish(self, message_id: bytes) -> None:
        """Finish the message."""
        self._thread.check()
        self._thread.post(self.answers.finish, message_id)

    def requeue(self, message_id: bytes, delay_ms: int, *, backoff: bool) -> None:
        """Requeue the message with a delay."""
        self._post(partial(self.answers.requeue, message_id, delay_ms, backoff=backoff))

    @property
    def max_message_bytes(self) -> int:
        """The broker's maximum size of a message; 0 if it is unknown."""
        return self.answers.max_message_bytes

    def reply(self, reply: OutgoingReply, message_id: bytes | None = None) -> None:
        """Send a reply, and finish its request once it is stored."""
        self._post(partial(copy_context().run, self.answers.reply, reply, message_id))

    @property
    def are_extended(self) -> bool:
        """Whether the broker is a Martlet broker, which accepts more than NSQ's answers."""
        return self.answers.are_extended

    def later(self, message_id: bytes, error: str, *, backoff: bool, **delay: int) -> None:
        """Requeue the message with the text of the error."""
        self._thread.check()
        self._thread.post(partial(self.answers.later, message_id, error, backoff=backoff, **delay))

    def reject(self, message_id: bytes, reason: str, error: str) -> None:
        """Have the message become a dead letter."""
        self._thread.check()
        self._thread.post(self.answers.reject, message_id, reason, error)

    @property
    def max_attempts(self) -> int:
        """The maximum number of failures; 0 if the broker does not count them."""
        return self.answers.max_attempts

    def give_back_one(self, message_id: bytes) -> None:
        """Have the message delivered to others."""
        is_started = self.is_handed_out
        self._post(partial(self.answers.give_back_one, message_id, is_started=is_started))

    def touch(self, message_id: bytes) -> None:
        """Touch the message."""
        self._post(partial(self.answers.touch, message_id))

    def _post(self, answer: Callable[[], object]) -> None:
        """Answer in the loop: at once where the consumer itself does, in the loop's thread."""
        if self._thread.is_current:
            answer()
        else:
            self._thread.check()
            self._thread.post(answer)


def posted(message: Message, thread: LoopThread) -> Message:
    """Copy a message, to be answered from any thread."""
    answers = message._answers
    assert answers is not None
    # A message uses only these methods of its answers.
    in_its_place = cast(AckBatcher, PostedAnswers(answers, thread))
    again = Message(in_its_place, message.timestamp_ns, message.attempts, message.id, message.body)
    again.carries(message._packed)
    return again
