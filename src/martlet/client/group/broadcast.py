"""The broadcast consumer: each one gets all messages of a topic.

The broker keeps no state and no messages for the consumer: they stay as long as a channel or group
needs them, or by the topic's retention.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Unpack
from weakref import WeakSet

from martlet.addresses import Address
from martlet.client.consumer.settings import HandlerSettings
from martlet.client.errors import CallRefused
from martlet.client.group.base import PullConsumerBase
from martlet.client.group.known_brokers import KnownBroker
from martlet.client.group.queues.assigned_queue import AssignedQueue
from martlet.client.group.queues.offset_file import OffsetFile
from martlet.client.group.queues.queue_id import QueueId
from martlet.client.group.session import PullSession, SessionSettings
from martlet.client.group.settings import FlowLimits, ProgressSettings, PullOptions, Start, time_ms
from martlet.client.keywords import apply_options
from martlet.client.settings import Addresses, ConnectionSettings
from martlet.client.transport.connection import Connection
from martlet.client.transport.dialer import Dialer

logger = logging.getLogger("martlet.client")

POLL_S = 20.0
"""The interval of requests for new queues: RocketMQ's time between two rebalances."""
ABSENT_S = 1.0
"""The interval of requests for the topic while it does not exist."""


@dataclass(slots=True)
class BroadcastProgress:
    """The offsets of a broadcast consumer, at all brokers."""

    start: Start
    """The start position in a queue that the file does not have."""
    file: OffsetFile | None
    """Keeps the offsets; None for no file."""
    last: dict[QueueId, int] = field(default_factory=dict)
    """The offsets to continue at after a lost connection, as they are kept."""
    met: WeakSet[KnownBroker] = field(default_factory=WeakSet)
    """The brokers whose queues were requested: a queue added later is consumed from its start."""

    def find(self, queue: int, names: Iterable[str]) -> int | None:
        """Return the offset of a broker's queue under the first name that has one."""
        ids = [QueueId(name, queue) for name in names]
        last = (self.last.get(queue_id) for queue_id in ids)
        kept = (self.file.get(queue_id) for queue_id in ids) if self.file is not None else ()
        return next((offset for offset in (*last, *kept) if offset is not None), None)


