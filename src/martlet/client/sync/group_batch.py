"""Messages and batches of a pull consumer, for threads other than the event loop's."""

from __future__ import annotations

from typing import cast

from martlet.client.group import batch as asynchronous
from martlet.client.group.batch import PulledColumns
from martlet.client.group.message import (
    MessageQueue,
    PulledMessage,
    PulledMessageState,
    pulled_messages,
)
from martlet.client.sync.loop_thread import LoopThread


class PostedQueue:
    """Replace the queue of a message: post to the loop that the message is done."""

    __slots__ = ("_message", "_thread", "place", "topic")

    def __init__(self, message: PulledMessage, thread: LoopThread) -> None:
        self.topic = message.topic
        self.place = message.place
        self._message = message
        self._thread = thread

    def finish(self, handed: PulledMessage) -> None:
        """Mark it as done."""
        self._thread.check()
        handed._stage = PulledMessageState.DONE
        self._thread.post(self._finish)

    def _finish(self) -> None:
        message = self._message
        if message._stage is PulledMessageState.OUT:
            message.finish()


def posted(message: PulledMessage, thread: LoopThread) -> PulledMessage:
    """Copy a message, to be finished from any thread."""
    # A message uses only these methods of its queue.
    queue = cast(MessageQueue, PostedQueue(message, thread))
    fields = message.timestamp_ns, 1, message.id, message.body
    [handed] = pulled_messages(queue, [(message.offset, fields)])
    handed._packed, handed.errors = message.packed, message.errors
    handed.attempts = message.attempts
    handed._stage = PulledMessageState.OUT
    return handed


class PulledBatch(PulledColumns):
    """Messages of one queue, in order: done when the next batch is requested, or `finish` called.

    It is `martlet.client.PulledBatch`, for any thread.
    """

    def __init__(self, batch: asynchronous.PulledBatch, thread: LoopThread) -> None:
        super().__init__(batch.topic, batch.place, batch.piece)
        self._batch = batch
        self._thread = thread

    @property
    def is_finished(self) -> bool:
        """Whether they are done."""
        return self._batch.is_finished

    def finish(self) -> None:
        """Mark all of them as done, so that the committed offset may pass them.

        Raises:
            AlreadyAnswered: they were finished before.
        """
        self._thread.call(self._finish())

    async def _finish(self) -> None:
        self._batch.finish()
