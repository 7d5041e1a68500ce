"""The answers to the messages of one connection: finishes, requeues and touches.

They are gathered, and written at the end of the event loop's turn in one piece, so that finishing
a thousand messages is one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from martlet.client.consumer.handling.backoff import BackoffEvent
from martlet.client.transport.connection import Connection
from martlet.protocol.nsq import commands


def _ignore(_event: BackoffEvent) -> None:
    """Ignore a message that failed or succeeded: there is no backoff."""


def _ignore_settled() -> None:
    """Ignore that messages were answered."""


_MAX_IDS = 5000
"""How many messages one call gives back."""


class AckBatcher:
    """Gathers the answers to the messages of one connection, and writes them together.

    Attributes:
        received: how many messages came.
        finished: how many were finished.
        requeued: how many were requeued.
        message_timeout_s: how much time the broker gives a message.
        max_message_timeout_s: how much, with any number of touches.
        touch_before_s: how long before its time runs out a message is touched when its handling
            begins.
        dropped: how many will not be answered, as their time ran out while they waited.
        on_answer: called with the kind of an answer before it is written: a backoff must take
            effect before the broker sends another message.
        on_settled: called when answers have been written.
    """

    __slots__ = (
        "_connection",
        "_ids",
        "_loop",
        "_others",
        "_scheduled",
        "dropped",
        "finished",
        "max_message_timeout_s",
        "message_timeout_s",
        "on_answer",
        "on_settled",
        "received",
        "requeued",
        "touch_before_s",
    )

    is_handed_out = True
    """Whether the application has got the messages that these answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._ids: list[bytes] = []
        self._others: list[bytes] = []
        self._scheduled = False
        self.received = 0
        self.finished = 0
        self.requeued = 0
        self.dropped = 0
        features = connection.features
        self.message_timeout_s = features.message_timeout_ms / 1000
        self.max_message_timeout_s = features.max_message_timeout_ms / 1000
        self.touch_before_s = 0.0
        self.on_answer: Callable[[BackoffEvent], None] = _ignore
        self.on_settled: Callable[[], None] = _ignore_settled

    @property
    def in_flight(self) -> int:
        """How many messages came and are not answered."""
        gone = self.finished + self.requeued + self.dropped + len(self._ids)
        return max(0, self.received - gone)

    def finish(self, message_id: bytes) -> None:
        """Tell the broker that the message is handled."""
        self._ids.append(message_id)
        if not self._scheduled:
            self._schedule()

    def requeue(self, message_id: bytes, delay_ms: int, *, backoff: bool) -> None:
        """Ask for the message again, so much later, because it failed or for another reason."""
        self.on_answer(BackoffEvent.FAILURE if backoff else BackoffEvent.REQUEUE)
        self.requeued += 1
        self._others.append(commands.requeue(message_id, delay_ms))
        if not self._scheduled:
            self._schedule()

    @property
    def are_extended(self) -> bool:
        """Whether the broker is a Martlet, which takes more than NSQ's answers."""
        return self._connection.features.extensions > 0

    def later(self, message_id: bytes, error: str, *, backoff: bool, **delay: int) -> None:
        """Ask a Martlet broker for the message again, with the text of the error."""
        self.on_answer(BackoffEvent.FAILURE if backoff else BackoffEvent.REQUEUE)
        self.requeued += 1
        self._call("message.later", id=message_id.decode(), error=error, **delay)

    def reject(self, message_id: bytes, reason: str, error: str) -> None:
        """Have a Martlet broker put the message into the dead-letter topic."""
        self.on_answer(BackoffEvent.REQUEUE)
        self.requeued += 1
        self._call("message.dead", id=message_id.decode(), reason=reason, error=error)

    def _call(self, method: str, **fields: object) -> None:
        self._others.append(self._connection.unanswered(method, **fields))
        if not self._scheduled:
            self._schedule()

    def give_back_one(self, message_id: bytes, *, is_started: bool = True) -> None:
        """Have the message delivered to others. Unless the application had it, its delivery is no
        attempt.
        """
        if not self.are_extended:
            self.requeue(message_id, 0, backoff=False)
            return
        self.on_answer(BackoffEvent.REQUEUE)
        self.requeued += 1
        self._call("message.give_back", ids=[message_id.decode()], started=is_started)

    @property
    def max_attempts(self) -> int:
        """How often a message may fail, -1 for ever; 0 where the broker does not count failures."""
        return self._connection.max_attempts

    def started(self, message_id: bytes) -> None:
        """Tell the broker at once that the handling of the message, and of all that came before it,
        has begun; answers that were gathered are written first.
        """
        self.flush()
        self._connection.write(commands.started(message_id))

    def touch(self, message_id: bytes) -> None:
        """Ask for more time for the message."""
        self._others.append(commands.touch(message_id))
        if not self._scheduled:
            self._schedule()

    def finish_array(self, ids: NDArray[np.void]) -> None:
        """Tell the broker at once that these messages are handled."""
        self.on_answer(BackoffEvent.SUCCESS)
        self.finished += len(ids)
        self._write(commands.finish_array(ids))

    def requeue_array(self, ids: NDArray[np.void], delay_ms: int, *, backoff: bool) -> None:
        """Ask at once for these messages again, so much later."""
        self.on_answer(BackoffEvent.FAILURE if backoff else BackoffEvent.REQUEUE)

        self._requeue_array(ids, delay_ms)

    def give_back(self, ids: NDArray[np.void], *, is_started: bool = False) -> None:
        """Have these messages delivered to others. Unless the application had them, their delivery
        is no attempt.
        """
        if not self.are_extended:
            self._requeue_array(ids, 0)
            return
        self.requeued += len(ids)
        texts = [each.decode() for each in ids.tolist()]
        for start in range(0, len(texts), _MAX_IDS):
            some = texts[start : start + _MAX_IDS]
            call = self._connection.unanswered("message.give_back", ids=some, started=is_started)
            self._write(call)

    def _requeue_array(self, ids: NDArray[np.void], delay_ms: int) -> None:
        self.requeued += len(ids)
        self._write(commands.requeue_array(ids, delay_ms))

    def touch_array(self, ids: NDArray[np.void]) -> None:
        """Ask at once for more time for these messages."""
        self._write(commands.touch_array(ids))

    def _write(self, data: bytes) -> None:
        """Write many answers that were made in one piece, after those that were given before."""
        self.flush()
        self._connection.write(data)
        self.on_settled()

    async def drain(self) -> None:
        """Wait until the broker has read most of what was written."""
        await self._connection.drain()

    def flush(self) -> None:
        """Write what was gathered, now."""
        self._scheduled = False
        data = b"".join(self._others)
        self._others.clear()
        if self._ids:
            self.on_answer(BackoffEvent.SUCCESS)
            self.finished += len(self._ids)
            data += commands.finish(self._ids)
            self._ids.clear()
        if data:
            self._connection.write(data)
            self.on_settled()

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self.flush)
