"""Workers, which call a handler with one message after the other.

A consumer has as many workers as handlers may run at once. They take messages from one buffer and
await the handler themselves: a message costs no task and no future, and yet the handler runs in a
task, with all that asyncio offers there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from inspect import isawaitable
from types import CoroutineType
from typing import Any, Generic, Literal, TypeVar

from martlet.client.consumer.buffer import ReceiveBuffer
from martlet.client.consumer.handling.failure_policy import FailurePolicy, is_failure
from martlet.client.consumer.message import ExecutorKind, Message
from martlet.client.received import ReceivedMessage
from martlet.text import counted

logger = logging.getLogger("martlet.client")

CANCEL_S = 0.25
"""The time that a cancelled handler has to end."""
Handler = Callable[[Message], Awaitable[object] | object]
"""A function, or a coroutine function, that handles a message."""
MessageT = TypeVar("MessageT", bound=ReceivedMessage)


class BaseWorker(ABC, Generic[MessageT]):
    """Call a handler with one message after the other."""

    __slots__ = ("message",)

    def __init__(self) -> None:
        self.message: MessageT | None = None
        """The current one, or the last."""

    @abstractmethod
    async def work(self) -> None:
        """Handle messages until there are no more.

        A message whose handler returns is finished, unless the handler answered it; one whose
        handler raises is retried; when the worker is cancelled, its message is given back.
        """

    @property
    def is_at_work(self) -> bool:
        """Whether its message is unanswered."""
        return self.message is not None and self.message.is_out

    def give_back(self) -> None:
        """Have its message handled again, if it is unanswered."""
        if self.message is not None and self.message.is_out:
            self.message.give_back()

    @abstractmethod
    async def _fail(self, message: MessageT, error: BaseException) -> None:
        """Handle the failure of a message whose handler raised this."""

    async def _on_error(self, message: MessageT, error: BaseException) -> None:
        """Handle an exception of the handler; raise it again if it ends the worker."""
        try:
            if not is_failure(error):
                raise error
            await self._fail(message, error)
        except BaseException:
            self.give_back()
            raise


class Worker(BaseWorker[Message]):
    """Call a handler with the messages of a buffer."""

    __slots__ = ("_buffer", "_failures", "_handler")

    def __init__(self, buffer: ReceiveBuffer, handler: Handler, failures: FailurePolicy) -> None:
        super().__init__()
        self._buffer = buffer
        self._handler = handler
        self._failures = failures

    async def work(self) -> None:
        """Handle messages until the buffer is closed; see `BaseWorker.work`."""
        buffer, handler = self._buffer, self._handler
        attempt_limit = self._failures.attempt_limit
        monotonic = time.monotonic
        ready = buffer.ready
        until_s = 0.0
        """When to check the buffer's times again: at once after anything was awaited."""
        while not buffer.is_closed:
            if not ready or monotonic() > until_s:
                now_s = monotonic()
                if now_s > buffer.turn_ends_at_s:
                    await buffer.rest()
                    continue
                if not ready and not buffer.refill():
                    await buffer.arrival()
                    continue
                if now_s > buffer.touch_at_s:
                    if now_s > buffer.expires_at_s:
                        buffer.drop_ready()
                        continue
                    ready[0].touch()
                until_s = min(buffer.turn_ends_at_s, buffer.touch_at_s)
            self.message = message = ready.popleft()
            if message.attempts > attempt_limit and message.tries > attempt_limit:
                until_s = 0.0
                await self._failures.give_up(message)
                continue
            try:
                result: Any = handler(message)
                if result is not None and (type(result) is CoroutineType or isawaitable(result)):
                    until_s = 0.0
                    await result
            except BaseException as error:
                until_s = 0.0
                await self._on_error(message, error)
            else:
                # message.finish inlined, since this runs for each message.
                answers = message._answers
                if answers is not None:
                    message._answers = None
                    answers.finish(message.id)

    async def _fail(self, message: Message, error: BaseException) -> None:
        self._failures.failed(message, error)

    async def _on_error(self, message: Message, error: BaseException) -> None:
        if isinstance(error, SystemExit) and error.code:
            # It counts as a failure, so that the message does not end each process that gets it.
            self._failures.failed(message, error)
        await super()._on_error(message, error)


WorkerT = TypeVar("WorkerT", bound=BaseWorker[Any])
AnyHandler = Callable[[Any], Awaitable[object] | object]
"""A handler of the workers' kind of message."""


class WorkerPool(Generic[WorkerT]):
    """Run workers."""

    def __init__(self) -> None:
        self.wrap: Callable[[AnyHandler], AnyHandler] = lambda handler: handler
        """Wraps a handler."""
        self.on_begin: Callable[[Sequence[WorkerT]], object] = lambda _workers: None
        """Called with starting workers, and `on_end` with ended ones."""
        self.on_end: Callable[[Sequence[WorkerT]], object] = lambda _workers: None
        self._workers: dict[asyncio.Task[None], WorkerT] = {}

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self._workers)

    async def run(
        self,
        make_worker: Callable[[AnyHandler], WorkerT],
        handler: AnyHandler,
        concurrency: int,
        on: Literal["loop"] | ExecutorKind,
    ) -> None:
        """Handle messages until there are no more. Raises ValueError: the handler cannot be run
        there.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency}: must be at least 1")
        if on == "loop":
            await self._work(make_worker, handler, concurrency)
            return
        # Imported only if used: multiprocessing takes longer to load than the rest.
        from martlet.client.consumer.handling.handler_pool import HandlerPool

        pool = HandlerPool(handler, on, concurrency)
        try:
            await self._work(make_worker, pool, concurrency)
        finally:
            pool.close()

    async def _work(
        self, make_worker: Callable[[AnyHandler], WorkerT], handler: AnyHandler, concurrency: int
    ) -> None:
        handler = self.wrap(handler)
        workers = [make_worker(handler) for _ in range(concurrency)]
        self.on_begin(workers)
        try:
            async with asyncio.TaskGroup() as group:
                for number, worker in enumerate(workers):
                    task = group.create_task(worker.work(), name=f"martlet worker {number}")
                    self._workers[task] = worker
                    task.add_done_callback(self._workers.pop)
        finally:
            self.on_end(workers)

    async def end(self, timeout_s: float, besides: Iterable[asyncio.Task[object]] = ()) -> None:
        """Wait for the handlers up to a time limit; then cancel the rest.

        Their messages are given back, even if the handlers ignore the cancellation. It does not
        wait for the worker that calls this, nor for those ``besides``, which wait for this call.
        """
        others = self._workers.keys() - {asyncio.current_task(), *besides}
        if not others:
            return
        _, late = await asyncio.wait(others, timeout=timeout_s)
        if late:
            handlers = counted(len(late), "handler is", "handlers are")
            logger.warning("%s not done after %.3g s: cancelled", handlers, timeout_s)
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=CANCEL_S)
        for task in late & self._workers.keys():
            worker = self._workers[task]
            if worker.is_at_work:
                logger.error(
                    "the handler of %r does not end, though it was cancelled", worker.message
                )
                worker.give_back()
