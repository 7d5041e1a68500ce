"""Retry a message whose handler failed, or dead-letter it after its last attempt.

By default there is no last attempt: ``max_attempts`` is 0, no limit. NSQ's clients abandon a
message after five attempts, so a short outage loses messages unless the application checks for it.
Here a message that always fails costs a delivery every ten minutes, and shows in the logs and in
the channel's count of requeues. With a limit, ``on_giving_up`` gets the message first, to keep it
elsewhere; only when that succeeds is the message finished. Without it, a Martlet broker moves the
message to the channel's dead-letter topic.

The error of a request's handler goes to its requester, and the request is finished, since that may
try again.

A Martlet broker gets the text of the error. If the channel has a retry policy, it decides when the
message is redelivered, unless the application has chosen a ``retry``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from traceback import format_exception_only
from typing import Protocol

from martlet.client.consumer.message import Message
from martlet.client.requests.headers import HandlerError
from martlet.client.transport.backoff import Backoff
from martlet.text import counted

logger = logging.getLogger("martlet.client")

RETRY = Backoff(first_s=4.0, max_s=600.0, jitter=0.25)
"""The delay of a failed message, by its attempts: longer than the backoff after one failure (see
`martlet.client.consumer.handling.backoff`). Otherwise the backoff's trial would be the same message
again, and one that always fails would hold up all others for minutes.
"""
NO_LIMIT = 65_535
"""More attempts than a message can count."""


class Delay(Protocol):
    """The delay of a failed message, by its attempts: a ``Backoff`` or ``LinearDelay``."""

    def delay_s(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt, the first being 1."""


class Requeue(Exception):
    """Raised by a handler to get its message again later, though nothing is wrong.

    Args:
        delay_ms: the delay, or None for that of a failed message: by the channel's retry policy if
            it has one and the application has no ``retry``.
        backoff: whether it counts as a failure, so that the consumer requests no more for a while.
    """

    def __init__(self, delay_ms: int | None = None, *, backoff: bool = False) -> None:
        super().__init__(delay_ms, backoff)
        self.delay_ms = delay_ms
        self.backoff = backoff


class Reject(Exception):
    """Raised by a handler whose message would always fail, such as an unreadable one. A Martlet
    broker moves it to the channel's dead-letter topic at once, with the text; an NSQ broker
    redelivers it, as after any error.
    """


def describe(error: BaseException) -> str:
    """Return the text of an error, for logs and brokers."""
    if isinstance(error, Reject) and str(error):
        return str(error)
    return "".join(format_exception_only(error)).strip()


def is_failure(error: BaseException) -> bool:
    """Return whether an exception is a failure of a message, and does not end its worker.

    A CancelledError ends the worker only if the worker itself was cancelled, and not something that
    the handler awaited.
    """
    if not isinstance(error, asyncio.CancelledError):
        return isinstance(error, Exception)
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


OnGivingUp = Callable[[Message], Awaitable[object] | object]
"""Called with a message after its last attempt, before it is finished."""


class FailurePolicy:
    """Requeue messages whose handlers failed, or dead-letter them.

    Args:
        max_attempts: the maximum number of attempts; 0 for no limit. If a Martlet broker counts
            failures (its channel has a retry policy), those count, and not deliveries without
            handling.
        on_giving_up: called after the last attempt, before the message is finished.
        answers_requests: whether requesters get the errors of handlers.
    """

    def __init__(
        self,
        retry: Delay,
        max_attempts: int = 0,
        on_giving_up: OnGivingUp | None = None,
        *,
        answers_requests: bool = True,
    ) -> None:
        if not 0 <= max_attempts <= NO_LIMIT:
            raise ValueError(f"max_attempts={max_attempts} must be from 0 (no limit) to {NO_LIMIT}")
        self.attempt_limit = max_attempts or NO_LIMIT
        self.given_up = 0
        self._retry = retry
        self._on_giving_up = on_giving_up
        self._answers_requests = answers_requests

    def failed(self, message: Message, error: BaseException) -> None:
        """Requeue a message whose handler raised this, or reject it."""
        if isinstance(error, Requeue):
            if not message.is_answered:
                self._put_off(message, error)
            return
        is_rejected = isinstance(error, Reject) and message.can_be_rejected
        if self._reply_error(message, HandlerError.of(error), finishes=not is_rejected):
            logger.error(
                "handler failed for request %s; its requester gets the error",
                message.id.decode("ascii", "replace"),
                exc_info=error,
            )
            if not is_rejected:
                return
        delay_ms = self._delay_ms(message)
        if is_rejected:
            again = "it goes to the dead-letter topic"
        elif 0 < message.max_tries <= message.tries:
            again = f"the last of {message.max_tries}: it goes to the dead-letter topic"
        elif message.max_tries and self._retry is RETRY:
            again = "again after the delay of its channel's retry policy"
        else:
            again = f"again in {delay_ms} ms"
        logger.error(
            "handler failed for message %s, attempt %d; %s",
            message.id.decode("ascii", "replace"),
            message.tries,
            "the handler had answered it" if message.is_answered else again,
            exc_info=error,
        )
        if message.is_answered:
            return
        text = describe(error)
        if is_rejected:
            message.reject(text)
        elif self._retry is RETRY:
            message.fail(text, delay_ms)
        else:
            message.requeue(delay_ms, backoff=True, error=text)

    def _reply_error(self, message: Message, error: HandlerError, *, finishes: bool) -> bool:
        """Reply with an error to a request that is unanswered. Returns whether it is one."""
        if message.is_answered or not self._answers_requests or not message.is_request:
            return False
        message.reply_error(error, finishes=finishes)
        return True

    def _put_off(self, message: Message, wish: Requeue) -> None:
        if wish.delay_ms is not None:
            message.requeue(wish.delay_ms, backoff=wish.backoff)
        elif self._retry is RETRY:
            message.fail("", self._delay_ms(message), backoff=wish.backoff)
        else:
            message.requeue(self._delay_ms(message), backoff=wish.backoff)

    async def give_up(self, message: Message) -> None:
        """Pass a message after its last attempt to ``on_giving_up``, and finish it; without that,
        have a Martlet broker move it to the dead-letter topic.
        """
        is_rejected = self._on_giving_up is None and message.can_be_rejected
        where = "; on_giving_up, to keep it, is not set"
        if is_rejected:
            where = "; it goes to the channel's dead-letter topic"
        logger.error(
            "message %s failed for good: it was delivered %s, max_attempts is %d%s",
            message.id.decode("ascii", "replace"),
            counted(message.tries, "time"),
            self.attempt_limit,
            "" if self._on_giving_up else where,
        )
        times = counted(message.tries - 1, "time")
        given_up = HandlerError("HandlerFailed", f"given up after it was delivered {times}")
        self._reply_error(message, given_up, finishes=False)
        if is_rejected:
            self.given_up += 1
            message.reject(reason="given_up")
            return
        try:
            if self._on_giving_up is not None:
                result = self._on_giving_up(message)
                if isawaitable(result):
                    await result
        except BaseException as error:
            if not is_failure(error):
                if not message.is_answered:
                    message.give_back()
                raise
            logger.error("on_giving_up failed, so the message is kept", exc_info=error)
            if not message.is_answered:
                message.requeue(self._delay_ms(message), backoff=True)
        else:
            self.given_up += 1
            if not message.is_answered:
                message.finish()

    def _delay_ms(self, message: Message) -> int:
        return round(1000 * self._retry.delay_s(message.tries))
