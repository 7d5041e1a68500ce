"""The workers of a consumer, one for each handler that may run at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from martlet.client.consumer.handling.worker import BaseWorker
from martlet.plural import counted

if TYPE_CHECKING:
    from martlet.client.consumer.handling.handler_pool import HandlerPlace

logger = logging.getLogger("martlet.client")

CANCEL_S = 0.25
"""The time that a cancelled handler has to end."""

WorkerT = TypeVar("WorkerT", bound=BaseWorker[Any])
AnyHandler = Callable[[Any], Awaitable[object] | object]
"""A handler of the workers' kind of message."""


class WorkerPool(Generic[WorkerT]):
    """Run workers.

    Attributes:
        wrap: wraps a handler.
        on_begin, on_end: called with starting workers, and with ended ones.
    """

    def __init__(self) -> None:
        self.wrap: Callable[[AnyHandler], AnyHandler] = lambda handler: handler
        self.on_begin: Callable[[Sequence[WorkerT]], object] = lambda _workers: None
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
        on: Literal["loop"] | HandlerPlace,
    ) -> None:
        """Handle messages until there are no more.

        Args:
            make_worker: makes a worker with a handler.
            handler: called with each message.
            concurrency: the number of workers.
            on: the place where the handler runs.

        Raises:
            ValueError: the handler cannot be run there.
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
