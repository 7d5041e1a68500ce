"""The workers of a consumer: as many as handlers may be at work at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, cast

from martlet.client.consumer.buffer import ReceiveBuffer
from martlet.client.consumer.handling.auto_touch import AutoTouch
from martlet.client.consumer.handling.failure_policy import FailurePolicy
from martlet.client.consumer.handling.worker import Handler, Worker
from martlet.plural import counted

if TYPE_CHECKING:
    from martlet.client.consumer.handling.handler_pool import HandlerPlace, PlainHandler

logger = logging.getLogger("martlet.client")

CANCEL_S = 0.25
"""How long a handler that is cancelled may take to end."""


class WorkerPool:
    """Has messages handled.

    Args:
        inbox: where they are.
        failures: what becomes of those that are not handled.
        toucher: asks for more time meanwhile.

    Attributes:
        wrap: makes of a handler the one that is called.
    """

    def __init__(self, inbox: ReceiveBuffer, failures: FailurePolicy, toucher: AutoTouch) -> None:
        self._inbox = inbox
        self._failures = failures
        self._toucher = toucher
        self.wrap: Callable[[Handler], Handler] = lambda handler: handler
        self._workers: dict[asyncio.Task[None], Worker] = {}

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self._workers)

    async def run(
        self, handler: Handler | PlainHandler, concurrency: int, on: Literal["loop"] | HandlerPlace
    ) -> None:
        """Have messages handled until the inbox is closed.

        Raises:
            ValueError: the handler cannot be run there.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency}: 1 is the least")
        if on == "loop":
            await self._work(cast(Handler, handler), concurrency)
            return
        # Imported where it is wanted: multiprocessing takes longer to load than the rest.
        from martlet.client.consumer.handling.handler_pool import HandlerPool

        pool = HandlerPool(cast("PlainHandler", handler), on, concurrency)
        try:
            await self._work(pool, concurrency)
        finally:
            pool.close()

    async def _work(self, handler: Handler, concurrency: int) -> None:
        handler = self.wrap(handler)
        workers = [Worker(self._inbox, handler, self._failures) for _ in range(concurrency)]
        self._toucher.begin(workers)
        self._inbox.worker_count += concurrency
        try:
            async with asyncio.TaskGroup() as group:
                for number, worker in enumerate(workers):
                    task = group.create_task(worker.work(), name=f"martlet worker {number}")
                    self._workers[task] = worker
                    task.add_done_callback(self._workers.pop)
        finally:
            self._toucher.end(workers)
            self._inbox.worker_count -= concurrency

    async def end(self, timeout_s: float, besides: Iterable[asyncio.Task[object]] = ()) -> None:
        """Wait until the handlers are done, no longer than so; cancel the others.

        What those are at work on is given back, whether they heed it or not.  The worker that
        calls this is not waited for, nor are those ``besides``, which wait for this.
        """
        others = self._workers.keys() - {asyncio.current_task(), *besides}
        if not others:
            return
        _, late = await asyncio.wait(others, timeout=timeout_s)
        if late:
            told = counted(len(late), "handler is", "handlers are")
            logger.warning("%s not done after %.3g s: cancelled", told, timeout_s)
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=CANCEL_S)
        for task in late & self._workers.keys():
            message = self._workers[task].message
            if message is not None and not message.is_answered:
                logger.error("the handler of %r does not end, though it was cancelled", message)
                message.give_back()
