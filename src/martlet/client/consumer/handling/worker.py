"""What hands messages to a handler, one after the other.

A consumer has as many workers as handlers may run at once.  They take messages from one queue and
await the handler themselves: no task and no future is made for a message, and yet a handler is in a
task of its own kind, with all that asyncio offers in one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from types import CoroutineType
from typing import Any

from martlet.client.consumer.buffer import ReceiveBuffer
from martlet.client.consumer.handling.failure_policy import FailurePolicy, is_cancelled
from martlet.client.consumer.message import Message

Handler = Callable[[Message], Awaitable[object] | object]
"""Handles a message: a function, or a coroutine function."""


class Worker:
    """Hands messages to a handler.

    Attributes:
        message: what it is at work on, or was last.
    """

    __slots__ = ("_failures", "_handler", "_inbox", "message")

    def __init__(self, inbox: ReceiveBuffer, handler: Handler, failures: FailurePolicy) -> None:
        self.message: Message | None = None
        self._inbox = inbox
        self._handler = handler
        self._failures = failures

    async def work(self) -> None:
        """Handle messages until the inbox is closed.

        A message whose handler returns is finished, unless the handler answered it; one whose
        handler raises comes again; when the worker is cancelled, its message is given back.
        """
        inbox, handler = self._inbox, self._handler
        attempt_limit = self._failures.attempt_limit
        monotonic = time.monotonic
        ready = inbox.ready
        while not inbox.is_closed:
            now_s = monotonic()
            if now_s > inbox.turn_ends_at_s:
                await inbox.rest()
                continue
            if not ready and not inbox.refill():
                await inbox.arrival()
                continue
            if now_s > inbox.touch_at_s:
                if now_s > inbox.expires_at_s:
                    inbox.drop_ready()
                    continue
                ready[0].touch()
            self.message = message = ready.popleft()
            if message.attempts > attempt_limit and message.tries > attempt_limit:
                await self._failures.give_up(message)
                continue
            try:
                result: Any = handler(message)
                if result is not None and (type(result) is CoroutineType or isawaitable(result)):
                    await result
            except Exception as error:
                self._failures.failed(message, error)
            except asyncio.CancelledError as error:
                if is_cancelled():
                    self._give_back(message)
                    raise
                # Something that the handler awaited was cancelled, and not the worker: it goes on.
                self._failures.failed(message, error)
            except BaseException as error:
                if isinstance(error, SystemExit) and error.code:
                    self._failures.failed(message, error)  # Not to end each process that gets it.
                else:
                    self._give_back(message)
                raise
            else:
                # What message.finish does, without its calls: this is done for each message.
                answers = message._answers
                if answers is not None:
                    message._answers = None
                    answers.finish(message.id)

    @staticmethod
    def _give_back(message: Message) -> None:
        if not message.is_answered:
            message.give_back()
