"""A pull consumer's session at one broker: its queues there, on one connection."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from martlet.addresses import Address
from martlet.client.consumer.brokers import BrokerSession
from martlet.client.copied_folder import Copies, refusal
from martlet.client.errors import (
    CallRefused,
    ClientError,
    ConnectionLost,
    NotSupported,
    SubscribeRefused,
)
from martlet.client.group.known_brokers import KnownBroker, KnownBrokers
from martlet.client.group.message import PulledMessage
from martlet.client.group.queues.assigned_queue import AssignedQueue, AssignmentState
from martlet.client.group.queues.fetcher import ERROR_PAUSE_S, Fetcher
from martlet.client.group.queues.queue_id import QueueId
from martlet.client.group.queues.ready_queues import ReadyQueues
from martlet.client.group.settings import FlowLimits, OnQueues
from martlet.client.group.stats import PullCounts
from martlet.client.hooks import Hooks, settling
from martlet.client.transport.connection import Connection
from martlet.client.transport.dialer import Dialer
from martlet.protocol.nsq.message_run import FRAME_HEADER_BYTES, MessageRun

logger = logging.getLogger("martlet.client")

PASSING = frozenset(
    {"REFUSED", "TRY_AGAIN", "LIMIT_REACHED", "INTERNAL_ERROR", "NOT_FOUND", "NOT_A_MEMBER"}
)
"""Errors of calls that may be temporary."""

_COPY_TIMEOUT_S = 5.0
"""How long a broker may take to show that it is still there."""


@dataclass(slots=True)
class SessionSettings:
    """The settings shared by the sessions at all brokers."""

    topic: str
    limits: FlowLimits
    ready_queues: ReadyQueues
    """Hands out the messages of the queues."""
    commit_every_s: float
    """The interval of commits; 0 if only the application commits, even when a queue goes."""
    leave_timeout_s: float
    """The time for handlers to end when their queue moves to another member."""
    on_assigned: OnQueues | None
    """Called with new queues, before anything is fetched from them."""
    on_revoked: OnQueues | None
    """Called with queues that go or have gone: no handler of theirs runs, unless it took too long.
    """
    hooks: Hooks
    brokers: KnownBrokers
    """Those that the sessions have reached."""
    seek: Callable[[PullSession], None]
    """Searches for a broker at other addresses when a session has lost it."""

    @property
    def auto_commit(self) -> bool:
        """Whether offsets are committed automatically."""
        return self.commit_every_s > 0

    async def assigned(self, queues: Sequence[QueueId]) -> None:
        """Call ``on_assigned``, and log its exception."""
        await _notify("on_assigned", self.on_assigned, queues)

    async def revoked(self, queues: Sequence[QueueId]) -> None:
        """Call ``on_revoked``, and log its exception."""
        await _notify("on_revoked", self.on_revoked, queues)


async def _notify(name: str, function: OnQueues | None, queues: Sequence[QueueId]) -> None:
    if function is None or not queues:
        return
    try:
        result = function(queues)
        if isawaitable(result):
            await result
    except Exception:
        logger.exception("%s failed", name)


class PullSession(BrokerSession):
    """Keep a connection to a broker, and fetch from the queues assigned there."""

    def __init__(self, address: Address, dialer: Dialer, settings: SessionSettings) -> None:
        super().__init__(address, dialer)
        self.held: dict[int, AssignedQueue] = {}
        """The queues, by number."""
        self.counts = PullCounts()
        self.settings = settings
        self.broker = KnownBroker(str(address))
        """The one that it has reached, or had last."""
        self._fetchers: dict[AssignedQueue, asyncio.Task[None]] = {}
        self._id_bases: dict[int, int] = {}
        self._over: asyncio.Future[str] | None = None
        self._report = settling(
            settings.hooks, str(address), lambda: (self.finished, self.requeued)
        )
        self._is_reporting = False

    @property
    def in_flight(self) -> int:
        """The number of messages fetched and not done."""
        return sum(held.count for held in self.held.values())

    @property
    def ready_count(self) -> int:
        """The maximum number of messages not done, of all its queues."""
        open_count = sum(held.hold is AssignmentState.OPEN for held in self.held.values())
        return open_count * self.settings.limits.max_messages

    @property
    def received(self) -> int:
        """The number of messages fetched."""
        return self.counts.received

    @property
    def finished(self) -> int:
        """The number of messages finished."""
        return self.counts.finished

    @property
    def requeued(self) -> int:
        """The number of delays for another try."""
        return self.counts.requeued

    # implemented by each kind of consumer

    @abstractmethod
    async def _attend(self, connection: Connection) -> None:
        """Fetch from queues until the assignment ends. Raises CallRefused, ConnectionLost: the
        broker refuses, or is lost.
        """

    @property
    @abstractmethod
    def _fetching(self) -> tuple[str, Mapping[str, Any]]:
        """Return the method that fetches messages, and its arguments beside those of the queue."""

    @abstractmethod
    async def commit(self) -> None:
        """Commit the offsets. Raises ClientError and OSError."""

    async def dead_letter(self, message: PulledMessage) -> str | None:
        """Keep a message after its last attempt. Returns where; None if nowhere."""
        return None

    # the connection

    async def keep(self) -> None:
        """Connect and fetch, reconnecting until closed; see `BrokerSession.keep`."""
        while not self._closing.is_set():
            connection = await self._dialer.dial()
            brokers = self.settings.brokers
            reached = brokers.reached(self.address, connection, self.broker)
            self.broker = reached.broker
            if not reached.turn.done():
                self.mark_attempted()  # Another connection to the broker is active.
            try:
                for other, its_connection in brokers.copies(reached):
                    await self._refuse_copy(other, its_connection)
                await brokers.wait_turn(reached)
                await self._attend_on(connection)
                error = await connection.wait_lost()
            except NotSupported as refused:
                raise SubscribeRefused("NOT_SUPPORTED", str(refused)) from refused
            except ConnectionLost as lost:
                error = lost
            finally:
                self.connection = None
                connection.abort()
                try:
                    await self._lose(list(self.held.values()))
                finally:
                    is_gone = brokers.lost(reached)
            if not self._closing.is_set():
                self._dialer.lost(error)
                if is_gone:
                    self.settings.seek(self)
            self.mark_attempted()

    async def _refuse_copy(self, other: str, connection: Connection) -> None:
        """Refuse a broker whose id a live one has. Raises SubscribeRefused."""
        try:
            async with asyncio.timeout(_COPY_TIMEOUT_S):
                await connection.call("topic.describe", topic=self.settings.topic)
        except (ConnectionLost, TimeoutError):
            return  # It has ended, and the broker goes on here.
        except CallRefused:
            pass  # An answer all the same.
        raise SubscribeRefused(
            "COPIED_FOLDER",
            refusal(
                Copies(connection.features.broker_id, (other, str(self.address))),
                "the group would leave out the messages of one",
            ),
        )

    async def _attend_on(self, connection: Connection) -> None:
        """Fetch from queues until the connection is lost."""
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
        """End the assignment, so that queues are assigned anew."""
        if self._over is not None and not self._over.done():
            if not self._closing.is_set():
                logger.warning("%s: %s", self.address, reason)
            self._over.set_result(reason)

    def set_connected(self, connection: Connection) -> None:
        """Note that the broker has accepted this client."""
        self.connection = connection
        self._dialer.succeeded()

    async def _wait_over(self, connection: Connection, *running: Coroutine[Any, Any, None]) -> None:
        """Run these tasks, and the periodic commit, until one of them or the assignment ends.

        Raises the exception that ended one of them.
        """
        assert self._over is not None
        tasks = [asyncio.create_task(coroutine, name="martlet session") for coroutine in running]
        if self.settings.auto_commit:
            tasks.append(asyncio.create_task(self._commit_regularly(), name="martlet commit"))
        try:
            ends: list[asyncio.Future[Any]] = [self._over, connection.lost, *tasks]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # Raises the exception that ended it.
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _connected(self) -> Connection:
        """Return the connection. Raises ConnectionLost if there is none."""
        if self.connection is None:
            raise ConnectionLost(f"{self.address} is not connected")
        return self.connection

    # the queues

    async def describe(self, connection: Connection) -> list[Mapping[str, Any]]:
        """Return the topic's queues at the broker."""
        answer = await connection.call("topic.describe", topic=self.settings.topic)
        queues: list[Mapping[str, Any]] = list(answer.fields["queues"])
        self._id_bases = {int(queue["queue"]): int(queue["id_base"], 16) for queue in queues}
        return queues

    async def _take(
        self, connection: Connection, offsets: Mapping[int, int]
    ) -> list[AssignedQueue]:
        """Add queues with their start offsets, without fetching yet."""
        if not offsets.keys() <= self._id_bases.keys():
            await self.describe(connection)
        taken = []
        for number, offset in offsets.items():
            held = AssignedQueue(
                self.settings.topic,
                QueueId(self.broker.name, number),
                offset,
                self._id_bases[number],
                self.settings.limits,
                self.settings.ready_queues,
                self.counts,
            )
            if self.settings.hooks.has_settling:
                held.on_settled = self._settled
            self._prepare(held)
            self.held[number] = held
            taken.append(held)
        return taken

    def _prepare(self, held: AssignedQueue) -> None:
        """Prepare an assigned queue; by default started messages are not reported to the broker."""

    def _begin(self, connection: Connection, taken: Iterable[AssignedQueue]) -> None:
        """Fetch from those of these queues that are still assigned."""
        method, fields = self._fetching
        for held in taken:
            if self.held.get(held.id.queue) is not held:
                continue
            fetcher = Fetcher(connection, held, method, fields, self.settings.limits)
            fetcher.on_received = self._received
            fetcher.on_moved = self._moved
            fetcher.on_lost = self._lost
            fetcher.on_gone = lambda error: self.end(str(error))
            self._fetchers[held] = asyncio.create_task(fetcher.run(), name=f"fetch {held.id}")

    def _received(self, run: MessageRun) -> None:
        self.last_message_s = time.monotonic()
        if self.settings.hooks.on_received is not None:
            size_bytes = len(run.raw) - FRAME_HEADER_BYTES * run.count
            self.settings.hooks.on_received(str(self.address), run.count, size_bytes)

    def _settled(self) -> None:
        """Call the hooks with done messages, once for this turn of the event loop."""
        if not self._is_reporting:
            self._is_reporting = True
            asyncio.get_running_loop().call_soon(self._notify_settled)

    def _notify_settled(self) -> None:
        self._is_reporting = False
        self._report()

    async def _lose(self, gone: Iterable[AssignedQueue]) -> None:
        """Drop queues that are no longer assigned."""
        lost = [held for held in gone if self.held.get(held.id.queue) is held]
        for held in lost:
            self._drop(held)
        if lost:
            await self.settings.revoked([held.id for held in lost])

    def _lost(self, held: AssignedQueue) -> None:
        """Close a queue that a fetch found assigned to another member."""
        logger.warning("%s of %s has gone to another member", held.id, held.topic)
        held.close()

    @abstractmethod
    def _moved(self, held: AssignedQueue) -> None:
        """Note that the offset was not in the queue, and that fetching continues at another one."""

    def _drop(self, held: AssignedQueue) -> None:
        held.close()
        if self.held.get(held.id.queue) is held:
            del self.held[held.id.queue]
        fetcher = self._fetchers.pop(held, None)
        if fetcher is not None:
            fetcher.cancel()

    async def seek(self, number: int, offset: int) -> None:
        """Continue at an offset of an assigned queue, and drop its messages here."""
        connection = self._connected()
        before = self.held.get(number)
        if before is None or before.hold is not AssignmentState.OPEN:
            name = before.id if before is not None else f"queue {number} at {self.address}"
            raise ClientError(f"{name} is going to another member, or has gone")
        is_fetched = before in self._fetchers
        if before.starts is not None:
            before.starts.clear()
        self._drop(before)
        (held,) = await self._take(connection, {number: offset})
        held.is_paused = before.is_paused
        held.end_offset = before.end_offset
        self._carry_over(before, held)
        if is_fetched:
            self._begin(connection, [held])

    def _carry_over(self, before: AssignedQueue, held: AssignedQueue) -> None:
        """Carry over the committed offset of a queue to its replacement at another offset."""
        held.committed = before.committed

    async def offset_at(self, number: int, time_ms: int) -> int:
        """Return the first offset of a queue stored at or after a time. Raises ClientError."""
        answer = await self._connected().call(
            "topic.offset", topic=self.settings.topic, queue=number, time_ms=time_ms
        )
        return int(answer.fields["offset"])

    async def ends(self, number: int) -> tuple[int, int]:
        """Return the first stored offset of a queue, and its end. Raises ClientError."""
        for queue in await self.describe(self._connected()):
            if queue["queue"] == number:
                return int(queue["start_offset"]), int(queue["end_offset"])
        raise ClientError(f"{self.address}: {self.settings.topic} has no queue {number}")

    async def _commit_regularly(self) -> None:
        """Commit the offsets at intervals."""
        while True:
            await asyncio.sleep(self.settings.commit_every_s)
            try:
                await self.commit()
            except (ClientError, OSError) as error:
                logger.warning("%s: offsets could not be committed: %s", self.address, error)
