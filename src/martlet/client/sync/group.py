"""Pull consumers without ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Literal, cast

from martlet.client.group import broadcast
from martlet.client.group import consumer as asynchronous
from martlet.client.group.base import PullConsumerBase
from martlet.client.group.batch import PulledBatch as AsynchronousBatch
from martlet.client.group.batch import PulledColumns
from martlet.client.group.message import (
    MessageQueue,
    PulledMessage,
    PulledMessageState,
    pulled_messages,
)
from martlet.client.group.queues.queue_id import QueueId
from martlet.client.group.stats import PullCounts, PullStats
from martlet.client.sync.base import (
    LoopProperty,
    SyncConsumerBase,
    awaited,
    called,
    iterated,
    like,
)
from martlet.client.sync.handlers import workers_here
from martlet.client.sync.loop_thread import LoopThread


class PostedQueue:
    """Replace the queue of a message: post to the loop that the message is done."""

    __slots__ = ("_message", "_thread", "id", "topic")

    def __init__(self, message: PulledMessage, thread: LoopThread) -> None:
        self.topic = message.topic
        self.id = message.place
        self._message = message
        self._thread = thread

    def finish(self, handed: PulledMessage) -> None:
        """Mark it as done."""
        self._thread.check()
        handed._stage = PulledMessageState.DONE
        self._thread.post(self._finish)

    def _finish(self) -> None:
        message = self._message
        if message._stage is PulledMessageState.OUT:
            message.finish()


def posted(message: PulledMessage, thread: LoopThread) -> PulledMessage:
    """Copy a message, to be finished from any thread."""
    # A message uses only these methods of its queue.
    queue = cast(MessageQueue, PostedQueue(message, thread))
    fields = message.timestamp_ns, 1, message.id, message.body
    [handed] = pulled_messages(queue, [(message.offset, fields)])
    handed._packed, handed.errors = message.packed, message.errors
    handed.attempts = message.attempts
    handed._stage = PulledMessageState.OUT
    return handed


class PulledBatch(PulledColumns):
    """Messages of one queue, in order: done when the next batch is requested, or `finish` called.

    It is `martlet.client.PulledBatch`, for any thread.
    """

    def __init__(self, batch: AsynchronousBatch, thread: LoopThread) -> None:
        super().__init__(batch.topic, batch.place, batch.piece)
        self._batch = batch
        self._thread = thread

    @property
    def is_finished(self) -> bool:
        """Whether they are done."""
        return self._batch.is_finished

    def finish(self) -> None:
        """Mark all of them as done, so that the committed offset may pass them.

        Raises:
            AlreadyAnswered: they were finished before.
        """
        self._thread.call(self._finish())

    async def _finish(self) -> None:
        self._batch.finish()


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
        messages = self._ask(self._model._messages)
        for message in iterated(messages, thread):
            yield posted(message, thread)

    def batches(
        self, *, max_messages: int = 10_000, max_wait_ms: float = 0
    ) -> Iterator[PulledBatch]:
        """Iterate over messages in batches, each of one queue, in order.

        The arguments are those of `martlet.client.PullConsumer.batches`.
        """
        thread = self._entered()
        batches = self._ask(self._model.batches, max_messages=max_messages, max_wait_ms=max_wait_ms)
        for batch in iterated(batches, thread):
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
            await self._model.run(handle, concurrency=concurrency, order=order)
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
    current_counts = LoopProperty[PullCounts](PullConsumerBase.current_counts)
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
