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
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from martlet.client.consumer.acks import AckBatcher, MessageIds
from martlet.client.consumer.buffer import BufferedRun
from martlet.client.consumer.handling.backoff import BackoffEvent
from martlet.client.transport.connection import Connection
from martlet.protocol.nsq.message_run import ID_BYTES, MessageRun

_OFFSET_BITS = np.uint64(54)
"""The bits of an id, behind the base, below the number of the queue."""


class _OrderedQueue:
    """The messages of one queue."""

    __slots__ = ("head", "waiting")

    def __init__(self) -> None:
        self.head: bytes | None = None
        """The id of the message that is handed on; None for none."""
        self.waiting: deque[tuple[bytes, MessageRun]] = deque()
        """Those behind it, with their ids."""


class InOrderAcks(AckBatcher):
    """The acknowledgements of a connection whose messages are handled in order.

    Args:
        on_delivery: called with each message that may be handled.
    """

    def __init__(self, connection: Connection, on_delivery: Callable[[BufferedRun], None]) -> None:
        super().__init__(connection)
        self._on_delivery = on_delivery
        self._queues: dict[int, _OrderedQueue] = {}
        self._heads: dict[bytes, _OrderedQueue] = {}
        """By the ids of the heads."""
        connection.on_recalled = self._recalled

    def arrived(self, run: MessageRun) -> None:
        """Take received messages."""
        base = self._connection.id_base
        if base is None:
            self._hand_on(run)
            return
        ids = run.ids().tobytes()
        numbers = (np.frombuffer(unhexlify(ids), ">u8") - np.uint64(base)) >> _OFFSET_BITS
        queues, position = self._queues, 0
        for number, message in zip(numbers.tolist(), run.singles(), strict=True):
            message_id = ids[position : position + ID_BYTES]
            position += ID_BYTES
            queue = queues.get(number)
            if queue is None:
                queue = queues[number] = _OrderedQueue()
            queue.waiting.append((message_id, message))
            if queue.head is None:
                self._begin_next(queue)

    def _hand_on(self, run: MessageRun) -> None:
        expires_at_s = time.monotonic() + self.message_timeout_s
        self._on_delivery(BufferedRun(self, run, expires_at_s))

    def _begin_next(self, queue: _OrderedQueue) -> None:
        queue.head, run = queue.waiting.popleft()
        self._heads[queue.head] = queue
        self._hand_on(run)

    def _recalled(self, number: int) -> None:
        """Drop the messages of a queue that the broker has taken back; it redelivers them."""
        queue = self._queues.pop(number, None)
        if queue is not None:
            self.dropped += len(queue.waiting)
            if queue.head is not None:
                self._heads.pop(queue.head, None)

    def _finished(self, message_id: bytes) -> None:
        queue = self._heads.pop(message_id, None)
        if queue is not None:
            queue.head = None
            if queue.waiting and self._connection.is_alive:
                self._begin_next(queue)

    def _count_requeued(self, ids: MessageIds, event: BackoffEvent | None) -> None:
        """Let nothing begin behind these until the broker has taken it back. Write finishes first:
        the broker would take back those messages too.
        """
        self.flush()
        for message_id in ids if isinstance(ids, tuple) else ids.tolist():
            self._heads.pop(message_id, None)
        super()._count_requeued(ids, event)

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
