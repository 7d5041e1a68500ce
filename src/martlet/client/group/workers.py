"""The workers of a pull consumer: as many as handlers may be at work at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from inspect import isawaitable
from typing import Literal

from martlet.client.consumer.handling.failure_policy import is_cancelled
from martlet.client.group.failures import PullFailures
from martlet.client.group.message import PulledMessage, PulledMessageState
from martlet.client.group.queues.ready_queues import ReadyQueues
from martlet.plural import counted

logger = logging.getLogger("martlet.client")

PullHandler = Callable[[PulledMessage], Awaitable[object] | object]
"""Handles a message: a function, or a coroutine function."""
CANCEL_S = 0.25
"""How long a handler that is cancelled may take to end."""


class PullWorkerPool:
    """Has messages handled.

    Args:
        line: where they are.
        failures: what becomes of those that are not handled.

    Attributes:
        wrap: makes of a handler the one that is called.
    """

    def __init__(self, line: ReadyQueues, failures: PullFailures) -> None:
        self._line = line
        self._failures = failures
        self.wrap: Callable[[PullHandler], PullHandler] = lambda handler: handler
        self._workers: set[asyncio.Task[None]] = set()

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self._workers)

    async def run(
        self, handler: PullHandler, concurrency: int, in_order: bool, on: Literal["loop", "threads"]
    ) -> None:
        """Have messages handled until the line is closed."""
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency}: 1 is the least")
        if on not in ("loop", "threads"):
            raise ValueError(f"on={on!r} must be 'loop' or 'threads'")
        if on == "loop":
            await self._work(handler, concurrency, in_order)
            return
        pool = ThreadPoolExecutor(concurrency, "martlet handler")
        loop = asyncio.get_running_loop()
        try:

            def threaded(message: PulledMessage) -> Awaitable[object]:
                return loop.run_in_executor(pool, copy_context().run, handler, message)

            await self._work(threaded, concurrency, in_order)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    async def _work(self, handler: PullHandler, concurrency: int, in_order: bool) -> None:
        handler = self.wrap(handler)
        async with asyncio.TaskGroup() as group:
            for number in range(concurrency):
                task = group.create_task(
                    self._handle(handler, in_order), name=f"martlet worker {number}"
                )
                self._workers.add(task)
                task.add_done_callback(self._workers.discard)

    async def _handle(self, handler: PullHandler, in_order: bool) -> None:
        """Handle messages, one after the other."""
        line, failures = self._line, self._failures
        while True:
            message = line.message_now(in_order) or await line.message(in_order=in_order)
            if message is None:
                return
            try:
                result = handler(message)
                if result is not None and isawaitable(result):
                    await result
            except Exception as error:
                await self._deal_with(message, failures.failed(message, error))
            except asyncio.CancelledError as error:
                if is_cancelled():
                    _put_back(message)
                    raise
                # Something that the handler awaited was cancelled, and not the worker: it goes on.
                await self._deal_with(message, failures.failed(message, error))
            except BaseException:
                _put_back(message)
                raise
            else:
                if message._stage is PulledMessageState.OUT:
                    message._held.finish(message)

    @staticmethod
    async def _deal_with(message: PulledMessage, dealing: Awaitable[None]) -> None:
        try:
            await dealing
        except BaseException:
            _put_back(message)
            raise

    async def end(self, timeout_s: float, besides: Iterable[asyncio.Task[object]] = ()) -> None:
        """Wait until the handlers are done, no longer than so; cancel the others.

        The worker that calls this is not waited for, nor are those ``besides``.
        """
        others = self._workers - {asyncio.current_task(), *besides}
        if not others:
            return
        _, late = await asyncio.wait(others, timeout=timeout_s)
        if late:
            told = counted(len(late), "handler is", "handlers are")
            logger.warning("%s not done after %.3g s: cancelled", told, timeout_s)
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=CANCEL_S)


def _put_back(message: PulledMessage) -> None:
    if message._stage is PulledMessageState.OUT:
        message._held.put_back(message)
