"""Messages as columns, each made of a run of frames at first use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from martlet.extras import how_to_install
from martlet.properties.model import NONE, Properties
from martlet.protocol.nsq.message_run import FRAME_HEADER_BYTES, MessageRun

if TYPE_CHECKING:
    import pyarrow as pa


class Decoded:
    """The messages of a run.

    Attributes:
        count: the number of messages.
    """

    def __init__(self, run: MessageRun) -> None:
        self.count = run.count
        self._run = run

    def __len__(self) -> int:
        return self.count

    @cached_property
    def ids(self) -> NDArray[np.bytes_]:
        """The id of each message: an array of 16 bytes each (``S16``)."""
        return self._run.ids().view("S16")

    @cached_property
    def attempts(self) -> NDArray[np.uint16]:
        """The number of deliveries of each message, this one included."""
        return cast("NDArray[np.uint16]", self._run.heads()["attempts"].astype(np.uint16))

    @cached_property
    def timestamps_ns(self) -> NDArray[np.int64]:
        """The publish time of each message, in nanoseconds since 1970."""
        return cast("NDArray[np.int64]", self._run.heads()["timestamp_ns"].astype(np.int64))

    @cached_property
    def bodies(self) -> list[bytes]:
        """The body of each message, made at first use."""
        return self._run.bodies()

    @cached_property
    def properties(self) -> list[Properties]:
        """The properties of each message, made at first use; equal ones are one object."""
        packed = self._run.properties
        known = {each: Properties.unpack(each) for each in set(packed.values())}
        return [known[packed[at]] if at in packed else NONE for at in range(self.count)]

    def arrow(self) -> pa.BinaryArray:
        """Return the bodies as one Arrow array, made without a step for each message.

        The received bytes are read as an array that alternates frame heads and bodies; then the
        bodies are selected.

        Raises:
            ImportError: pyarrow is not installed.
        """
        try:
            import pyarrow as pa
        except ImportError as error:
            raise ImportError(f"Batch.arrow needs pyarrow: {how_to_install('arrow')}") from error
        ends = self._run.ends()
        offsets = np.empty(2 * self.count + 1, np.int32)
        offsets[0] = 0
        offsets[2::2] = ends
        offsets[1::2] = offsets[:-1:2] + FRAME_HEADER_BYTES
        buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(self._run.raw)]
        both = pa.Array.from_buffers(pa.binary(), 2 * self.count, buffers)
        bodies = both.take(np.arange(1, 2 * self.count, 2, dtype=np.int32))
        return cast("pa.BinaryArray", bodies)
