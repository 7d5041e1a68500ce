"""A worker of a pull consumer: call a handler with one message after the other."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable

from martlet.client.consumer.handling.worker import BaseWorker
from martlet.client.group.failures import PullFailures
from martlet.client.group.message import PulledMessage, PulledMessageState
from martlet.client.group.queues.assigned_queue import AssignedQueue
from martlet.client.group.queues.ready_queues import ReadyQueues

MAX_RUN = 1024
"""The maximum number of messages of a queue handled in its turn."""
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
        line, in_order = self._line, self._in_order
        run_size = 0
        while True:
            held = line.run_now(in_order) if run_size else None
            if held is not None:
                run_size = min(2 * await self._handle_run(held, run_size), MAX_RUN)
                continue
            message = line.message_now(in_order) or await line.message(in_order=in_order)
            if message is None:
                return
            self.message = message
            try:
                result = self._handler(message)
                run_size = run_size or 1
                if result is not None and isawaitable(result):
                    run_size = 0
                    await result
            except BaseException as error:
                await self._on_error(message, error)
            else:
                if message._stage is PulledMessageState.OUT:
                    message._held.finish(message)

    async def _handle_run(self, held: AssignedQueue, max_count: int) -> int:
        """Handle messages while the handler returns at once and the turn lasts.

        Returns their number; 0 if one was awaited, or failed, or the handler changed the queue.
        """
        line, handler = self._line, self._handler
        monotonic, out, done = time.monotonic, PulledMessageState.OUT, PulledMessageState.DONE
        run = held.begin_run(max_count)
        try:
            for message in run:
                if monotonic() > line.turn_ends_at_s:
                    break
                message._stage = out
                message.attempts = 1
                self.message = message
                try:
                    result = handler(message)
                    if result is not None and isawaitable(result):
                        held.leave_run()
                        await result
                except BaseException as error:
                    held.leave_run()
                    await self._on_error(message, error)
                    return 0
                if held.run is not run:
                    if message._stage is out:
                        held.finish(message)
                    return 0
                message._stage = done
            return held.leave_run()
        finally:
            held.leave_run()

    async def _fail(self, message: PulledMessage, error: BaseException) -> None:
        await self._failures.failed(message, error)
