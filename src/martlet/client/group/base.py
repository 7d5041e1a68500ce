"""The base of pull consumers: messages, offsets, pauses and commits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Literal

from martlet.client.consumer.base import ConsumerBase
from martlet.client.consumer.handling.worker import WorkerPool
from martlet.client.consumer.settings import HandlerSettings
from martlet.client.errors import Closed
from martlet.client.group.batch import PulledBatch
from martlet.client.group.failures import RETRY, PullFailures, kept_by
from martlet.client.group.iteration import Handed, Iteration
from martlet.client.group.known_brokers import KnownBrokers
from martlet.client.group.message import PulledMessage
from martlet.client.group.queues.assigned_queue import AssignedQueue
from martlet.client.group.queues.queue_id import QueueId, find_queue
from martlet.client.group.queues.ready_queues import ReadyQueues
from martlet.client.group.session import PullSession, SessionSettings
from martlet.client.group.settings import FlowLimits, ProgressSettings, Start, check_start, time_ms
from martlet.client.group.stats import PullCounts, PullStats
from martlet.client.group.worker import PullHandler, PullWorker
from martlet.client.settings import Addresses, ConnectionSettings

logger = logging.getLogger("martlet.client")

AnyQueue = QueueId | tuple[str, int] | int
"""A queue: its broker and number, or the number alone if that is unique."""


class PullConsumerBase(ConsumerBase[PullSession]):
    """Fetch from queues at one or several brokers, and hand out the messages."""

    def __init__(
        self,
        topic: str,
        group: str | None,
        addresses: Addresses | None,
        *,
        connection: ConnectionSettings,
        progress: ProgressSettings,
        limits: FlowLimits,
        handling: HandlerSettings,
        leave_timeout_s: float,
    ) -> None:
        self._ready_queues = ReadyQueues()
        on_giving_up = handling.on_giving_up
        self._failures = PullFailures(
            handling.retry or RETRY,
            handling.max_attempts or 0,
            self._dead_letter if on_giving_up is None else kept_by(on_giving_up),
        )
        super().__init__(
            topic,
            group,
            addresses,
            connection,
            source=self._ready_queues,
            workers=WorkerPool[PullWorker](),
            handling=handling,
        )
        self._settings = SessionSettings(
            self._topic,
            limits,
            self._ready_queues,
            progress.commit_every_s if progress.auto_commit else 0.0,
            leave_timeout_s,
            progress.on_assigned,
            progress.on_revoked,
            self._hooks,
            KnownBrokers(),
            self._brokers.seek,
        )
        self._ready_queues.on_lost_often = self._lost_often
        self._giving_up: set[asyncio.Task[None]] = set()
        self._handed_out: dict[Handed, None] = {}
        """The items that iterators have handed out, until the next is requested."""

    # three ways to get the messages

    def __aiter__(self) -> AsyncIterator[PulledMessage]:
        """Iterate over messages, those of each queue in order.

        A message is done when the loop requests the next one, or after ``message.finish()``. If the
        loop is left before, the message is handed out again.
        """
        self._check_entered()
        return self._messages()

    def _messages(self) -> Iteration[PulledMessage]:
        return Iteration(self._ready_queues, self._ready_queues.message, self._handed_out)

    def batches(
        self, *, max_messages: int = 10_000, max_wait_ms: float = 0
    ) -> Iteration[PulledBatch]:
        """Iterate over messages in batches, each of one queue, in order.

        A batch is done when the loop requests the next one, or after ``batch.finish()``. If the
        loop is left before, it is handed out again.

        Args:
            max_messages: the maximum size of a batch. The limits of flow control apply too: set
                those to the size of batches that you want.
            max_wait_ms: the maximum wait for a batch to fill after its first message.
        """
        self._check_entered()
        if max_messages < 1:
            raise ValueError(f"max_messages={max_messages}: must be at least 1")
        take = partial(self._ready_queues.batch, max_messages, max_wait_ms / 1000)
        return Iteration(self._ready_queues, take, self._handed_out)

    async def run(
        self,
        handler: PullHandler,
        *,
        concurrency: int = 1,
        order: Literal["queue"] | None = None,
        on: Literal["loop", "threads"] = "loop",
    ) -> None:
        """Run the handler on each message until the consumer is stopped or closed.

        When the handler returns, the message is done; when it raises ``Requeue``, the message is
        tried again later; any other exception is logged, and the message is tried again here, and
        dead-lettered after ``max_attempts`` (see `martlet.client.group.failures`).

        Args:
            handler: called with each message.  On the loop: a coroutine function, or a function
                that returns soon.  In threads: a function.
            concurrency: the maximum number of handlers at once.
            order: ``queue`` to handle one message of each queue at a time, in order; with one
                handler it is always so.
            on: ``loop``, or ``threads`` for a handler that blocks.

        Raises:
            SubscribeRefused, ConnectRefused: a broker refuses the consumer when it reconnects.
        """
        self._check_entered()
        if order not in (None, "queue"):
            raise ValueError(f"order={order!r} must be 'queue', or None for no order")
        if on not in ("loop", "threads"):
            raise ValueError(f"on={on!r} must be 'loop' or 'threads'")
        in_order = order == "queue" or concurrency == 1
        await self._workers.run(
            lambda wrapped: PullWorker(self._ready_queues, wrapped, self._failures, in_order),
            handler,
            concurrency,
            on,
        )
        self._ready_queues.check()

    def _lost_often(self, message: PulledMessage, count: int) -> None:
        """Dead-letter a message whose handling ended with several lost members."""
        task = asyncio.create_task(self._failures.lost_often(message, count))
        self._giving_up.add(task)
        task.add_done_callback(self._giving_up.discard)

    async def _dead_letter(self, message: PulledMessage) -> str | None:
        for session in self._brokers.sessions:
            if session.broker.name == message.place.broker and session.is_connected:
                return await session.dead_letter(message)
        raise Closed(f"there is no connection to {message.place.broker} any more")

    # offsets

    @property
    def assignment(self) -> tuple[QueueId, ...]:
        """The queues assigned to this consumer."""
        return tuple(held.id for held in self._all_held())

    def position(self, queue: AnyQueue) -> int:
        """Return the offset of a queue's message that is handed out next. Raises ValueError."""
        return self._find(queue)[1].position

    def committed(self, queue: AnyQueue) -> int:
        """Return the last committed offset. Raises ValueError."""
        return self._find(queue)[1].committed

    def lag(self, queue: AnyQueue) -> int:
        """Return a queue's lag, as of the last fetch. Raises ValueError."""
        return self._find(queue)[1].lag

    async def seek(self, queue: AnyQueue, to: Start) -> None:
        """Continue at another offset of a queue, and drop its messages here.

        It does not wait for handlers of its messages. The committed offset moves there with the
        next commit, also backwards: a later holder of the queue begins there.

        Args:
            queue: its number, or broker and number.
            to: an offset, ``"first"``, ``"last"`` (after all stored messages), or a time.  An
                offset above the end raises no error: the queue continues at its end, and a warning
                is logged.

        Raises:
            ValueError: the queue is not assigned to this consumer, or that is no position.
            ClientError: the broker does not answer, or the queue is moving to another member.
        """
        to = check_start(to)
        session, held = self._find(queue)
        number = held.id.queue
        if to in ("first", "last"):
            start, end = await session.ends(number)
            offset = start if to == "first" else end
        elif isinstance(to, int):
            offset = to if to <= held.end_offset else min(to, (await session.ends(number))[1])
            if offset < to:
                logger.warning(
                    "%s of %s: offset %d is above the end; continues at offset %d",
                    *(held.id, held.topic, to, offset),
                )
        else:
            offset = await session.offset_at(number, time_ms(to))  # type: ignore[arg-type]
        await session.seek(number, offset)

    def pause(self, *queues: AnyQueue) -> None:
        """Stop fetching and handing out of these queues, or of all assigned now."""
        for held in self._chosen(queues):
            held.pause()

    def resume(self, *queues: AnyQueue) -> None:
        """Resume fetching and handing out of these queues, or of all."""
        for held in self._chosen(queues):
            held.resume()

    async def commit(self) -> None:
        """Commit the offsets now.

        The last item of each iterator counts as done: call this when it is.

        Raises:
            ClientError, OSError: the offsets could not be committed.
        """
        for item in self._handed_out:
            if item.is_out:
                item.finish()
        self._handed_out.clear()
        await asyncio.gather(*(session.commit() for session in self._brokers.sessions))

    def _all_held(self) -> list[AssignedQueue]:
        return [held for session in self._brokers.sessions for held in session.held.values()]

    def _find(self, queue: AnyQueue) -> tuple[PullSession, AssignedQueue]:
        queue_id = find_queue(queue, self.assignment, self._topic)
        for session in self._brokers.sessions:
            held = session.held.get(queue_id.queue)
            if held is not None and held.id == queue_id:
                return session, held
        raise AssertionError

    def _chosen(self, queues: tuple[AnyQueue, ...]) -> list[AssignedQueue]:
        return [self._find(queue)[1] for queue in queues] if queues else self._all_held()

    @property
    def current_counts(self) -> PullCounts:
        """The counts of messages of the current brokers; `stats` has those of former ones too."""
        return sum((session.counts for session in self._brokers.sessions), PullCounts())

    tally = current_counts
    """The former name of `current_counts`."""

    @property
    def stats(self) -> PullStats:
        """The consumer's state and counts so far."""
        queues = self._all_held()
        for queue in queues:
            queue.leave_run()
        brokers, current = self._brokers, self.current_counts
        return PullStats(
            counts=PullCounts(
                received=brokers.received + current.received,
                finished=brokers.finished + current.finished,
                requeued=brokers.requeued + current.requeued,
                dead=self._failures.given_up,
            ),
            given_up=self._failures.given_up,
            waiting=sum(queue.waiting for queue in queues),
            workers=self._workers.size,
            connections=tuple(session.stats(session.ready_count) for session in brokers.sessions),
            queues=tuple(queue.stats() for queue in queues),
        )

    @property
    def is_starved(self) -> bool:
        """Whether more could be fetched if messages were handled faster."""
        return self.stats.is_starved

    # closing

    async def _drain(self, timeout_s: float, besides: Iterable[asyncio.Task[object]]) -> None:
        for task in self._giving_up:
            task.cancel()
        await super()._drain(timeout_s, besides)
