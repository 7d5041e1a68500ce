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

PullHandler = Callable[[PulledMessage], Awaitable[object] | object]
"""A function, or a coroutine function, that handles a message."""


class PullWorker(BaseWorker[PulledMessage]):
    """Call a handler with the messages of ready queues.

    Args:
        in_order: whether to skip queues that have a message in such a handler.
    """

    __slots__ = ("_failures", "_handler", "_in_order", "_ready_queues")

    def __init__(
        self,
        ready_queues: ReadyQueues,
        handler: PullHandler,
        failures: PullFailures,
        in_order: bool,
    ) -> None:
        super().__init__()
        self._ready_queues = ready_queues
        self._handler = handler
        self._failures = failures
        self._in_order = in_order

    async def work(self) -> None:
        """Handle messages until the queues are closed; see `BaseWorker.work`."""
        queues, in_order = self._ready_queues, self._in_order
        is_quick = False
        """Whether the handler has returned at once."""
        while True:
            held = queues.run_now(in_order) if is_quick else None
            if held is not None:
                is_quick = await self._handle_run(held)
                continue
            message = queues.message_now(in_order) or await queues.message(in_order=in_order)
            if message is None:
                return
            self.message = message
            try:
                result = self._handler(message)
                is_quick = True
                if result is not None and isawaitable(result):
                    is_quick = False
                    await result
            except BaseException as error:
                await self._on_error(message, error)
            else:
                if message._stage is PulledMessageState.OUT:
                    message._held.finish(message)

    async def _handle_run(self, held: AssignedQueue) -> bool:
        """Handle messages while the handler returns at once. Returns whether all were."""
        queues, handler = self._ready_queues, self._handler
        monotonic, out, done = time.monotonic, PulledMessageState.OUT, PulledMessageState.DONE
        ready = held.begin_run()
        try:
            while ready and monotonic() <= queues.turn_ends_at_s:
                self.message = message = ready[0]
                message._stage = out
                message.attempts = 1
                try:
                    result = handler(message)
                    if result is not None and isawaitable(result):
                        held.leave_run()
                        await result
                except BaseException as error:
                    held.leave_run()
                    await self._on_error(message, error)
                    return False
                if held.run is None:
                    if message._stage is out:
                        held.finish(message)
                    return False
                message._stage = done
                ready.popleft()
            return True
        finally:
            held.leave_run()

    async def _fail(self, message: PulledMessage, error: BaseException) -> None:
        await self._failures.failed(message, error)
