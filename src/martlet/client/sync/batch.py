"""Batches of messages, without ``await``."""

from __future__ import annotations

from typing import Any

from martlet.client.consumer import batch as asynchronous
from martlet.client.consumer.batch import Where
from martlet.client.consumer.columns import Decoded
from martlet.client.sync.loop_thread import LoopThread


class Batch(Decoded):
    """Messages of one broker, in flight until you answer them or they time out.

    It is `martlet.client.Batch`, with methods that block.
    """

    def __init__(self, batch: asynchronous.Batch, thread: LoopThread) -> None:
        super().__init__(batch._run)
        self._batch = batch
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._batch)

    @property
    def unanswered_count(self) -> int:
        """The number of messages that are neither finished nor requeued."""
        return self._batch.unanswered_count

    def finish(self, where: Where | None = None) -> None:
        """Finish these messages; without ``where``, all.

        Raises:
            AlreadyAnswered: one of them was finished or requeued before.
        """
        self._thread.call(self._batch.finish(where))

    def requeue(self, delay_ms: int = 0, where: Where | None = None, **options: Any) -> None:
        """Requeue these messages with a delay in milliseconds.

        Raises:
            AlreadyAnswered: one of them was finished or requeued before.
            ValueError: the delay is negative.
        """
        self._thread.call(self._batch.requeue(delay_ms, where, **options))

    def touch(self) -> None:
        """Reset the timeout of all unanswered messages."""
        self._thread.call(self._batch.touch())
