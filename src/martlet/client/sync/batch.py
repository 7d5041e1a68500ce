"""Many messages at once, without ``await``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from martlet.client import batch as asynchronous
from martlet.client.batch import Where
from martlet.client.sync.loop_thread import LoopThread

if TYPE_CHECKING:
    import pyarrow as pa


class Batch:
    """Messages of one broker, in flight to you until you answer them or their time runs out.

    It is `martlet.client.Batch`; what that awaits, this does before it returns.
    """

    def __init__(self, batch: asynchronous.Batch, thread: LoopThread) -> None:
        self._batch = batch
        self._thread = thread

    def __len__(self) -> int:
        return self._batch.count

    def __repr__(self) -> str:
        return repr(self._batch)

    @property
    def count(self) -> int:
        """How many messages there are."""
        return self._batch.count

    @property
    def ids(self) -> NDArray[np.bytes_]:
        """The id of each message: an array of 16 bytes each (``S16``)."""
        return self._batch.ids

    @property
    def attempts(self) -> NDArray[np.uint16]:
        """How often each message has been delivered, this time included."""
        return self._batch.attempts

    @property
    def timestamps_ns(self) -> NDArray[np.int64]:
        """When each message was published, in nanoseconds since 1970."""
        return self._batch.timestamps_ns

    @property
    def bodies(self) -> list[bytes]:
        """The body of each message."""
        return self._batch.bodies

    def arrow(self) -> pa.BinaryArray:
        """The bodies as one Arrow array.

        Raises:
            ImportError: pyarrow is not installed.
        """
        return self._batch.arrow()

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
