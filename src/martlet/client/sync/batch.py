"""Many messages at once, without ``await``."""

from __future__ import annotations

from typing import Any

from martlet.client.consumer import batch as asynchronous
from martlet.client.consumer.batch import Where
from martlet.client.consumer.columns import Decoded
from martlet.client.sync.loop_thread import LoopThread


class Batch(Decoded):
    """Messages of one broker, in flight to you until you answer them or their time runs out.

    It is `martlet.client.Batch`; what that awaits, this does before it returns.
    """

    def __init__(self, batch: asynchronous.Batch, thread: LoopThread) -> None:
        super().__init__(batch._run)
        self._batch = batch
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._batch)

    @property
    def unanswered_count(self) -> int:
        """How many messages of the batch are neither finished nor requeued."""
        return self._batch.unanswered_count

    def finish(self, where: Where | None = None) -> None:
        """Tell the broker that these messages have been dealt with; without ``where``, all.

        Raises:
            AlreadyAnswered: one of them was finished or requeued before.
        """
        self._thread.call(self._batch.finish(where))

    def requeue(self, delay_ms: int = 0, where: Where | None = None, **options: Any) -> None:
        """Have the broker deliver these messages again, after so many milliseconds.

        Raises:
            AlreadyAnswered: one of them was finished or requeued before.
            ValueError: the delay is negative.
        """
        self._thread.call(self._batch.requeue(delay_ms, where, **options))

    def touch(self) -> None:
        """Have the time of all that are not answered yet start anew."""
        self._thread.call(self._batch.touch())
