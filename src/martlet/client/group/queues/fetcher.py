"""Fetch the next messages of a queue while handlers work on earlier ones.

The broker holds the request while there are no messages (a long poll). Its answers, and the
reactions (pauses are RocketMQ's)::

    FOUND          messages
    NO_NEW         nothing within the time, or only messages that the group's filter leaves out
    OFFSET_MOVED   the offset is not in the queue (any more): on at the nearest that is, and that is
                   committed at once
    NOT_HELD       the queue has gone to another member
    an error       the fetch is repeated after a second; after 20 ms at a limit of the broker
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from martlet.client.errors import CallRefused, ConnectionLost
from martlet.client.group.queues.assigned_queue import AssignedQueue, AssignmentState
from martlet.client.group.settings import FlowLimits
from martlet.client.transport.connection import Connection
from martlet.client.transport.property_frames import cut_messages
from martlet.properties.model import BadProperties
from martlet.protocol.nsq.frames import BadFrame
from martlet.protocol.nsq.message_run import MessageRun

logger = logging.getLogger("martlet.client")

ERROR_PAUSE_S = 1.0
LIMIT_PAUSE_S = 0.02
GONE = frozenset({"NOT_A_MEMBER", "NOT_A_GROUP", "NOT_FOUND"})
"""Errors after which a member has to join again."""


class Fetcher:
    """Fetch one queue over one connection.

    Args:
        fields: of the call, beside those of the queue.
    """

    def __init__(
        self,
        connection: Connection,
        held: AssignedQueue,
        method: str,
        fields: Mapping[str, Any],
        limits: FlowLimits,
    ) -> None:
        self.on_received: Callable[[MessageRun], object] = lambda _run: None
        """Called with fetched messages, before any is handed out."""
        self.on_moved: Callable[[AssignedQueue], object] = lambda _held: None
        """Called when the offset was not in the queue."""
        self.on_lost: Callable[[AssignedQueue], object] = lambda _held: None
        """Called when the queue has gone to another member."""
        self.on_gone: Callable[[CallRefused], object] = lambda _error: None
        """Called with the error when the consumer must join the group again."""
        self._connection = connection
        self._held = held
        self._method = method
        self._fields = {**fields, "queue": held.id.queue}
        self._wait_ms = round(limits.fetch_wait_s * 1000)

    async def run(self) -> None:
        """Fetch until the queue is closed, or the connection is lost."""
        held = self._held
        try:
            while held.hold is not AssignmentState.CLOSED:
                messages, size_bytes = held.room()
                if not messages or not size_bytes:
                    await held.change()
                elif not await self._fetch(messages, size_bytes):
                    return
        except ConnectionLost:
            return  # The session keeps the connection and reconnects.
        except (BadFrame, BadProperties, KeyError, TypeError, ValueError) as error:
            reason = f"{held.id}: an answer to a fetch that cannot be read: {error!r}"
            self._connection.abort(ConnectionLost(reason))

    async def _fetch(self, messages: int, size_bytes: int) -> bool:
        """Fetch once. Returns whether to fetch again."""
        held = self._held
        fetch_offset = held.fetch_offset
        try:
            fields, data = await self._connection.call(
                self._method,
                **self._fields,
                offset=fetch_offset,
                max_messages=messages,
                max_bytes=size_bytes,
                wait_ms=self._wait_ms,
            )
        except CallRefused as error:
            return await self._refused(error)
        if held.hold is not AssignmentState.OPEN or held.fetch_offset != fetch_offset:
            return True  # The queue was closed meanwhile.
        status = fields["status"]
        if status == "NOT_HELD":
            self.on_lost(held)
            return False
        held.end_offset = int(fields["end_offset"])
        if "failures" in fields or held.starts is not None:
            held.learn(fields.get("failures"))
        next_offset = int(fields["next_offset"])
        if status == "OFFSET_MOVED":
            self._move(fetch_offset, next_offset)
        else:
            run = cut_messages(data) if data else None
            if run is not None:
                self.on_received(run)
            held.put(run, next_offset)
        return True

    def _move(self, fetch_offset: int, next_offset: int) -> None:
        held = self._held
        if fetch_offset < next_offset:
            logger.warning(
                "%s of %s: offsets %d to %d are not stored any more, or never were; continues at"
                " offset %d",
                *(held.id, held.topic, fetch_offset, next_offset - 1, next_offset),
            )
        else:
            logger.warning(
                "%s of %s: offset %d is above the end; continues at offset %d",
                *(held.id, held.topic, fetch_offset, next_offset),
            )
        held.committed = min(held.committed, next_offset)
        held.put(None, next_offset)
        self.on_moved(held)

    async def _refused(self, error: CallRefused) -> bool:
        if error.code in GONE:
            self.on_gone(error)
            return False
        logger.warning("cannot fetch from %s of %s: %s", self._held.id, self._held.topic, error)
        is_limit = error.code == "LIMIT_REACHED"
        await asyncio.sleep(LIMIT_PAUSE_S if is_limit else ERROR_PAUSE_S)
        return True
