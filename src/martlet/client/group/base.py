"""What pull consumers share: how messages are got, offsets, pauses and commits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Literal

from martlet.client.addresses import Addresses
from martlet.client.consumer.base import ConsumerBase
from martlet.client.consumer.handling.workers import WorkerPool
from martlet.client.consumer.settings import HandlerSettings
from martlet.client.errors import Closed
from martlet.client.group.batch import PulledBatch
from martlet.client.group.counters import PullCounts
from martlet.client.group.failures import RETRY, PullFailures, kept_by
from martlet.client.group.flow_limits import FlowLimits
from martlet.client.group.iteration import Handed, Iteration
from martlet.client.group.message import PulledMessage
from martlet.client.group.queues.assigned_queue import AssignedQueue
from martlet.client.group.queues.queue_id import QueueId, find_place
from martlet.client.group.queues.ready_queues import ReadyQueues
from martlet.client.group.rebalance_listener import RebalanceListener
from martlet.client.group.session import PullSession, SessionSettings
from martlet.client.group.settings import ProgressSettings
from martlet.client.group.start_position import Start, check_start, time_ms
from martlet.client.group.stats import PullStats
from martlet.client.group.worker import PullHandler, PullWorker
from martlet.client.settings import ConnectionSettings

logger = logging.getLogger("martlet.client")

Wanted = QueueId | tuple[str, int] | int
"""A queue: its broker and number, or the number alone where that is clear."""


class PullConsumerBase(ConsumerBase[PullSession]):
    """Fetches from queues at one or several brokers, and hands out what comes.

    Args:
        topic: the topic's name.
        group: the group's; None for none.
        addresses: where brokers listen.
        connection, progress, limits, handling: the settings.
        leave_timeout_s: how long handlers may take to end when their queue goes to another member.
    """

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
        self._line = ReadyQueues()
        on_giving_up = handling.on_giving_up
        self._failures = PullFailures(
            handling.retry or RETRY,
            handling.max_attempts or 0,
            self._bury if on_giving_up is None else kept_by(on_giving_up),
        )
        super().__init__(
            topic,
            group,
            addresses,
            connection,
            source=self._line,
            workers=WorkerPool[PullWorker](),
            close_timeout_s=handling.close_timeout_s,
        )
        self._settings = SessionSettings(
            self._topic,
            limits,
            self._line,
            progress.commit_every_s if progress.auto_commit else 0.0,
            leave_timeout_s,
            RebalanceListener(progress.on_assigned, progress.on_revoked),
            self._hooks,
        )
        self._line.on_lost_often = self._lost_often
        self._giving_up: set[asyncio.Task[None]] = set()
        self._handed_out: dict[Handed, None] = {}
        """What iterators have handed out, until they are asked for the next."""

    # three ways to get the messages

    def __aiter__(self) -> AsyncIterator[PulledMessage]:
        """The messages, one by one, those of each queue in order.

        A message is done when the loop asks for the next one, or ``message.finish()`` was called.
        Where the loop is left before, the message comes again.
        """
        self._check_entered()
        return self._messages()

    def _messages(self) -> Iteration[PulledMessage]:
        return Iteration(self._line, self._line.message, self._handed_out)

    def batches(
        self, *, max_messages: int = 10_000, max_wait_ms: float = 0
    ) -> Iteration[PulledBatch]:
        """The messages in batches, each of one queue, in order.

        A batch is done when the loop asks for the next one, or ``batch.finish()`` was called.
        Where the loop is left before, it comes again.

        Args:
            max_messages: no more than this in a batch.  The limits of flow control hold too: set
                those to the size of batches that you want.
            max_wait_ms: how long to wait for a batch to fill after its first message came.
        """
        self._check_entered()
        if max_messages < 1:
            raise ValueError(f"max_messages={max_messages}: 1 is the least")
        take = partial(self._line.batch, max_messages, max_wait_ms / 1000)
        return Iteration(self._line, take, self._handed_out)

    async def run(
        self,
        handler: PullHandler,
        *,
        concurrency: int = 1,
        order: Literal["queue"] | None = None,
        on: Literal["loop", "threads"] = "loop",
    ) -> None:
        """Hand each message to the handler until the consumer is stopped or closed.

        When the handler returns the message is done; when it raises ``Requeue`` it is tried again
        later; when it raises anything else, that is logged, and the message is tried again here,
        and given up after ``max_attempts`` (see `martlet.client.group.failures`).

        Args:
            handler: called with each message.  On the loop: a coroutine function, or a function
                that returns soon.  In threads: a function.
            concurrency: how many handlers may be at work at once.
            order: ``queue`` for one message of each queue at a time, and none before those before
                it are done; it is always so with one handler.
            on: ``loop``, or ``threads`` for a handler that blocks.

        Raises:
            SubscribeRefused, ConnectRefused: a broker no longer takes the consumer when it
                connects again.
        """
        self._check_entered()
        if order not in (None, "queue"):
            raise ValueError(f"order={order!r} must be 'queue', or None for no order")
        if on not in ("loop", "threads"):
            raise ValueError(f"on={on!r} must be 'loop' or 'threads'")
        in_order = order == "queue" or concurrency == 1
        await self._workers.run(
            lambda each: PullWorker(self._line, each, self._failures, in_order),
            handler,
            concurrency,
            on,
        )
        self._line.check()

    def _lost_often(self, message: PulledMessage, count: int) -> None:
        """Give up a message that several members were lost by."""
        task = asyncio.create_task(self._failures.lost_often(message, count))
        self._giving_up.add(task)
        task.add_done_callback(self._giving_up.discard)

    async def _bury(self, message: PulledMessage) -> str | None:
        for session in self._brokers.sessions:
            if str(session.address) == message.place.broker:
                return await session.bury(message)
        raise Closed(f"there is no connection to {message.place.broker} any more")

    # offsets

    @property
    def assignment(self) -> tuple[QueueId, ...]:
        """The queues that are assigned to this consumer."""
        return tuple(held.place for held in self._all_held())

    def position(self, queue: Wanted) -> int:
        """The offset of the message of a queue that is handed out next. Raises ValueError."""
        return self._find(queue)[1].position

    def committed(self, queue: Wanted) -> int:
        """The offset that was committed last. Raises ValueError."""
        return self._find(queue)[1].committed

    def lag(self, queue: Wanted) -> int:
        """How many messages of a queue were not done, as of the last fetch. Raises ValueError."""
        return self._find(queue)[1].lag

    async def seek(self, queue: Wanted, to: Start) -> None:
        """Continue at another offset of a queue; what is here of it is dropped.

        Handlers that are at work on messages of it are not waited for.  The committed offset moves
        there with the next commit, back too: the member that has the queue then begins there.

        Args:
            queue: its number, or broker and number.
            to: an offset, ``"first"``, ``"last"`` (behind all that is stored), or a time.  An
                offset above the end means the end; that is logged.

        Raises:
            ValueError: the queue is not assigned to this consumer, or that is no position.
            ClientError: the broker cannot be asked, or the queue is going to another member.
        """
        to = check_start(to)
        session, held = self._find(queue)
        number = held.place.queue
        if to in ("first", "last"):
            start, end = await session.ends(number)
            offset = start if to == "first" else end
        elif isinstance(to, int):
            offset = to if to <= held.end_offset else min(to, (await session.ends(number))[1])
            if offset < to:
                logger.warning(
                    "%s of %s: offset %d is above the end; on at %d",
                    *(held.place, held.topic, to, offset),
                )
        else:
            offset = await session.offset_at(number, time_ms(to))  # type: ignore[arg-type]
        await session.seek(number, offset)

    def pause(self, *queues: Wanted) -> None:
        """Hand out and fetch nothing of these queues, or of all that are assigned now."""
        for held in self._chosen(queues):
            held.pause()

    def resume(self, *queues: Wanted) -> None:
        """Hand out and fetch again from these queues, or from all."""
        for held in self._chosen(queues):
            held.resume()

    async def commit(self) -> None:
        """Commit the offsets now.

        What iterators handed out last counts as done: call this when it is.

        Raises:
            ClientError, OSError: the offsets could not be committed.
        """
        for each in self._handed_out:
            if each.is_out:
                each.finish()
        self._handed_out.clear()
        await asyncio.gather(*(session.commit() for session in self._brokers.sessions))

    def _all_held(self) -> list[AssignedQueue]:
        return [held for session in self._brokers.sessions for held in session.held.values()]

    def _find(self, queue: Wanted) -> tuple[PullSession, AssignedQueue]:
        place = find_place(queue, self.assignment)
        for session in self._brokers.sessions:
            if str(session.address) == place.broker:
                return session, session.held[place.queue]
        raise AssertionError

    def _chosen(self, queues: tuple[Wanted, ...]) -> list[AssignedQueue]:
        return [self._find(queue)[1] for queue in queues] if queues else self._all_held()

    @property
    def tally(self) -> PullCounts:
        """What became of messages of the brokers that there are now."""
        return sum((session.tally for session in self._brokers.sessions), PullCounts())

    @property
    def stats(self) -> PullStats:
        """The consumer's state, and what it has done so far."""
        brokers, tally, held = self._brokers, self.tally, self._all_held()
        return PullStats(
            counts=PullCounts(
                received=brokers.received + tally.received,
                finished=brokers.finished + tally.finished,
                requeued=brokers.requeued + tally.requeued,
                dead=self._failures.given_up,
            ),
            given_up=self._failures.given_up,
            waiting=sum(each.waiting for each in held),
            workers=self._workers.size,
            connections=tuple(each.stats(each.ready_count) for each in brokers.sessions),
            queues=tuple(each.stats() for each in held),
        )

    @property
    def is_starved(self) -> bool:
        """Whether more could be fetched if what is here were handled faster."""
        return self.stats.is_starved

    # the end

    async def _drain(self, timeout_s: float, besides: Iterable[asyncio.Task[object]]) -> None:
        for task in self._giving_up:
            task.cancel()
        await super()._drain(timeout_s, besides)
