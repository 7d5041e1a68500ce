"""A pull consumer's place at one broker: the queues that it has there, over one connection."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from martlet.addresses import Address
from martlet.client.consumer.instrumented import settling
from martlet.client.consumer.stats import ConnectionStats
from martlet.client.errors import (
    CallRefused,
    ClientError,
    ConnectionLost,
    NotSupported,
    SubscribeRefused,
)
from martlet.client.group.counters import PullCounts
from martlet.client.group.flow_limits import FlowLimits
from martlet.client.group.message import PulledMessage
from martlet.client.group.queues.assigned_queue import AssignedQueue, AssignmentState
from martlet.client.group.queues.fetcher import ERROR_PAUSE_S, Fetcher
from martlet.client.group.queues.queue_id import QueueId
from martlet.client.group.queues.ready_queues import ReadyQueues
from martlet.client.group.rebalance_listener import NO_WATCHER, RebalanceListener
from martlet.client.hooks import NO_HOOKS, Hooks
from martlet.client.transport.connection import Connection
from martlet.client.transport.dialer import Dialer
from martlet.protocol.nsq.message_run import FRAME_HEADER_BYTES, MessageRun

logger = logging.getLogger("martlet.client")

PASSING = frozenset(
    {"REFUSED", "TRY_AGAIN", "LIMIT_REACHED", "INTERNAL_ERROR", "NOT_FOUND", "NOT_A_MEMBER"}
)
"""Errors of calls that another attempt may not get."""


@dataclass(slots=True)
class Settings:
    """What is the same at all brokers.

    Attributes:
        topic: the topic's name.
        limits: how much may be here of each queue.
        line: where queues wait to be handled.
        commit_every_s: how often offsets are kept; 0 for only when that is asked for, not even
            when a queue goes.
        leave_timeout_s: how long handlers may take when their queue goes to another member.
        watcher: told of queues that come and go.
        hooks: told of what is fetched and done.
    """

    topic: str
    limits: FlowLimits
    line: ReadyQueues
    commit_every_s: float = 5.0
    leave_timeout_s: float = 10.0
    watcher: RebalanceListener = field(default=NO_WATCHER)
    hooks: Hooks = NO_HOOKS

    @property
    def auto_commit(self) -> bool:
        """Whether offsets are kept though the application did not ask for it."""
        return self.commit_every_s > 0


class BrokerSession(ABC):
    """Keeps a connection to a broker, and fetches from the queues that are had there.

    Args:
        address: the broker's.
        dialer: connects.
        settings: what is the same at all.

    Attributes:
        connection: the connection, while it stands and queues may be had.
        attempted: done when the first attempt was made.
        held: the queues, by number.
        tally: what became of messages.
        last_message_s: when the last one came, by ``time.monotonic``; 0 where none did.
    """

    def __init__(self, address: Address, dialer: Dialer, settings: Settings) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.attempted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.held: dict[int, AssignedQueue] = {}
        self.tally = PullCounts()
        self.last_message_s = 0.0
        self.settings = settings
        self._dialer = dialer
        self._dialer.on_failure = self.mark_attempted
        self._fetchers: dict[AssignedQueue, asyncio.Task[None]] = {}
        self._id_bases: dict[int, int] = {}
        self._over: asyncio.Future[str] | None = None
        self._closing = asyncio.Event()
        self._report = settling(settings.hooks, str(address), self)
        self._is_reporting = False

    @property
    def is_connected(self) -> bool:
        """Whether queues may be had now."""
        return self.connection is not None

    @property
    def received(self) -> int:
        """How many messages were fetched."""
        return self.tally.received

    @property
    def finished(self) -> int:
        """How many messages were finished."""
        return self.tally.finished

    @property
    def requeued(self) -> int:
        """How often messages were put off, to be tried again."""
        return self.tally.requeued

    def stats(self) -> ConnectionStats:
        """How it stands."""
        open_count = sum(held.hold is AssignmentState.OPEN for held in self.held.values())
        return ConnectionStats(
            address=str(self.address),
            is_connected=self.is_connected,
            ready_count=open_count * self.settings.limits.max_messages,
            in_flight=sum(held.count for held in self.held.values()),
            received=self.received,
            finished=self.finished,
            requeued=self.requeued,
            last_message_s=self.last_message_s,
            last_error=str(self._dialer.last_error or ""),
        )

    # what each kind of consumer does in its own way

    @abstractmethod
    async def _attend(self, connection: Connection) -> None:
        """Have queues until it is told that this is over.

        Raises:
            CallRefused, ConnectionLost: it cannot.
        """

    @property
    @abstractmethod
    def _fetching(self) -> tuple[str, Mapping[str, Any]]:
        """The method by which messages are fetched, and what it takes beside."""

    @abstractmethod
    async def commit(self) -> None:
        """Keep how far the queues have come. Raises ClientError and OSError."""

    @abstractmethod
    async def leave(self, timeout_s: float) -> None:
        """Keep how far the queues have come, for the last time, and let others have them."""

    async def bury(self, message: PulledMessage) -> str | None:
        """Keep a message that is given up. Returns where it is; None where that is nowhere."""
        return None

    # the connection

    async def keep(self) -> None:
        """Connect, and have queues, again and again, until closed.

        Raises:
            SubscribeRefused: the broker will not have it.
            ConnectRefused: it will not even have the connection.
        """
        while not self._closing.is_set():
            connection = await self._dialer.dial()
            try:
                await self._attend_on(connection)
                error = await connection.wait_lost()
            except NotSupported as refused:
                raise SubscribeRefused("NOT_SUPPORTED", str(refused)) from refused
            except ConnectionLost as lost:
                error = lost
            finally:
                self.connection = None
                connection.abort()
                await self._lose(list(self.held.values()))
            if not self._closing.is_set():
                self._dialer.lost(error)
            self.mark_attempted()

    async def _attend_on(self, connection: Connection) -> None:
        """Have queues as long as the connection stands."""
        while self._goes_on(connection):
            loop = asyncio.get_running_loop()
            self._over = loop.create_future()
            again_at_s = loop.time() + ERROR_PAUSE_S
            try:
                await self._attend(connection)
            except CallRefused as error:
                if error.code not in PASSING:
                    raise SubscribeRefused(error.code, error.text) from error
                logger.warning("%s: %s; trying again", self.address, error)
                self.mark_attempted()
            await self._lose(list(self.held.values()))
            if self._goes_on(connection):
                await asyncio.sleep(max(0.0, again_at_s - loop.time()))

    def _goes_on(self, connection: Connection) -> bool:
        return connection.is_alive and not self._closing.is_set()

    def end(self, reason: str) -> None:
        """What queues there are is over; they are to be had anew."""
        if self._over is not None and not self._over.done():
            if not self._closing.is_set():
                logger.warning("%s: %s", self.address, reason)
            self._over.set_result(reason)

    def is_there(self, connection: Connection) -> None:
        """The broker has taken us."""
        self.connection = connection
        self._dialer.succeeded()

    def mark_attempted(self) -> None:
        """Nobody is to wait for the first attempt any longer."""
        if not self.attempted.done():
            self.attempted.set_result(None)

    async def close(self, timeout_s: float) -> None:
        """Hang up for good."""
        self._closing.set()
        connection = self.connection
        if connection is not None:
            connection.close()
            try:
                async with asyncio.timeout(timeout_s):
                    await connection.wait_lost()
            except TimeoutError:
                logger.warning("%s does not read what it is sent: hung up", self.address)
                connection.abort()

    # the queues

    async def describe(self, connection: Connection) -> list[Mapping[str, Any]]:
        """The topic's queues at the broker."""
        told = await connection.call("topic.describe", topic=self.settings.topic)
        queues: list[Mapping[str, Any]] = list(told.fields["queues"])
        self._id_bases = {int(each["queue"]): int(each["id_base"], 16) for each in queues}
        return queues

    async def _take(
        self, connection: Connection, offsets: Mapping[int, int]
    ) -> list[AssignedQueue]:
        """Have these queues, from those offsets on; they are not fetched from yet."""
        if not offsets.keys() <= self._id_bases.keys():
            await self.describe(connection)
        taken = []
        for number, offset in offsets.items():
            place = QueueId(str(self.address), number)
            held = AssignedQueue(
                self.settings.topic,
                place,
                offset,
                self._id_bases[number],
                self.settings.limits,
                self.settings.line,
                self.tally,
            )
            if self.settings.hooks.has_settling:
                held.on_settled = self._settled
            self._prepare(held)
            self.held[number] = held
            taken.append(held)
        return taken

    def _prepare(self, held: AssignedQueue) -> None:
        """A queue is had from now on."""
        held.say_started = None  # Nobody wants to know what is started.

    def _begin(self, connection: Connection, taken: Iterable[AssignedQueue]) -> None:
        """Fetch from these, those that are still had."""
        method, fields = self._fetching
        for held in taken:
            if self.held.get(held.place.queue) is not held:
                continue
            fetcher = Fetcher(connection, held, method, fields, self.settings.limits)
            fetcher.on_received = self._received
            fetcher.on_moved = self._moved
            fetcher.on_lost = self._lost
            fetcher.on_gone = lambda error: self.end(str(error))
            self._fetchers[held] = asyncio.create_task(fetcher.run(), name=f"fetch {held.place}")

    def _received(self, run: MessageRun) -> None:
        self.last_message_s = time.monotonic()
        if self.settings.hooks.on_received is not None:
            size_bytes = len(run.raw) - FRAME_HEADER_BYTES * run.count
            self.settings.hooks.on_received(str(self.address), run.count, size_bytes)

    def _settled(self) -> None:
        """Tell the hooks what was done, once for all of this turn of the event loop."""
        if not self._is_reporting:
            self._is_reporting = True
            asyncio.get_running_loop().call_soon(self._notify_settled)

    def _notify_settled(self) -> None:
        self._is_reporting = False
        self._report()

    async def _lose(self, gone: Iterable[AssignedQueue]) -> None:
        """These are not ours any more."""
        lost = [held for held in gone if self.held.get(held.place.queue) is held]
        for held in lost:
            self._drop(held)
        if lost:
            await self.settings.watcher.revoked([held.place for held in lost])

    def _lost(self, held: AssignedQueue) -> None:
        """A fetch was told that the queue is another's."""
        logger.warning("%s of %s has gone to another member", held.place, held.topic)
        held.close()

    @abstractmethod
    def _moved(self, held: AssignedQueue) -> None:
        """The offset was not in the queue, which is gone on with where that can be."""

    def _drop(self, held: AssignedQueue) -> None:
        held.close()
        if self.held.get(held.place.queue) is held:
            del self.held[held.place.queue]
        fetcher = self._fetchers.pop(held, None)
        if fetcher is not None:
            fetcher.cancel()

    async def seek(self, number: int, offset: int) -> None:
        """Go on at that offset of a queue that is had; what is here of it is forgotten."""
        connection = self.connection
        if connection is None:
            raise ConnectionLost(f"{self.address} is not connected")
        before = self.held.get(number)
        if before is None or before.hold is not AssignmentState.OPEN:
            where = before.place if before is not None else f"queue {number} at {self.address}"
            raise ClientError(f"{where} is going to another member, or has gone")
        is_fetched = before in self._fetchers
        self._drop(before)
        (held,) = await self._take(connection, {number: offset})
        held.is_paused = before.is_paused
        held.end_offset = before.end_offset
        self._carry_over(before, held)
        if is_fetched:
            self._begin(connection, [held])

    def _carry_over(self, before: AssignedQueue, held: AssignedQueue) -> None:
        """A queue is gone on with elsewhere."""
        held.committed = before.committed

    async def offset_at(self, number: int, time_ms: int) -> int:
        """The first offset of a queue that was stored then or later. Raises ClientError."""
        connection = self.connection
        if connection is None:
            raise ConnectionLost(f"{self.address} is not connected")
        told = await connection.call(
            "topic.offset", topic=self.settings.topic, queue=number, time_ms=time_ms
        )
        return int(told.fields["offset"])

    async def ends(self, number: int) -> tuple[int, int]:
        """The first offset that is stored of a queue, and the next one. Raises ClientError."""
        connection = self.connection
        if connection is None:
            raise ConnectionLost(f"{self.address} is not connected")
        for each in await self.describe(connection):
            if each["queue"] == number:
                return int(each["start_offset"]), int(each["end_offset"])
        raise ClientError(f"{self.address}: {self.settings.topic} has no queue {number}")

    async def _commit_regularly(self) -> None:
        """Keep how far the queues have come, every so often."""
        while True:
            await asyncio.sleep(self.settings.commit_every_s)
            try:
                await self.commit()
            except (ClientError, OSError) as error:
                logger.warning("%s: offsets could not be committed: %s", self.address, error)
