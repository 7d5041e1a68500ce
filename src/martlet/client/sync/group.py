"""Pull consumers without ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Literal, Self, TypeVar

from martlet.client.errors import Closed
from martlet.client.group import broadcast
from martlet.client.group import consumer as asynchronous
from martlet.client.group.base import PullConsumerBase, Wanted
from martlet.client.group.counters import PullCounts
from martlet.client.group.iteration import HandedT, Iteration
from martlet.client.group.message import PulledMessage
from martlet.client.group.queues.queue_id import QueueId
from martlet.client.group.start_position import Start
from martlet.client.group.stats import PullStats
from martlet.client.sync.group_batch import PulledBatch, posted
from martlet.client.sync.handlers import workers_here
from martlet.client.sync.loop_thread import LoopThread
from martlet.client.sync.proxy import SyncProxy
from martlet.client.sync.signatures import like

T = TypeVar("T")


class SyncPullBase(SyncProxy):
    """A pull consumer in the event loop's thread, for any other thread.

    Functions that are told of something, such as ``on_assigned``, are called in the event loop's
    thread: they must return soon, and cannot call the consumer.
    """

    def __init__(self, consumer: PullConsumerBase) -> None:
        super().__init__()
        self._consumer = consumer

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            SubscribeRefused, ConnectRefused: a broker will not have it.
            Closed: it has been connected before; make a new one.
        """
        self._enter(self._consumer.__aenter__())
        return self

    # three ways to get the messages

    def __iter__(self) -> Iterator[PulledMessage]:
        """The messages, one by one, those of each queue in order.

        A message is done when the loop asks for the next one, or ``message.finish()`` was called.
        Where the loop is left before, the message comes again.  Each costs a word with the event
        loop's thread; `batches` has it once for many.
        """
        thread = self._entered()
        messages = thread.call(_called(self._consumer._messages))
        for message in _each(messages, thread):
            yield posted(message, thread)

    def batches(
        self, *, max_messages: int = 10_000, max_wait_ms: float = 0
    ) -> Iterator[PulledBatch]:
        """The messages in batches, each of one queue, in order.

        The arguments are those of `martlet.client.PullConsumer.batches`.
        """
        thread = self._entered()
        batches = thread.call(
            _called(
                partial(self._consumer.batches, max_messages=max_messages, max_wait_ms=max_wait_ms)
            )
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
        """Hand each message to the handler, in threads, until the consumer is stopped or closed.

        It is `martlet.client.PullConsumer.run`.  On Ctrl-C the handlers at work end what they do,
        and KeyboardInterrupt is raised.
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

    # where in the queues one is

    def _ask(self, function: Callable[..., T], *arguments: Any) -> T:
        return self._entered().call(_called(function, *arguments))

    @property
    def assignment(self) -> tuple[QueueId, ...]:
        """The queues that are held."""
        return self._ask(lambda: self._consumer.assignment)

    def position(self, queue: Wanted) -> int:
        """The offset of what is handed out next of a queue. Raises ValueError."""
        return self._ask(self._consumer.position, queue)

    def committed(self, queue: Wanted) -> int:
        """The offset that was kept last. Raises ValueError."""
        return self._ask(self._consumer.committed, queue)

    def lag(self, queue: Wanted) -> int:
        """How many messages there were behind those that are done, when it was last fetched from.

        Raises ValueError.
        """
        return self._ask(self._consumer.lag, queue)

    def seek(self, queue: Wanted, to: Start) -> None:
        """Go on elsewhere in a queue; see `martlet.client.PullConsumer.seek`."""
        self._entered().call(self._consumer.seek(queue, to))

    def pause(self, *queues: Wanted) -> None:
        """Hand out and fetch nothing of these queues, or of all that are held now."""
        self._ask(self._consumer.pause, *queues)

    def resume(self, *queues: Wanted) -> None:
        """Go on with these queues, or with all."""
        self._ask(self._consumer.resume, *queues)

    def commit(self) -> None:
        """Keep how far the queues have come, now.

        What iterators handed out last counts as done: call this when it is.

        Raises:
            ClientError, OSError: it could not be kept.
        """
        self._entered().call(self._consumer.commit())

    @property
    def tally(self) -> PullCounts:
        """What became of messages at the brokers that there are."""
        return self._ask(lambda: self._consumer.tally)

    @property
    def stats(self) -> PullStats:
        """How the consumer stands, and what it has done so far."""
        return self._ask(lambda: self._consumer.stats)

    @property
    def is_starved(self) -> bool:
        """Whether more could be fetched if what is here were handled faster."""
        return self.stats.is_starved

    @property
    def connected_count(self) -> int:
        """At how many brokers it is."""
        return self._ask(lambda: self._consumer.connected_count)

    # the end

    def stop(self) -> None:
        """Hand out nothing more: iterators end, and ``run`` returns once its handlers have."""
        self._ask(self._consumer.stop)

    def close(self) -> None:
        """Stop, wait for handlers at work, keep how far the queues have come, and hang up.

        A handler that calls this does not wait for itself; its message comes again.
        """
        thread = self._thread
        if thread is None or thread.is_forked:
            return
        thread.call(self._consumer._close(tuple(workers_here())))


class PullConsumer(SyncPullBase):
    """Handles the messages of the queues that its group allocates to it.

    ::

        with PullConsumer("orders", group="billing") as consumer:
            for message in consumer:
                ...

    It is `martlet.client.PullConsumer` and promises what that promises; the arguments are the same.
    """

    @like(asynchronous.PullConsumer.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(asynchronous.PullConsumer(*arguments, **settings))


class BroadcastConsumer(SyncPullBase):
    """Handles all messages of a topic, whoever else does.

    It is `martlet.client.BroadcastConsumer` and promises what that promises; the arguments are the
    same.
    """

    @like(broadcast.BroadcastConsumer.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(broadcast.BroadcastConsumer(*arguments, **settings))


def _each(items: Iteration[HandedT], thread: LoopThread) -> Iterator[HandedT]:
    """What an iteration in the loop hands out."""
    try:
        while (item := thread.call(_next(items))) is not None:
            yield item
    finally:
        if not thread.is_current:  # Where the garbage collector ends it, it ends by itself.
            with suppress(Closed):
                thread.call(items.aclose())


async def _next(items: Iteration[HandedT]) -> HandedT | None:
    return await anext(items, None)


async def _called(function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)
