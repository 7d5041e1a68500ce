"""The consumer of a channel: messages one by one, through a handler, or in batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Literal, Self, Unpack, overload

from martlet.addresses import Address
from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.base import ConsumerBase
from martlet.client.consumer.batch import Batch
from martlet.client.consumer.buffer import ReceiveBuffer
from martlet.client.consumer.flow import Flow
from martlet.client.consumer.handling.auto_touch import AutoTouch, HandedOut
from martlet.client.consumer.handling.failure_policy import RETRY, FailurePolicy
from martlet.client.consumer.handling.give_back import UnstartedReturner
from martlet.client.consumer.handling.worker import Handler, Worker, WorkerPool
from martlet.client.consumer.message import ExecutorKind, Message, PlainHandler
from martlet.client.consumer.settings import ConsumerOptions, DeliverySettings, HandlerSettings
from martlet.client.consumer.stats import ConsumerStats, Counts, Losses
from martlet.client.consumer.subscription import Subscription
from martlet.client.consumer.watchdog import ConsumerSnapshot, Watchdog
from martlet.client.errors import ClientError
from martlet.client.keywords import apply_options, check_at_least
from martlet.client.settings import Addresses, ConnectionSettings
from martlet.client.transport.active import warn_of_copies

REMEMBERED = 2
"""The number of messages remembered after handing them out one by one, as a multiple of
``max_in_flight``: timed-out messages are redelivered beside those that are remembered.
"""


class Consumer(ConsumerBase[Subscription]):
    """Receive the messages of a channel from one or several brokers.

    ::

        async with Consumer("orders", "billing") as consumer:
            async for message in consumer:
                ...
                message.finish()

    or ``await consumer.run(handler, concurrency=10)``, or ``async for batch in
    consumer.batches()``.  Lost connections are remade, for ever. An unfinished message is
    redelivered: delivery is at least once.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        addresses: Addresses | None = None,
        *,
        connection: ConnectionSettings | None = None,
        delivery: DeliverySettings | None = None,
        handling: HandlerSettings | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """Take the settings; ``async with`` connects.

        Args:
            topic: the topic's name.
            channel: the channel's name; the broker creates it if missing.
            addresses: of the brokers, as ``"host:port"``; messages come from all of them. Without
                these and lookup daemons: 127.0.0.1:4150.
            connection: how to find and connect to brokers.
            delivery: which messages to request, and how many at a time.
            handling: the handling of messages whose handlers fail.
            options: any field of these settings by name, overriding its value there, such as
                ``tags="red"``, ``max_in_flight=500``, ``lookup="host:4161"``, ``hooks=...``.

        Raises:
            TypeError: there is no such option.
            ValueError: a setting is out of its limits; the text says which.
        """
        settings = apply_options(
            type(self),
            options,
            connection or ConnectionSettings(),
            delivery or DeliverySettings(),
            handling or HandlerSettings(),
        )
        connection, delivery, handling = settings
        max_in_flight = delivery.max_in_flight
        self._policy = delivery.policy
        self._failures = FailurePolicy(
            handling.retry or RETRY,
            handling.max_attempts or 0,
            handling.on_giving_up,
            answers_requests=delivery.answers_requests,
        )
        self._buffer = ReceiveBuffer()
        self._handed_out = HandedOut(REMEMBERED * max_in_flight)
        self._auto_touch = AutoTouch(delivery.auto_touch, self._handed_out)
        self._buffer.is_out = lambda: self._handed_out.has_open or bool(self._auto_touch.held())
        workers: WorkerPool[Worker] = WorkerPool()
        workers.on_begin, workers.on_end = self._on_work_begin, self._on_work_end
        super().__init__(
            topic,
            channel,
            addresses,
            _identified(connection, delivery),
            source=self._buffer,
            workers=workers,
            handling=handling,
        )
        self._losses = Losses()
        self._buffer.on_expired = self._losses.on_expired
        self._returner = UnstartedReturner(self._buffer)
        self._returner.hold, self._returner.go_on = self._hold, self._go_on
        self._flow = Flow(
            max_in_flight,
            delivery.rotation,
            delivery.failure_backoff,
            f"channel {channel} of topic {topic}",
        )
        self._watchdog = Watchdog(delivery.stall_after_s, self._snapshot, delivery.on_stall)

    async def __aenter__(self) -> Self:
        """Connect and subscribe; see `ConsumerBase.__aenter__`."""
        await super().__aenter__()
        self._watchdog.begin()
        return self

    def _make_session(self, address: Address) -> Subscription:
        subscription = Subscription(
            address,
            self._topic,
            self._name,
            self._dialer(address),
            self._connection.connect_timeout_s,
            self._policy,
        )
        subscription.on_delivery = self._buffer.put
        subscription.on_ready = self._on_ready
        subscription.auto_touch = self._auto_touch.is_on
        subscription.on_lost = self._on_lost
        subscription.on_late = self._losses.on_late
        subscription.on_answer = self._flow.feed
        subscription.on_settled = self._flow.settle
        subscription.backs_off_always = self._flow.backs_off_always
        subscription.instrument(self._hooks)
        return subscription

    # three ways to get the messages

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """Return the next message, to finish or requeue. Ends when the consumer is stopped."""
        self._check_entered()
        buffer = self._buffer
        while not buffer.is_closed:
            now_s = time.monotonic()
            if now_s > buffer.turn_ends_at_s:
                await buffer.rest()
            elif not buffer.refill():
                await buffer.arrival()
            elif now_s <= buffer.touch_at_s:
                message = buffer.ready.popleft()
                self._handed_out.add(message)
                return message
            elif now_s > buffer.expires_at_s:
                buffer.drop_ready()
            else:
                message = buffer.ready.popleft()
                self._handed_out.add(message)
                message.touch()
                return message
        buffer.check()
        raise StopAsyncIteration

    async def batches(
        self, *, max_messages: int = 10_000, max_wait_ms: float = 0
    ) -> AsyncIterator[Batch]:
        """Iterate over messages in batches, each of one broker, to finish or requeue.

        Args:
            max_messages: the maximum size of a batch. A batch is never larger than the broker's
                part of ``max_in_flight`` either: set that to the size of batches that you want.
            max_wait_ms: the maximum wait for a batch to fill after its first message.
        """
        self._check_entered()
        if max_messages < 1:
            raise ValueError(f"max_messages={max_messages}: must be at least 1")
        buffer = self._buffer
        while not buffer.is_closed:
            if max_wait_ms > 0:
                await buffer.fill(max(1, min(max_messages, self.max_in_flight)), max_wait_ms / 1000)
            batch = buffer.next_batch(max_messages)
            if batch is None:
                await buffer.arrival()
            else:
                self._auto_touch.take(batch)
                try:
                    may_begin = await buffer.begin(batch)
                except BaseException:
                    batch.give_back(is_started=False)
                    raise
                if may_begin:
                    yield batch
                else:
                    batch.give_back(is_started=False)
        buffer.check()

    @overload
    async def run(
        self, handler: Handler, *, concurrency: int = 1, on: Literal["loop"] = "loop"
    ) -> None: ...

    @overload
    async def run(
        self, handler: PlainHandler, *, concurrency: int = 1, on: ExecutorKind
    ) -> None: ...

    async def run(
        self,
        handler: Handler | PlainHandler,
        *,
        concurrency: int = 1,
        on: Literal["loop"] | ExecutorKind = "loop",
    ) -> None:
        """Run the handler on each message until the consumer is stopped or closed.

        When the handler returns, the message is finished, unless the handler answered it; when it
        raises ``Requeue``, the message is redelivered later; when it raises ``Reject``, a Martlet
        broker moves it to the channel's dead-letter topic; any other exception is logged and the
        message requeued, with a delay that grows with each attempt, or, if it is a request, replied
        with the error. In threads and processes, bytes that the handler of a request returns are
        the reply.

        Args:
            handler: called with each message.  On the loop: a coroutine function, or a function
                that returns soon.  In threads and processes: a function, called with a
                ``MessageView``; for processes one at the top of a module.
            concurrency: the maximum number of handlers at once.
            on: ``loop``, or ``threads`` for a handler that blocks, or ``processes`` for one that
                computes for long, so that heartbeats are answered meanwhile.

        Raises:
            SubscribeRefused, ConnectRefused: a broker refuses the consumer when it reconnects.
            ValueError: the handler cannot be run there.
        """
        self._check_entered()
        await self._workers.run(
            lambda wrapped: Worker(self._buffer, wrapped, self._failures), handler, concurrency, on
        )
        self._buffer.check()

    @property
    def counts(self) -> Counts:
        """The consumer's counts so far."""
        brokers = self._brokers
        sessions = brokers.sessions
        return Counts(
            received=brokers.received + sum(session.received for session in sessions),
            finished=brokers.finished + sum(session.finished for session in sessions),
            requeued=brokers.requeued + sum(session.requeued for session in sessions),
            expired=self._losses.expired,
            late=self._losses.late,
        )

    @property
    def stats(self) -> ConsumerStats:
        """The consumer's state and counts so far."""
        flow = self._flow
        ready = flow.readiness.counts
        return ConsumerStats(
            counts=self.counts,
            given_up=self._failures.given_up,
            waiting=self._buffer.count(),
            workers=self._workers.size,
            max_in_flight=self.max_in_flight,
            is_paused=flow.readiness.is_paused,
            backoff=flow.gate.state.value,
            backoff_level=flow.gate.level,
            connections=tuple(
                session.stats(ready.get(session, 0)) for session in self._brokers.sessions
            ),
            stall=self._watchdog.stall,
        )

    @property
    def is_starved(self) -> bool:
        """Whether a broker could send more if messages were answered faster."""
        return self.stats.is_starved

    def _snapshot(self) -> ConsumerSnapshot:
        """Return the state for the watchdog."""
        flow, buffer = self._flow, self._buffer
        readiness = flow.readiness
        counts = self.counts
        return ConsumerSnapshot(
            connected=self.connected_count,
            ready=sum(readiness.counts.values()),
            is_held_back=(
                readiness.is_paused or not readiness.max_in_flight or buffer.waits_for_rate
            ),
            backoff=flow.gate.state,
            trial_at_s=flow.trial_at_s,
            waiting=buffer.count() + self._returner.returned_count,
            progress=(
                *(counts.finished, counts.requeued, counts.expired),
                *(buffer.taken, len(buffer.ready)),
            ),
        )

    # flow control

    @property
    def max_in_flight(self) -> int:
        """The maximum number of received and unanswered messages."""
        return self._flow.readiness.max_in_flight

    def change_max_in_flight(self, max_in_flight: int) -> None:
        """Change the maximum number of unanswered messages; 0 lets none come.

        Raises:
            ValueError: it is negative.
        """
        check_at_least("max_in_flight", max_in_flight, 0, "0 lets none come")
        self._handed_out.remember(REMEMBERED * max_in_flight)
        self._flow.change(max_in_flight)

    def pause(self) -> None:
        """Stop requesting messages until ``resume``; those received already are handed out."""
        self._flow.pause()

    def resume(self) -> None:
        """Request messages again."""
        self._flow.resume()

    # events

    def _on_failure(self, error: Exception) -> None:
        if not isinstance(error, ClientError):
            self._on_trouble(f"keeping a connection broke: {error!r}")
        super()._on_failure(error)

    def _on_trouble(self, cause: str) -> None:
        self._watchdog.report(cause)

    def _on_work_begin(self, workers: Sequence[Worker]) -> None:
        self._auto_touch.begin(workers)
        self._buffer.worker_count += len(workers)

    def _on_work_end(self, workers: Sequence[Worker]) -> None:
        self._auto_touch.end(workers)
        self._buffer.worker_count -= len(workers)

    def _on_ready(self, subscription: Subscription) -> None:
        if subscription.connection is not None:
            sessions = self._brokers.sessions
            others = ((str(session.address), session.connection) for session in sessions)
            warn_of_copies(
                str(subscription.address),
                subscription.connection,
                others,
                "what was published before the copy comes twice",
            )
        self._auto_touch.connected(subscription.message_timeout_s)
        self._returner.connected(subscription.message_timeout_s)
        self._flow.add(subscription)

    def _hold(self, answers: AckBatcher) -> None:
        for subscription in self._brokers.sessions:
            if subscription.is_answered_by(answers):
                subscription.hold()

    def _go_on(self) -> None:
        for subscription in self._brokers.sessions:
            subscription.go_on()

    def _on_lost(self, subscription: Subscription, answers: AckBatcher) -> None:
        self._buffer.forget(answers)
        self._flow.remove(subscription)
        self._brokers.seek(subscription)

    # closing

    def stop(self) -> None:
        """Stop handing out messages: iterators end, and ``run`` returns after its handlers."""
        self._flow.stop()
        super().stop()

    async def _drain(self, timeout_s: float, besides: Iterable[asyncio.Task[object]]) -> None:
        await super()._drain(timeout_s, besides)
        self._handed_out.give_back()
        for batch in self._auto_touch.held():
            batch.give_back()
        self._give_back()

    def _on_left(self) -> None:
        self._give_back()  # Messages that arrived before the brokers had read CLS.

    def _give_back(self) -> None:
        for answers, ids in self._buffer.drain():
            answers.give_back(ids)

    async def _hang_up(self, timeout_s: float) -> None:
        self._flow.stop()
        self._auto_touch.close()
        self._returner.close()
        self._watchdog.end()
        await super()._hang_up(timeout_s)


def _identified(connection: ConnectionSettings, delivery: DeliverySettings) -> ConnectionSettings:
    """Return the settings of the connections of a consumer, which says if it keeps an order."""
    in_order = delivery.order == "queue"
    return replace(connection, identity=replace(connection.identity, in_order=in_order))
