"""Run blocking handlers in threads, while the event loop runs the consumer.

The consumer's own workers take the messages, so that attempts, backoff and touches work as for any
handler; each worker passes its message to a thread and awaits the outcome.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue

from martlet.client.consumer.consumer import Consumer
from martlet.client.consumer.message import Message
from martlet.client.errors import HandlerFailed
from martlet.client.sync.acks import posted
from martlet.client.sync.loop_thread import LoopThread

_Worker = asyncio.Task[object]
_Job = tuple[Message, asyncio.Future[None], Context, _Worker]

_here = threading.local()


def workers_here() -> list[_Worker]:
    """The workers whose handlers run in this thread: several if a handler runs others."""
    if not hasattr(_here, "workers"):
        _here.workers = []
    workers: list[_Worker] = _here.workers
    return workers


class Handlers:
    """Threads that handle messages."""

    def __init__(
        self, consumer: Consumer, handler: Callable[[Message], object], thread: LoopThread
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._thread = thread
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop

    async def run(self, concurrency: int) -> None:
        """Handle the consumer's messages, in the loop, until it is stopped."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._consumer.run(self._handle, concurrency=concurrency)
        finally:
            self._jobs.put(None)

    async def _handle(self, message: Message) -> None:
        outcome: asyncio.Future[None] = self._loop.create_future()
        handed = posted(message, self._thread)
        worker = asyncio.current_task()
        assert worker is not None
        self._jobs.put((handed, outcome, copy_context(), worker))
        try:
            await outcome
        finally:
            if handed.is_answered:
                message._answers = None

    def serve(self, concurrency: int) -> None:
        """Handle messages in this thread and in more, until the consumer is stopped."""
        others = [
            threading.Thread(target=self._serve, name=f"martlet handler {number}", daemon=True)
            for number in range(1, concurrency)
        ]
        for thread in others:
            thread.start()
        self._serve()
        for thread in others:
            thread.join()

    def _serve(self) -> None:
        workers = workers_here()
        while (job := self._jobs.get()) is not None:
            message, outcome, context, worker = job
            workers.append(worker)
            try:
                context.run(self._handler, message)
            except Exception as error:
                self._settle(outcome, error)
            except BaseException as error:
                # Ctrl-C: take no more, and give this one back; an error that ends the program must
                # not make the message end the next one.
                self._thread.post(self._consumer.stop)
                if isinstance(error, SystemExit) and error.code:
                    self._settle(outcome, HandlerFailed(f"the handler raised {error!r}"))
                else:
                    if not message.is_answered:
                        message.give_back()
                    self._settle(outcome, None)
                raise
            else:
                self._settle(outcome, None)
            finally:
                workers.pop()
        self._jobs.put(None)  # Leave it to the next thread.

    def _settle(self, outcome: asyncio.Future[None], error: Exception | None) -> None:
        self._loop.call_soon_threadsafe(_settle, outcome, error)


def _settle(outcome: asyncio.Future[None], error: Exception | None) -> None:
    if outcome.done():
        return  # The consumer no longer waits for it.
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)
