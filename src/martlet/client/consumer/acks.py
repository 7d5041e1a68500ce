"""The acknowledgements of one connection: finishes, requeues and touches.

They are collected, and written at the end of the event loop's turn in one piece, so that finishing
a thousand messages is one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from martlet.client.consumer.handling.backoff import BackoffEvent
from martlet.client.errors import CallRefused
from martlet.client.requests.outgoing import (
    MAX_BATCH_BYTES,
    OutgoingReply,
    ReplyBatch,
    ReplyHooks,
)
from martlet.client.transport.connection import Connection, OnDone
from martlet.protocol.nsq import commands

MessageIds = tuple[bytes] | NDArray[np.void]
FAILED_OR_NOT = (BackoffEvent.REQUEUE, BackoffEvent.FAILURE)
"""The events of a requeue, by whether it counts as a failure."""
_MAX_IDS = 5000
"""The maximum number of messages that one call gives back."""


class AckBatcher:
    """Collect the answers to the messages of one connection, and write them together."""

    is_handed_out = True
    """Whether the application has received the messages that these answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._ids: list[bytes] = []
        self._others: list[bytes] = []
        self._replies: dict[str, ReplyBatch] = {}
        """By their topics."""
        self._scheduled = False
        self.received = 0
        self.finished = 0
        self.requeued = 0
        self.dropped = 0
        """The number of messages that will not be answered, since they timed out while waiting."""
        features = connection.features
        self.message_timeout_s = features.message_timeout_ms / 1000
        self.max_message_timeout_s = features.max_message_timeout_ms / 1000
        """The maximum time of a message, with any number of touches."""
        self.touch_before_s = 0.0
        """A message with less time left is touched when its handling begins."""
        self.backs_off_always = False
        """Whether a failure pauses the consumer though the channel's policy delays its message."""
        self.on_answer: Callable[[BackoffEvent], None] = lambda _event: None
        """Called with the kind of an answer before it is written: a backoff must take effect before
        the broker sends another message.
        """
        self.on_settled: Callable[[], None] = lambda: None
        """Called after answers are written."""
        self.reply_hooks: ReplyHooks | None = None

    @property
    def in_flight(self) -> int:
        """The number of received and unanswered messages."""
        gone = self.finished + self.requeued + self.dropped + len(self._ids)
        return max(0, self.received - gone)

    def finish(self, message_id: bytes) -> None:
        """Finish the message."""
        self._ids.append(message_id)
        if not self._scheduled:
            self._schedule()

    def _count_requeued(self, ids: MessageIds, event: BackoffEvent | None) -> None:
        """Count messages that are about to be answered by anything but a finish."""
        if event is not None:
            self.on_answer(event)
        self.requeued += len(ids)

    def requeue(self, message_id: bytes, delay_ms: int, *, backoff: bool = False) -> None:
        """Requeue the message with a delay, because it failed or for another reason."""
        self._count_requeued((message_id,), FAILED_OR_NOT[backoff])
        self._others.append(commands.requeue(message_id, delay_ms))
        if not self._scheduled:
            self._schedule()

    @property
    def are_extended(self) -> bool:
        """Whether the broker is a Martlet broker, which accepts more than NSQ's answers."""
        return self._connection.features.extensions > 0

    def later(self, message_id: bytes, error: str, *, backoff: bool, **delay: int) -> None:
        """Requeue the message at a Martlet broker, with the text of the error.

        Args:
            backoff: whether it counts as a failure.
            delay: ``delay_ms``, or ``otherwise_ms`` for the delay of the channel's retry policy,
                and for that one without a policy.
        """
        if self.max_attempts and "otherwise_ms" in delay and not self.backs_off_always:
            backoff = False
        self._count_requeued((message_id,), FAILED_OR_NOT[backoff])
        self._call("message.later", id=message_id.decode(), error=error, **delay)

    def reject(self, message_id: bytes, reason: str, error: str) -> None:
        """Have a Martlet broker move the message to the dead-letter topic."""
        self._count_requeued((message_id,), BackoffEvent.REQUEUE)
        self._call("message.dead", id=message_id.decode(), reason=reason, error=error)

    @property
    def max_message_bytes(self) -> int:
        """The broker's maximum size of a message; 0 if it is unknown."""
        return self._connection.features.max_message_bytes

    def reply(self, reply: OutgoingReply, message_id: bytes | None = None) -> None:
        """Send a reply, and finish its request, if that is given, once the reply is stored."""
        batch = self._replies.get(reply.topic)
        if batch is None:
            batch = self._replies[reply.topic] = ReplyBatch(reply.topic, self)
        batch.add(reply, message_id, self.reply_hooks)
        if batch.size_bytes >= MAX_BATCH_BYTES:
            self._send_replies()
        if not self._scheduled:
            self._schedule()

    def _send_replies(self) -> None:
        connection = self._connection
        for batch in self._replies.values():
            connection.send(batch.command(connection.features.extensions), batch)
        self._replies.clear()

    def _call(self, method: str, **fields: object) -> None:
        self._others.append(self._connection.unanswered(method, **fields))
        if not self._scheduled:
            self._schedule()

    def give_back_one(self, message_id: bytes, *, is_started: bool = True) -> None:
        """Have the message redelivered; only if the application had it, that is an attempt."""
        if not self.are_extended:
            self.requeue(message_id, 0, backoff=False)
            return
        self._count_requeued((message_id,), BackoffEvent.REQUEUE)
        self._call("message.give_back", ids=[message_id.decode()], started=is_started)

    @property
    def max_attempts(self) -> int:
        """The maximum number of failures, -1 for no limit; 0 if the broker counts none."""
        return self._connection.max_attempts

    def started(self, message_id: bytes) -> None:
        """Report that the message, and all before it, are being handled; write answers first."""
        self.flush()
        self._connection.write(commands.started(message_id))

    def started_all(self, ids: NDArray[np.bytes_]) -> None:
        """Report at once that the handling of these messages has begun."""
        self.started(ids[-1].tobytes())

    def announce(self, message_id: bytes, on_known: OnDone) -> None:
        """Report a suspect's start. `on_known` is called on the answer or a lost connection."""

        def answered(error: BaseException | None) -> None:
            # A broker of an earlier version has no such call, and has understood STARTED.
            is_old = isinstance(error, CallRefused) and error.code != "NOT_IN_FLIGHT"
            on_known(None if is_old else error)

        self.started(message_id)
        self._connection.call_then(answered, "message.started", id=message_id.decode())

    def touch(self, message_id: bytes) -> None:
        """Touch the message."""
        self._others.append(commands.touch(message_id))
        if not self._scheduled:
            self._schedule()

    def finish_array(self, ids: NDArray[np.void]) -> None:
        """Finish these messages at once."""
        self.on_answer(BackoffEvent.SUCCESS)
        self.finished += len(ids)
        self._write(commands.finish_array(ids))

    def requeue_array(self, ids: NDArray[np.void], delay_ms: int, *, backoff: bool) -> None:
        """Requeue these messages at once with a delay."""
        self._count_requeued(ids, FAILED_OR_NOT[backoff])
        self._write(commands.requeue_array(ids, delay_ms))

    def give_back(self, ids: NDArray[np.void], *, is_started: bool = False) -> None:
        """Have messages redelivered; only if the application had them, that is an attempt."""
        self._count_requeued(ids, None)
        if not self.are_extended:
            self._write(commands.requeue_array(ids, 0))
            return
        texts = [message_id.decode() for message_id in ids.tolist()]
        for start in range(0, len(texts), _MAX_IDS):
            call = self._connection.unanswered(
                "message.give_back", ids=texts[start : start + _MAX_IDS], started=is_started
            )
            self._write(call)

    def touch_array(self, ids: NDArray[np.void]) -> None:
        """Touch these messages at once."""
        self._write(commands.touch_array(ids))

    def _write(self, data: bytes) -> None:
        """Write many answers encoded as one piece, after earlier ones."""
        self.flush()
        self._connection.write(data)
        self.on_settled()

    async def drain(self) -> None:
        """Wait until the broker has read most of the output."""
        await self._connection.drain()

    def flush(self) -> None:
        """Write the collected answers now."""
        self._scheduled = False
        data = b"".join(self._others)
        self._others.clear()
        if self._replies:
            self._send_replies()
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