class BroadcastSession(PullSession):
    """Fetch from all queues of a topic."""

    def __init__(
        self,
        address: Address,
        dialer: Dialer,
        settings: SessionSettings,
        progress: BroadcastProgress,
    ) -> None:
        super().__init__(address, dialer, settings)
        self._progress = progress

    @property
    def _fetching(self) -> tuple[str, Mapping[str, Any]]:
        return "topic.fetch", {"topic": self.settings.topic}

    async def _attend(self, connection: Connection) -> None:
        try:
            await self._wait_over(connection, self._take_queues(connection))
        finally:
            self._remember()

    async def _take_queues(self, connection: Connection) -> None:
        """Adopt all queues of the topic, in a loop."""
        while True:
            try:
                queues = await self.describe(connection)
            except CallRefused as error:
                if error.code != "NOT_FOUND":
                    raise
                # A topic that is created later is consumed from its first message on.
                self._progress.met.add(self.broker)
                self.set_connected(connection)
                self.mark_attempted()
                await asyncio.sleep(ABSENT_S)
                continue
            offsets = {
                int(queue["queue"]): await self._begins(connection, queue)
                for queue in queues
                if int(queue["queue"]) not in self.held
            }
            self._progress.met.add(self.broker)
            taken = await self._take(connection, offsets)
            ends = {int(queue["queue"]): int(queue["end_offset"]) for queue in queues}
            for held in taken:
                held.end_offset = ends[held.id.queue]
            self.set_connected(connection)
            await self.settings.assigned([held.id for held in taken])
            self.mark_attempted()
            self._begin(connection, [self.held[number] for number in offsets])
            await asyncio.sleep(POLL_S)

    async def _begins(self, connection: Connection, queue: Mapping[str, Any]) -> int:
        """Return the start offset in a queue."""
        number = int(queue["queue"])
        names = [self._kept_as, self.broker.id, *self.broker.addresses]
        offset = self._progress.find(number, names)
        if offset is not None:
            return offset
        start = self._progress.start
        if self.broker in self._progress.met or start == "first":
            return int(queue["start_offset"])
        if isinstance(start, datetime):
            answer = await connection.call(
                "topic.offset", topic=self.settings.topic, queue=number, time_ms=time_ms(start)
            )
            return int(answer.fields["offset"])
        return start if isinstance(start, int) else int(queue["end_offset"])

    @property
    def _kept_as(self) -> str:
        """The name of the broker under which offsets are kept: replicas share an id only."""
        return self.broker.id if self.broker.has_replicas else self.broker.name

    def _remember(self) -> None:
        name = self._kept_as
        self._progress.last |= {
            QueueId(name, number): held.next_commit for number, held in self.held.items()
        }

    def _carry_over(self, before: AssignedQueue, held: AssignedQueue) -> None:
        """Have the offset written, even if it is lower: the file has no other user."""
        held.committed = -1

    def _moved(self, held: AssignedQueue) -> None:
        """Leave it to the next commit."""

    async def commit(self) -> None:
        """Write changed offsets to the file. Raises OSError: the file cannot be written."""
        self._remember()
        changed = {
            held: held.next_commit
            for held in self.held.values()
            if held.next_commit != held.committed
        }
        file = self._progress.file
        if file is not None and (changed or self._unkept(file)):
            await asyncio.to_thread(file.write, dict(self._progress.last))
        for held, offset in changed.items():
            held.committed = offset

    def _unkept(self, file: OffsetFile) -> bool:
        """Return whether the file lacks an offset."""
        return any(file.get(queue) != offset for queue, offset in self._progress.last.items())

    async def leave(self, timeout_s: float) -> None:
        """Write the offsets, unless only the application commits, and drop the queues."""
        self._closing.set()
        for held in self.held.values():
            held.begin_leaving()
        try:
            async with asyncio.timeout(timeout_s):
                await self.settings.revoked([held.id for held in self.held.values()])
        except TimeoutError:
            logger.warning("%s: on_revoked has not ended within %.3g s", self.address, timeout_s)
        try:
            if self.settings.auto_commit:
                await self.commit()
        except OSError as error:
            logger.error("offsets could not be kept: %s", error)
        for held in list(self.held.values()):
            self._drop(held)


class BroadcastConsumer(PullConsumerBase):
    """Handle all messages of a topic, independently of other consumers.

    ::

        async with BroadcastConsumer("prices", offsets="prices.offsets") as consumer:
            async for message in consumer:
                ...

    It pulls as a `PullConsumer` does, without a group: its offsets are in a file of its own, and
    the broker keeps no state for it. Messages that it has not fetched are removed when every
    channel is done with them and the topic's retention is over; the consumer logs that, and
    continues with the remaining ones.
    """

    def __init__(
        self,
        topic: str,
        addresses: Addresses | None = None,
        *,
        offsets: str | os.PathLike[str] | None,
        connection: ConnectionSettings | None = None,
        progress: ProgressSettings | None = None,
        limits: FlowLimits | None = None,
        handling: HandlerSettings | None = None,
        **options: Unpack[PullOptions],
    ) -> None:
        """Take the settings; ``async with`` connects.

        The other arguments are those of `PullConsumer`.

        Args:
            topic: the topic's name.
            addresses: of the brokers.
            offsets: the file of offsets, one for each consumer; None to begin at ``start`` each
                time.
            connection, progress, limits, handling: settings.
            options: any field of these settings by name.

        Raises:
            BadOffsetFile: the file cannot be read, or has the offsets of another topic.
            TypeError: there is no such option.
            ValueError: a setting is out of its limits; the text says which.
        """
        settings = apply_options(
            type(self),
            options,
            connection or ConnectionSettings(),
            progress or ProgressSettings(),
            limits or FlowLimits(),
            handling or HandlerSettings(),
        )
        connection, progress, limits, handling = settings
        super().__init__(
            topic,
            None,
            addresses,
            connection=connection,
            progress=progress,
            limits=limits,
            handling=handling,
            leave_timeout_s=0.0,
        )
        file = OffsetFile(offsets, topic) if offsets is not None else None
        self._progress = BroadcastProgress(progress.start, file)

    def _make_session(self, address: Address) -> BroadcastSession:
        return BroadcastSession(address, self._dialer(address), self._settings, self._progress)
