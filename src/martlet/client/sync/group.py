"""Pull consumers without ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Literal

from martlet.client.errors import Closed
from martlet.client.group import broadcast
from martlet.client.group import consumer as asynchronous
from martlet.client.group.base import PullConsumerBase
from martlet.client.group.counters import PullCounts
from martlet.client.group.iteration import HandedT, Iteration
from martlet.client.group.message import PulledMessage
from martlet.client.group.queues.queue_id import QueueId
from martlet.client.group.stats import PullStats
from martlet.client.sync.base import LoopProperty, SyncConsumerBase, awaited, called, next_of
from martlet.client.sync.group_batch import PulledBatch, posted
from martlet.client.sync.handlers import workers_here
from martlet.client.sync.loop_thread import LoopThread
from martlet.client.sync.signatures import like


class SyncPullBase(SyncConsumerBase[PullConsumerBase]):
    """A pull consumer in the event loop's thread, for use in any other thread."""

    # three ways to get the messages

    def __iter__(self) -> Iterator[PulledMessage]:
        """Iterate over messages, those of each queue in order.

        A message is done when the loop requests the next one, or after ``message.finish()``. If the
        loop is left before, the message is handed out again. Each message costs a call of the event
        loop's thread; `batches` makes one for many.
        """
        thread = self._entered()
        messages = self._ask(self._consumer._messages)
        for message in _each(messages, thread):
            yield posted(message, thread)

    def batches(
        self, *, max_messages: int = 10_000, max_wait_ms: float = 0
    ) -> Iterator[PulledBatch]:
        """Iterate over messages in batches, each of one queue, in order.

        The arguments are those of `martlet.client.PullConsumer.batches`.
        """
        thread = self._entered()
        batches = self._ask(
            self._consumer.batches, max_messages=max_messages, max_wait_ms=max_wait_ms
        )
        for batch in _each(batches, thread):
            yield PulledBatch(batch, thread)

    def run(
        self,
        handler: Callable[[PulledMessage], object],
        *,
        concurrency: int = 1,
        order: Literal["queue"] | None = None,
    ) -> None:
        """Run the handler on each message, in threads, until the consumer is stopped or closed.

        It is `martlet.client.PullConsumer.run`. On Ctrl-C running handlers complete, and
        KeyboardInterrupt is raised.
        """
        thread = self._entered()
        running = thread.start(self._run(handler, concurrency, order, thread))
        try:
            running.result()
        except KeyboardInterrupt:
            self.stop()
            thread.result(running)
            raise

    async def _run(
        self,
        handler: Callable[[PulledMessage], object],
        concurrency: int,
        order: Literal["queue"] | None,
        thread: LoopThread,
    ) -> None:
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(max(1, concurrency), "martlet handler")

        def work(message: PulledMessage, worker: asyncio.Task[object]) -> None:
            workers = workers_here()
            workers.append(worker)
            try:
                handler(posted(message, thread))
            finally:
                workers.pop()

        async def handle(message: PulledMessage) -> None:
            worker = asyncio.current_task()
            assert worker is not None
            await loop.run_in_executor(pool, copy_context().run, work, message, worker)

        try:
            await self._consumer.run(handle, concurrency=concurrency, order=order)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    # offsets, state and control

    position = called(PullConsumerBase.position)
    committed = called(PullConsumerBase.committed)
    lag = called(PullConsumerBase.lag)
    seek = awaited(PullConsumerBase.seek)
    pause = called(PullConsumerBase.pause)
    resume = called(PullConsumerBase.resume)
    commit = awaited(PullConsumerBase.commit)
    change_rate = called(PullConsumerBase.change_rate)
    stop = called(PullConsumerBase.stop)
    assignment = LoopProperty[tuple[QueueId, ...]](PullConsumerBase.assignment)
    tally = LoopProperty[PullCounts](PullConsumerBase.tally)
    stats = LoopProperty[PullStats](PullConsumerBase.stats)
    is_starved = LoopProperty[bool](PullConsumerBase.is_starved)
    connected_count = LoopProperty[int](PullConsumerBase.connected_count)


class PullConsumer(SyncPullBase):
    """Handle the messages of the queues that its group assigns to it.

    ::

        with PullConsumer("orders", group="billing") as consumer:
            for message in consumer:
                ...

    It has the guarantees and arguments of `martlet.client.PullConsumer`.
    """

    @like(asynchronous.PullConsumer.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(asynchronous.PullConsumer(*arguments, **settings))


class BroadcastConsumer(SyncPullBase):
    """Handle all messages of a topic, independently of other consumers.

    It has the guarantees and arguments of `martlet.client.BroadcastConsumer`.
    """

    @like(broadcast.BroadcastConsumer.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(broadcast.BroadcastConsumer(*arguments, **settings))


def _each(items: Iteration[HandedT], thread: LoopThread) -> Iterator[HandedT]:
    """Iterate over the items of an iteration in the loop."""
    try:
        while (item := thread.call(next_of(items))) is not None:
            yield item
    finally:
        if (
            not thread.is_current
        ):  # If the garbage collector ends this one, the other ends by itself.
            with suppress(Closed):
                thread.call(items.aclose())
