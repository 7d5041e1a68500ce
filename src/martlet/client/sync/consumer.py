"""The consumer without ``await``: messages one by one, through a handler, or in batches."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from martlet.client.consumer import consumer as asynchronous
from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.batch import Batch as AsynchronousBatch
from martlet.client.consumer.batch import Decoded, Where
from martlet.client.consumer.handling.give_back import Late
from martlet.client.consumer.message import ExecutorKind, Message
from martlet.client.consumer.stats import ConsumerStats, Counts
from martlet.client.sync.acks import PostedAnswers, posted
from martlet.client.sync.base import LoopProperty, SyncConsumerBase, called, like, next_of
from martlet.client.sync.handlers import Handlers
from martlet.client.sync.loop_thread import LoopThread


class Batch(Decoded):
    """Messages of one broker, in flight until you answer them or they time out.

    It is `martlet.client.Batch`, with methods that block.
    """

    def __init__(self, batch: AsynchronousBatch, thread: LoopThread) -> None:
        super().__init__(batch._run)
        self._batch = batch
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._batch)

    @property
    def unanswered_count(self) -> int:
        """The number of messages that are neither finished nor requeued."""
        return self._batch.unanswered_count

    def finish(self, where: Where | None = None) -> None:
        """Finish these messages; without ``where``, all.

        Raises:
            AlreadyAnswered: one of them was finished or requeued before.
        """
        self._thread.call(self._batch.finish(where))

    def requeue(self, delay_ms: int = 0, where: Where | None = None, **options: Any) -> None:
        """Requeue these messages with a delay in milliseconds.

        Raises:
            AlreadyAnswered: one of them was finished or requeued before.
            ValueError: the delay is negative.
        """
        self._thread.call(self._batch.requeue(delay_ms, where, **options))

    def touch(self) -> None:
        """Reset the timeout of all unanswered messages."""
        self._thread.call(self._batch.touch())


class Consumer(SyncConsumerBase[asynchronous.Consumer]):
    """Receive the messages of a channel from one or several brokers, in any number of threads.

    ::

        with Consumer("orders", "billing") as consumer:
            for message in consumer:
                ...
                message.finish()

    or ``consumer.run(handler, concurrency=10)``, or ``for batch in consumer.batches()``.  It has
    the guarantees and arguments of `martlet.client.Consumer`.
    """

    @like(asynchronous.Consumer.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(asynchronous.Consumer(*arguments, **settings))
        self._ready: deque[Message] = deque()
        """Messages taken out of the loop and not handed out."""
        self._model._returner.besides = self._take_late
        self._expires_at_s = self._touch_at_s = 0.0
        self._refilling = threading.Lock()

    # three ways to get the messages

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """Return the next message, to finish or requeue. Ends when the consumer is stopped."""
        thread = self._entered()
        while not self._model._buffer.is_closed:
            if self._ready and time.monotonic() > self._expires_at_s:
                self._drop()
            try:
                message = self._ready.popleft()
            except IndexError:
                self._refill(thread)
                continue
            cast(PostedAnswers, message._answers).is_handed_out = True
            if time.monotonic() > self._touch_at_s:
                message.touch()
            return message
        self._ask(self._model._buffer.check)
        raise StopIteration

    def batches(self, *, max_messages: int = 10_000, max_wait_ms: float = 0) -> Iterator[Batch]:
        """Iterate over messages in batches, each of one broker, to finish or requeue.

        The arguments are those of `martlet.client.Consumer.batches`. Messages left from iterating
        are given back to the brokers first, which redeliver them.
        """
        thread = self._entered()
        self._give_back()
        batches = self._model.batches(max_messages=max_messages, max_wait_ms=max_wait_ms)
        while True:
            batch = thread.call(next_of(batches))
            if batch is None:
                return
            yield Batch(batch, thread)

    def run(
        self,
        handler: Callable[[Any], object],
        *,
        concurrency: int = 1,
        on: ExecutorKind = "threads",
    ) -> None:
        """Run the handler on each message until the consumer is stopped or closed.

        When the handler returns, the message is finished, unless the handler answered it; when it
        raises ``Requeue``, the message is redelivered later; when it raises ``Reject``, a Martlet
        broker moves it to the channel's dead-letter topic; any other exception is logged and the
        message requeued, with a delay that grows with each attempt.

        On Ctrl-C running handlers complete, and KeyboardInterrupt is raised.

        Args:
            handler: called with each message; for processes a function at the top of a module,
                which gets a ``MessageView``.
            concurrency: the maximum number of handlers at once.
            on: ``threads``, the calling one being the first, or ``processes``.

        Raises:
            SubscribeRefused, ConnectRefused: a broker refuses the consumer when it reconnects.
            ValueError: the handler cannot be run there.
        """
        thread = self._entered()
        if on == "processes":
            running = thread.start(
                self._model.run(handler, concurrency=concurrency, on="processes")
            )
            try:
                running.result()
            except KeyboardInterrupt:
                self.stop()
                thread.result(running)
                raise
            return
        handlers = Handlers(self._model, handler, thread)
        running = thread.start(handlers.run(concurrency))
        try:
            handlers.serve(concurrency)
        except BaseException:
            handlers.serve(1)
            thread.result(running)
            raise
        thread.result(running)

    # state and control

    stop = called(asynchronous.Consumer.stop)
    pause = called(asynchronous.Consumer.pause)
    resume = called(asynchronous.Consumer.resume)
    change_rate = called(asynchronous.Consumer.change_rate)
    change_max_in_flight = called(asynchronous.Consumer.change_max_in_flight)
    counts = LoopProperty[Counts](asynchronous.Consumer.counts)
    stats = LoopProperty[ConsumerStats](asynchronous.Consumer.stats)
    connected_count = LoopProperty[int](asynchronous.Consumer.connected_count)

    def _before_close(self) -> None:
        self.stop()
        self._give_back()

    # between the loop and the other threads

    def _give_back(self) -> None:
        """Give back messages that are ready here and were not handed out."""
        with self._refilling:
            while self._ready:
                self._ready.popleft().give_back()

    def _refill(self, thread: LoopThread) -> None:
        """Take more messages out of the loop, once there are some."""
        with self._refilling:
            if not self._ready:
                thread.call(self._take(thread))

    async def _take(self, thread: LoopThread) -> None:
        """Wait, in the loop, for messages, and make those of one delivery ready."""
        buffer = self._model._buffer
        while not buffer.is_closed:
            if not buffer.refill():
                await buffer.arrival()
            elif time.monotonic() > buffer.expires_at_s:
                buffer.drop_ready()
            else:
                self._expires_at_s = buffer.expires_at_s
                self._touch_at_s = buffer.touch_at_s
                messages = [posted(message, thread) for message in buffer.ready]
                buffer.ready.clear()
                for message in messages:
                    self._model._handed_out.add(message)
                self._ready.extend(messages)
                return

    def _take_late(self, until_s: float) -> Late:
        """Take out, in the loop, ready messages that time out by then."""
        late: dict[AckBatcher, list[bytes]] = {}
        while self._ready and self._expires_at_s < until_s:
            try:
                message = self._ready.pop()
            except IndexError:
                break  # It was handed out meanwhile.
            answers = cast(PostedAnswers, message._answers).answers
            if not answers.are_extended:
                self._ready.append(message)
                break
            message._answers = None
            late.setdefault(answers, []).append(message.id)
        return [(answers, np.array(ids, "S16").view("V16")) for answers, ids in late.items()]

    def _drop(self) -> None:
        """Drop ready messages that timed out: the broker redelivers them."""
        with self._refilling:
            if time.monotonic() <= self._expires_at_s or not self._ready:
                return
            dropped = list(self._ready)
            self._ready.clear()
        self._ask(self._dropped, dropped)

    def _dropped(self, messages: list[Message]) -> None:
        for message in messages:
            cast(PostedAnswers, message._answers).answers.dropped += 1
            message._answers = None
        self._model._buffer.on_expired(len(messages))
