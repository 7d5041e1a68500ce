"""The answers to the messages of one connection: finishes, requeues and touches.

They are gathered, and written at the end of the event loop's turn in one piece, so that finishing
a thousand messages is one write.
"""

from __future__ import annotations

import asyncio

from martlet.client.connection import Connection
from martlet.protocol import commands


class Answers:
    """What is to be told to the broker about the messages that it delivered here.

    Attributes:
        finished: how many messages were finished.
        requeued: how many were requeued.
    """

    __slots__ = ("_connection", "_ids", "_loop", "_others", "_scheduled", "finished", "requeued")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._ids: list[bytes] = []
        self._others: list[bytes] = []
        self._scheduled = False
        self.finished = 0
        self.requeued = 0

    def finish(self, message_id: bytes) -> None:
        """Tell that the message has been dealt with."""
        self._ids.append(message_id)
        if not self._scheduled:
            self._schedule()

    def requeue(self, message_id: bytes, delay_ms: int) -> None:
        """Ask for the message again, so much later."""
        self.requeued += 1
        self._others.append(commands.requeue(message_id, delay_ms))
        if not self._scheduled:
            self._schedule()

    def touch(self, message_id: bytes) -> None:
        """Ask for more time for the message."""
        self._others.append(commands.touch(message_id))
        if not self._scheduled:
            self._schedule()

    def write(self, data: bytes) -> None:
        """Write many answers that were made in one piece, after those that were given before."""
        self.flush()
        self._connection.write(data)

    async def drain(self) -> None:
        """Wait until the broker has read most of what was written."""
        await self._connection.drain()

    def flush(self) -> None:
        """Write what was gathered, now."""
        self._scheduled = False
        data = b"".join(self._others)
        self._others.clear()
        if self._ids:
            self.finished += len(self._ids)
            data += commands.finish(self._ids)
            self._ids.clear()
        if data:
            self._connection.write(data)

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self.flush)
