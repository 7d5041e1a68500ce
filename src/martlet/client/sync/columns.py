"""Messages as columns, for other threads than the event loop's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from martlet.client.consumer import columns as asynchronous
from martlet.client.sync.loop_thread import LoopThread
from martlet.properties.model import Properties

if TYPE_CHECKING:
    import pyarrow as pa

BatchT = TypeVar("BatchT", bound=asynchronous.Decoded)


class Decoded(Generic[BatchT]):
    """What both kinds of batches tell of their messages.

    Args:
        batch: of the event loop.
        thread: the loop's.
    """

    def __init__(self, batch: BatchT, thread: LoopThread) -> None:
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
    def timestamps_ns(self) -> NDArray[np.int64]:
        """When each message was published, in nanoseconds since 1970."""
        return self._batch.timestamps_ns

    @property
    def bodies(self) -> list[bytes]:
        """The body of each message."""
        return self._batch.bodies

    @property
    def properties(self) -> list[Properties]:
        """The properties of each message."""
        return self._batch.properties

    def arrow(self) -> pa.BinaryArray:
        """The bodies as one Arrow array.

        Raises:
            ImportError: pyarrow is not installed.
        """
        return self._batch.arrow()
