"""A broadcast consumer's session at one broker: it fetches from all queues.

The broker keeps no state and no messages for the consumer: they stay as long as a channel or group
needs them, or by the topic's retention.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from martlet.addresses import Address
from martlet.client.errors import CallRefused
from martlet.client.group.queues.assigned_queue import AssignedQueue
from martlet.client.group.queues.offset_file import OffsetFile
from martlet.client.group.queues.queue_id import QueueId
from martlet.client.group.session import PullSession, SessionSettings
from martlet.client.group.start_position import Start, time_ms
from martlet.client.transport.connection import Connection
from martlet.client.transport.dialer import Dialer

logger = logging.getLogger("martlet.client")

LOOK_S = 20.0
"""The interval of requests for new queues: RocketMQ's time between two rebalances."""
ABSENT_S = 1.0
"""The interval of requests for the topic while it does not exist."""


class BroadcastSession(PullSession):
    """Fetch from all queues of a topic.

    Args:
        address: the broker's.
        dialer: connects.
        settings: shared by the sessions at all brokers.
        file: keeps the offsets; None for no file.
        start: the start position in a queue that the file does not have.
    """

    def __init__(
        self,
        address: Address,
        dialer: Dialer,
        settings: SessionSettings,
        file: OffsetFile | None,
        start: Start,
    ) -> None:
        super().__init__(address, dialer, settings)
        self._file = file
        self._start = start
        self._was_there = False
        self._last: dict[QueueId, int] = {}
        """The offsets to continue at after a lost connection."""

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
                self._was_there = True
                self.set_connected(connection)
                self.mark_attempted()
                await asyncio.sleep(ABSENT_S)
                continue
            offsets = {
                int(each["queue"]): await self._begins(connection, each)
                for each in queues
                if int(each["queue"]) not in self.held
            }
            self._was_there = True
            taken = await self._take(connection, offsets)
            ends = {int(each["queue"]): int(each["end_offset"]) for each in queues}
            for held in taken:
                held.end_offset = ends[held.place.queue]
            self.set_connected(connection)
            await self.settings.listener.assigned([held.place for held in taken])
            self.mark_attempted()
            self._begin(connection, [self.held[number] for number in offsets])
            await asyncio.sleep(LOOK_S)

    async def _begins(self, connection: Connection, queue: Mapping[str, Any]) -> int:
        """Return the start offset in a queue."""
        number = int(queue["queue"])
        place = QueueId(str(self.address), number)
        known = self._last.get(place)
        if known is None and self._file is not None:
            known = self._file.get(place)
        if known is not None:
            return known
        start = self._start
        if self._was_there or start == "first":
            return int(queue["start_offset"])
        if isinstance(start, datetime):
            answer = await connection.call(
                "topic.offset", topic=self.settings.topic, queue=number, time_ms=time_ms(start)
            )
            return int(answer.fields["offset"])
        return start if isinstance(start, int) else int(queue["end_offset"])

    def _remember(self) -> None:
        self._last |= {held.place: held.next_commit for held in self.held.values()}

    def _carry_over(self, before: AssignedQueue, held: AssignedQueue) -> None:
        """Have the offset written, even if it is lower: the file has no other user."""
        held.committed = -1

    def _moved(self, held: AssignedQueue) -> None:
        """Leave it to the next commit."""

    async def commit(self) -> None:
        """Write changed offsets to the file.

        Raises:
            OSError: the file cannot be written.
        """
        self._remember()
        changed = {
            held: held.next_commit
            for held in self.held.values()
            if held.next_commit != held.committed
        }
        if self._file is not None and (changed or self._unkept()):
            await asyncio.to_thread(self._file.write, dict(self._last))
        for held, offset in changed.items():
            held.committed = offset

    def _unkept(self) -> bool:
        """Return whether the file lacks an offset."""
        assert self._file is not None
        return any(self._file.get(place) != offset for place, offset in self._last.items())

    async def leave(self, timeout_s: float) -> None:
        """Write the offsets, unless only the application commits, and drop the queues."""
        self._closing.set()
        for held in self.held.values():
            held.begin_leaving()
        await self.settings.listener.revoked([held.place for held in self.held.values()])
        try:
            if self.settings.auto_commit:
                await self.commit()
        except OSError as error:
            logger.error("offsets could not be kept: %s", error)
        for held in list(self.held.values()):
            self._drop(held)
