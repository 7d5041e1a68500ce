"""Failures of handlers: retry a message here, and dead-letter it after its last attempt.

With handling in order, a failed message holds up its queue; else later ones are handled meanwhile,
within the limits of flow control, and only the committed offset waits. After ``max_attempts``, or
when its handler raises ``Reject``, the message moves to the group's dead-letter topic or to
``on_giving_up``; only after that succeeded does it count as done.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable

from martlet.client.consumer.handling.failure_policy import Delay, Reject, Requeue, describe
from martlet.client.errors import HandlerFailed
from martlet.client.group.message import PulledMessage
from martlet.client.transport.backoff import Backoff
from martlet.text import counted

logger = logging.getLogger("martlet.client")

RETRY = Backoff(first_s=1.0, max_s=60.0, jitter=0.25)
"""The delays of a failed message: nine minutes in all, with `MAX_ATTEMPTS`."""
MAX_ATTEMPTS = 16
"""RocketMQ's."""
MAX_ERROR_LENGTH = 1000
"""The maximum number of characters of an error."""

OnGivingUp = Callable[[PulledMessage], Awaitable[object] | object]
"""Called with a message after its last attempt, to keep it elsewhere."""


class PullFailures:
    """Retry messages whose handlers failed, and dead-letter them.

    Args:
        dead_letter: keeps the message elsewhere, and returns where; None if nowhere.
    """

    def __init__(
        self,
        retry: Delay,
        max_attempts: int,
        dead_letter: Callable[[PulledMessage], Awaitable[str | None]],
    ) -> None:
        if max_attempts < 0:
            raise ValueError(f"max_attempts={max_attempts}: must be at least 0, for no limit")
        self.given_up = 0
        """The number of messages not tried again."""
        self._retry = retry
        self._max_attempts = max_attempts
        self._dead_letter = dead_letter

    async def failed(self, message: PulledMessage, error: BaseException) -> None:
        """Retry a message whose handler raised this, or dead-letter it."""
        if not message.is_out:
            logger.error("handler failed for %r, which it had finished", message, exc_info=error)
            return
        if isinstance(error, Requeue):
            if not error.backoff:
                message.attempts -= 1
            self._put_off(message, error.delay_ms)
            return
        text = describe(error)[:MAX_ERROR_LENGTH]
        message.errors = (message.errors[0] or text, text)
        message.is_rejected = isinstance(error, Reject)
        if message.is_rejected or 0 < self._max_attempts <= message.attempts:
            await self._give_up(message, error)
            return
        delay_s = self._put_off(message)
        logger.error("handler failed for %r; again in %.3g s", message, delay_s, exc_info=error)

    async def lost_often(self, message: PulledMessage, count: int) -> None:
        """Dead-letter a message whose handling ended with a number of lost members."""
        text = f"{count} members of the group were lost while they handled it"
        message.errors, message.is_lost = (text, text), True
        await self._give_up(message, HandlerFailed(text))

    async def _give_up(self, message: PulledMessage, error: BaseException) -> None:
        try:
            where = await self._dead_letter(message)
        except Exception as trouble:
            delay_s = self._put_off(message)
            logger.error(
                "%r has failed %s and could not be kept elsewhere (%s); again in %.3g s",
                *(message, counted(message.attempts, "time"), trouble, delay_s),
                exc_info=error,
            )
            return
        logger.error(
            "%r has failed %s and is not tried again; it is %s",
            *(
                message,
                counted(message.attempts, "time"),
                f"kept in {where}" if where else "kept nowhere",
            ),
            exc_info=error,
        )
        self.given_up += 1
        message._held.give_up(message)

    def _put_off(self, message: PulledMessage, delay_ms: int | None = None) -> float:
        """Have it handled again later. Returns the delay in seconds."""
        delay_s = self._retry.delay_s(message.attempts) if delay_ms is None else delay_ms / 1000
        message._held.retry_later(message, delay_s)
        return delay_s


def kept_by(on_giving_up: OnGivingUp) -> Callable[[PulledMessage], Awaitable[str | None]]:
    """Wrap the application's ``on_giving_up``."""

    async def keep(message: PulledMessage) -> str:
        result = on_giving_up(message)
        if isawaitable(result):
            await result
        return "on_giving_up"

    return keep
