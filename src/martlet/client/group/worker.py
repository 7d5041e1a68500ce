"""A worker of a pull consumer: call a handler with one message after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable

from martlet.client.consumer.handling.worker import BaseWorker
from martlet.client.group.failures import PullFailures
from martlet.client.group.message import PulledMessage, PulledMessageState
from martlet.client.group.queues.ready_queues import ReadyQueues

PullHandler = Callable[[PulledMessage], Awaitable[object] | object]
"""A function, or a coroutine function, that handles a message."""


class PullWorker(BaseWorker[PulledMessage]):
    """Call a handler with messages.

    Args:
        line: hands them out.
        handler: called with each message.
        failures: retries failed messages.
        in_order: whether to skip queues that have a message in such a handler.
    """

    __slots__ = ("_failures", "_handler", "_in_order", "_line")

    def __init__(
        self, line: ReadyQueues, handler: PullHandler, failures: PullFailures, in_order: bool
    ) -> None:
        super().__init__()
        self._line = line
        self._handler = handler
        self._failures = failures
        self._in_order = in_order

    async def work(self) -> None:
        """Handle messages until the queues are closed; see `BaseWorker.work`."""
        line, handler, in_order = self._line, self._handler, self._in_order
        while True:
            message = line.message_now(in_order) or await line.message(in_order=in_order)
            if message is None:
                return
            self.message = message
            try:
                result = handler(message)
                if result is not None and isawaitable(result):
                    await result
            except BaseException as error:
                await self._on_error(message, error)
            else:
                if message._stage is PulledMessageState.OUT:
                    message._held.finish(message)

    async def _fail(self, message: PulledMessage, error: BaseException) -> None:
        await self._failures.failed(message, error)
