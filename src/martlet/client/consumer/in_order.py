"""Messages in order: those of one queue are handed on one at a time.

A broker sends several messages of a queue at once to a consumer that handles them in order::

    queue 0    head: handed on | waiting ...      when the head is finished, the next becomes it
    queue 1    head: handed on | waiting ...

If the head is answered by anything but a finish, the others must not be handled before it: they,
and all that come, wait until the broker has taken them back and says so, and are dropped. The
broker's timeout of a message begins when it becomes the head.
"""

from __future__ import annotations

import time
from binascii import unhexlify
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.buffer import BufferedRun
from martlet.client.transport.connection import Connection
from martlet.protocol.nsq.message_run import ID_BYTES, MessageRun

_OFFSET_BITS = np.uint64(54)
"""The bits of an id, behind the base, below the number of the queue."""


class _QueueLane:
    """The messages of one queue.

    Attributes:
        head: the id of the message that is handed on; None for none.
        waiting: those behind it, with their ids.
    """

    __slots__ = ("head", "waiting")

    def __init__(self) -> None:
        self.head: bytes | None = None
        self.waiting: deque[tuple[bytes, MessageRun]] = deque()


class InOrderAcks(AckBatcher):
    """The acknowledgements of a connection whose messages are handled in order.

    Args:
        connection: to the broker.
        on_delivery: called with each message that may be handled.
    """

    __slots__ = ("_heads", "_lanes", "_on_delivery")

    def __init__(self, connection: Connection, on_delivery: Callable[[BufferedRun], None]) -> None:
        super().__init__(connection)
        self._on_delivery = on_delivery
        self._lanes: dict[int, _QueueLane] = {}
        self._heads: dict[bytes, _QueueLane] = {}
        """By the ids of the heads."""
        connection.on_recalled = self._recalled

    def arrived(self, run: MessageRun) -> None:
        """Take received messages."""
        base = self._connection.id_base
        if base is None:
            self._hand_on(run)
            return
        ids = run.ids().tobytes()
        queues = (np.frombuffer(unhexlify(ids), ">u8") - np.uint64(base)) >> _OFFSET_BITS
        lanes, at = self._lanes, 0
        for queue, message in zip(queues.tolist(), run.singles(), strict=True):
            message_id = ids[at : at + ID_BYTES]
            at += ID_BYTES
            lane = lanes.get(queue)
            if lane is None:
                lane = lanes[queue] = _QueueLane()
            lane.waiting.append((message_id, message))
            if lane.head is None:
                self._begin_next(lane)

    def _hand_on(self, run: MessageRun) -> None:
        expires_at_s = time.monotonic() + self.message_timeout_s
        self._on_delivery(BufferedRun(self, run, expires_at_s))

    def _begin_next(self, lane: _QueueLane) -> None:
        lane.head, run = lane.waiting.popleft()
        self._heads[lane.head] = lane
        self._hand_on(run)

    def _recalled(self, queue: int) -> None:
        """Drop what the broker has taken back; it is redelivered."""
        lane = self._lanes.pop(queue, None)
        if lane is not None:
            self.dropped += len(lane.waiting)
            if lane.head is not None:
                self._heads.pop(lane.head, None)

    def _finished(self, message_id: bytes) -> None:
        lane = self._heads.pop(message_id, None)
        if lane is not None:
            lane.head = None
            if lane.waiting and self._connection.is_alive:
                self._begin_next(lane)

    def _failed(self, message_ids: Iterable[bytes]) -> None:
        """Let nothing begin behind these, until the broker has taken it back. Finishes before are
        written first, or the broker would take back those messages too.
        """
        self.flush()
        for message_id in message_ids:
            self._heads.pop(message_id, None)

    # answers

    def started_all(self, ids: NDArray[np.bytes_]) -> None:
        """Report at once that the handling of these messages has begun: one of each queue."""
        for message_id in ids.tolist():
            self.started(message_id)

    def finish(self, message_id: bytes) -> None:
        """Finish the message; the next one of its queue may be handled."""
        super().finish(message_id)
        self._finished(message_id)

    def finish_array(self, ids: NDArray[np.void]) -> None:
        """Finish these messages at once."""
        super().finish_array(ids)
        for message_id in ids.tolist():
            self._finished(message_id)

    def requeue(self, message_id: bytes, delay_ms: int, *, backoff: bool = False) -> None:
        """Requeue the message with a delay."""
        self._failed((message_id,))
        super().requeue(message_id, delay_ms, backoff=backoff)

    def later(self, message_id: bytes, error: str, *, backoff: bool, **delay: int) -> None:
        """Requeue the message, with the text of the error."""
        self._failed((message_id,))
        super().later(message_id, error, backoff=backoff, **delay)

    def reject(self, message_id: bytes, reason: str, error: str) -> None:
        """Have the broker move the message to the dead-letter topic."""
        self._failed((message_id,))
        super().reject(message_id, reason, error)

    def give_back_one(self, message_id: bytes, *, is_started: bool = True) -> None:
        """Have the message delivered to others."""
        self._failed((message_id,))
        super().give_back_one(message_id, is_started=is_started)

    def give_back(self, ids: NDArray[np.void], *, is_started: bool = False) -> None:
        """Have these messages delivered to others."""
        self._failed(ids.tolist())
        super().give_back(ids, is_started=is_started)

    def requeue_array(self, ids: NDArray[np.void], delay_ms: int, *, backoff: bool) -> None:
        """Requeue these messages at once with a delay."""
        self._failed(ids.tolist())
        super().requeue_array(ids, delay_ms, backoff=backoff)
