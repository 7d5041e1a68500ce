"""What all pull consumers have in common: how messages are got, and where in the queues one is."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from functools import partial
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar

from martlet.addresses import Address
from martlet.client.addresses import Addresses, parse_addresses
from martlet.client.consumer.brokers import ConsumerBrokers
from martlet.client.consumer.handling.failure_policy import Delay
from martlet.client.errors import Closed
from martlet.client.group.batch import PulledBatch
from martlet.client.group.counters import PullCounts
from martlet.client.group.failures import OnGivingUp, PullFailures, kept_by
from martlet.client.group.flow_limits import FlowLimits
from martlet.client.group.iteration import Handed, Iteration
from martlet.client.group.message import PulledMessage
from martlet.client.group.queues.assigned_queue import AssignedQueue
from martlet.client.group.queues.queue_id import QueueId, find_place
from martlet.client.group.queues.ready_queues import ReadyQueues
from martlet.client.group.rebalance_listener import OnQueues, RebalanceListener
from martlet.client.group.session import BrokerSession, Settings
from martlet.client.group.start_position import Start, check_start, time_ms
from martlet.client.group.stats import PullStats
from martlet.client.group.workers import PullHandler, PullWorkerPool
from martlet.client.hooks import NO_HOOKS, Hooks
from martlet.client.names import check_name
from martlet.client.transport.backoff import Backoff
from martlet.client.transport.dialer import Dialer
from martlet.client.transport.discovery import Discovery
from martlet.client.transport.identity import Identity

logger = logging.getLogger("martlet.client")

GOODBYE_S = 1.0
"""How long the end of the connections may take, when handlers took all the time there was."""
Wanted = QueueId | tuple[str, int] | int
"""A queue: its broker and number, or the number alone where that is clear."""
PostT = TypeVar("PostT", bound=BrokerSession)


class PullConsumerBase(ABC, Generic[PostT]):
    """Fetches from queues at one or several brokers, and hands out what comes."""

    def __init__(
        self,
        topic: str,
        addresses: Addresses | None,
        *,
        lookup: str | Iterable[str] | None,
        lookup_poll_s: float,
        limits: FlowLimits,
        commit_every_s: float,
        leave_timeout_s: float,
        on_assigned: OnQueues | None,
        on_revoked: OnQueues | None,
        retry: Delay,
        max_attempts: int,
        on_giving_up: OnGivingUp | None,
        backoff: Backoff | None,
        connect_timeout_s: float,
        close_timeout_s: float,
        identity: Identity,
        hooks: Hooks | None,
        group: str = "",
    ) -> None:
        self._line = ReadyQueues()
        if commit_every_s < 0 or leave_timeout_s < 0:
            raise ValueError("commit_every_s and leave_timeout_s must not be negative")
        self._hooks = hooks.guarded() if hooks is not None else NO_HOOKS
        self._settings = Settings(
            check_name(topic, "topic"),
            limits,
            self._line,
            commit_every_s,
            leave_timeout_s,
            RebalanceListener(on_assigned, on_revoked),
            self._hooks,
        )
        bury = self._bury if on_giving_up is None else kept_by(on_giving_up)
        self._failures = PullFailures(retry, max_attempts, bury)
        self._crew = PullWorkerPool(self._line, self._failures)
        self._line.on_lost_often = self._lost_often
        self._errands: set[asyncio.Task[None]] = set()
        if self._hooks.has_handling:
            self._crew.wrap = partial(self._hooks.handler, topic, group)
        if addresses is None and lookup is None:
            addresses = "127.0.0.1:4150"
        given = self._given = parse_addresses(addresses) if addresses is not None else []
        self._brokers: ConsumerBrokers[PostT] = ConsumerBrokers(given, self._post, self._line.close)
        if lookup is not None:
            daemons = [lookup] if isinstance(lookup, str) else list(lookup)
            found = Discovery(topic, daemons, lookup_poll_s, self._brokers.found)
            self._brokers.discover(found, on_trouble=lambda _cause: None)
        self._backoff = backoff or Backoff()
        self._connect_timeout_s = connect_timeout_s
        self._close_timeout_s = close_timeout_s
        self._identity = identity
        self._lent: dict[Handed, None] = {}
        """What iterators have handed out and was not asked about again."""
        self._entered = False

    @abstractmethod
    def _post(self, address: Address) -> PostT:
        """What is to be at one broker."""

    def _dialer(self, address: Address) -> Dialer:
        dialer = Dialer(
            [address],
            self._identity,
            backoff=self._backoff,
            connect_timeout_s=self._connect_timeout_s,
            are_found=address not in self._given,
        )
        dialer.on_connected, dialer.on_lost = self._hooks.on_connected, self._hooks.on_lost
        return dialer

    async def __aenter__(self) -> Self:
        """Connect; a broker that cannot be reached is tried again in the background.

        Raises:
            SubscribeRefused: a broker will not have it.
            ConnectRefused: a broker that was named, or all that were found, will not even have the
                connection; see there.
            Closed: it has been connected or closed before; make a new one.
        """
        if self._entered or self._brokers.is_closed:
            raise Closed("a consumer is used once: make a new one")
        self._entered = True
        try:
            await self._brokers.open()
            self._line.check()
        except BaseException:
            await self._brokers.close(GOODBYE_S)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # three ways to get the messages

    def __aiter__(self) -> AsyncIterator[PulledMessage]:
        """The messages, one by one, those of each queue in order.

        A message is done when the loop asks for the next one, or ``message.finish()`` was called.
        Where the loop is left before, the message comes again.
        """
        self._check_entered()
        return self._messages()

    def _messages(self) -> Iteration[PulledMessage]:
        return Iteration(self._line, self._line.message, self._lent)

    def batches(
        self, *, max_messages: int = 10_000, max_wait_ms: float = 0
    ) -> Iteration[PulledBatch]:
        """The messages in batches, each of one queue, in order.

        A batch is done when the loop asks for the next one, or ``batch.finish()`` was called.
        Where the loop is left before, it comes again.

        Args:
            max_messages: no more than this in a batch.  The limits of flow control hold too, so
                choose those for the batches that you want.
            max_wait_ms: how long to wait for a batch to fill after its first message came.
        """
        self._check_entered()
        if max_messages < 1:
            raise ValueError(f"max_messages={max_messages}: 1 is the least")
        take = partial(self._line.batch, max_messages, max_wait_ms / 1000)
        return Iteration(self._line, take, self._lent)

    async def run(
        self,
        handler: PullHandler,
        *,
        concurrency: int = 1,
        order: Literal["queue"] | None = None,
        on: Literal["loop", "threads"] = "loop",
    ) -> None:
        """Hand each message to the handler until the consumer is stopped or closed.

        When the handler returns the message is done; when it raises ``Requeue`` it is put off; when
        it raises anything else, that is logged, and the message is tried again here, and given up
        after ``max_attempts`` (see `martlet.client.group.failures`).

        Args:
            handler: called with each message.  On the loop: a coroutine function, or a function
                that returns soon.  In threads: a function.
            concurrency: how many handlers may be at work at once.
            order: ``queue`` for one message of each queue at a time, and none before those before
                it are done; it is always so with one handler.
            on: ``loop``, or ``threads`` for a handler that blocks.

        Raises:
            SubscribeRefused, ConnectRefused: a broker would no longer have it when connecting
                again.
        """
        self._check_entered()
        if order not in (None, "queue"):
            raise ValueError(f"order={order!r} must be 'queue', or None for no order")
        await self._crew.run(handler, concurrency, order == "queue" or concurrency == 1, on)
        self._line.check()

    def _check_entered(self) -> None:
        if not self._entered:
            raise Closed(f"use 'async with {type(self).__name__}(...)'")

    def _lost_often(self, message: PulledMessage, count: int) -> None:
        """Give up a message that members were lost by."""
        task = asyncio.create_task(self._failures.lost_often(message, count))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _bury(self, message: PulledMessage) -> str | None:
        for post in self._brokers.subscriptions:
            if str(post.address) == message.place.broker:
                return await post.bury(message)
        raise Closed(f"there is no connection to {message.place.broker} any more")

    # where in the queues one is

    @property
    def assignment(self) -> tuple[QueueId, ...]:
        """The queues that are held."""
        return tuple(held.place for held in self._all_held())

    def position(self, queue: Wanted) -> int:
        """The offset of what is handed out next of a queue. Raises ValueError."""
        return self._find(queue)[1].position

    def committed(self, queue: Wanted) -> int:
        """The offset that was kept last. Raises ValueError."""
        return self._find(queue)[1].committed

    def lag(self, queue: Wanted) -> int:
        """How many messages there were behind those that are done, when it was last fetched from.

        Raises ValueError.
        """
        return self._find(queue)[1].lag

    async def seek(self, queue: Wanted, to: Start) -> None:
        """Go on elsewhere in a queue; what is here of it is forgotten.

        Handlers that are at work on something of it are not waited for.  What is kept moves there
        with the next commit, back too: who has it then begins there.

        Args:
            queue: which.
            to: an offset, ``"first"``, ``"last"`` (behind all that is stored), or a time.  An
                offset above the end means the end; that is logged.

        Raises:
            ValueError: it is not held, or that is no place in a queue.
            ClientError: the broker cannot be asked, or the queue is going to another member.
        """
        to = check_start(to)
        post, held = self._find(queue)
        number = held.place.queue
        if to in ("first", "last"):
            start, end = await post.ends(number)
            offset = start if to == "first" else end
        elif isinstance(to, int):
            offset = to if to <= held.end_offset else min(to, (await post.ends(number))[1])
            if offset < to:
                logger.warning(
                    "%s of %s: offset %d is above the end; on at %d",
                    *(held.place, held.topic, to, offset),
                )
        else:
            offset = await post.offset_at(number, time_ms(to))  # type: ignore[arg-type]
        await post.seek(number, offset)

    def pause(self, *queues: Wanted) -> None:
        """Hand out and fetch nothing of these queues, or of all that are held now."""
        for held in self._chosen(queues):
            held.pause()

    def resume(self, *queues: Wanted) -> None:
        """Go on with these queues, or with all."""
        for held in self._chosen(queues):
            held.resume()

    async def commit(self) -> None:
        """Keep how far the queues have come, now.

        What iterators handed out last counts as done: call this when it is.

        Raises:
            ClientError, OSError: it could not be kept.
        """
        for lent in self._lent:
            if lent.is_out:
                lent.finish()
        self._lent.clear()
        await asyncio.gather(*(post.commit() for post in self._brokers.subscriptions))

    def _all_held(self) -> list[AssignedQueue]:
        return [held for post in self._brokers.subscriptions for held in post.held.values()]

    def _find(self, queue: Wanted) -> tuple[PostT, AssignedQueue]:
        place = find_place(queue, self.assignment)
        for post in self._brokers.subscriptions:
            if str(post.address) == place.broker:
                return post, post.held[place.queue]
        raise AssertionError

    def _chosen(self, queues: tuple[Wanted, ...]) -> list[AssignedQueue]:
        return [self._find(queue)[1] for queue in queues] if queues else self._all_held()

    @property
    def tally(self) -> PullCounts:
        """What became of messages at the brokers that there are."""
        return sum((post.tally for post in self._brokers.subscriptions), PullCounts())

    @property
    def stats(self) -> PullStats:
        """How the consumer stands, and what it has done so far."""
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
            workers=self._crew.size,
            connections=tuple(post.stats() for post in brokers.subscriptions),
            queues=tuple(each.stats() for each in held),
        )

    @property
    def is_starved(self) -> bool:
        """Whether more could be fetched if what is here were handled faster."""
        return self.stats.is_starved

    @property
    def connected_count(self) -> int:
        """At how many brokers it is."""
        return self._brokers.connected_count

    # the end

    def stop(self) -> None:
        """Hand out nothing more: iterators end, and ``run`` returns once its handlers have."""
        self._line.close()

    async def close(self) -> None:
        """Stop, wait for handlers at work, keep how far the queues have come, and hang up.

        It takes no longer than ``close_timeout_s``.
        """
        await self._close()

    async def _close(self, besides: Iterable[asyncio.Task[object]] = ()) -> None:
        """Close, and do not wait for those workers: their handlers wait for this."""
        self.stop()
        ends_at_s = time.monotonic() + self._close_timeout_s
        goodbye_s = min(GOODBYE_S, self._close_timeout_s / 4)
        try:
            for errand in self._errands:
                errand.cancel()
            await self._crew.end(self._close_timeout_s - 2 * goodbye_s, besides)
            left_s = ends_at_s - goodbye_s - time.monotonic()
            await self._brokers.leave(max(goodbye_s, left_s))
        finally:
            await self._brokers.close(goodbye_s)
