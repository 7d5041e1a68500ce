"""A batch while it is built: frames laid out in place, in a scratch buffer that is used again.

The bodies go straight from the buffer they were received in to where the frames stand; headers
and ids are written for many messages at once.  A run of bodies of one size is a matrix and one
strided copy.  Bodies of several sizes are joined with gaps for the headers, which are then
scattered into the gaps through a view of the buffer that has an element at every byte.
"""

from __future__ import annotations

import struct
from binascii import hexlify
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from martlet.log.record import (
    FRAME_HEADER_BYTES,
    FRAME_SIZE_EXTRA,
    HEADER_BYTES,
    Flag,
    align8,
    record_length,
)

Bytes = npt.NDArray[np.uint8]

FIRST_CAPACITY = 1 << 16
_FRAME = struct.Struct(">IIqH16s")
_FIXED = struct.Struct(">IIqH")
_FRAME_TYPE_MESSAGE = 2
_GAP = bytes(FRAME_HEADER_BYTES)
_ID_MASK = (1 << 64) - 1
_FEW = 8
"""Up to this many messages of several sizes are quicker one by one."""
assert _FRAME.size == FRAME_HEADER_BYTES


class Batch:
    """Frames of one queue that will be appended as one record."""

    __slots__ = (
        "_array",
        "_elements",
        "_ends",
        "_size",
        "_view",
        "count",
        "end",
        "first_id",
        "scratch",
        "stored_at_ns",
    )

    def __init__(self) -> None:
        self._allocate(FIRST_CAPACITY)
        self.begin(0, 0)

    def _allocate(self, capacity: int) -> None:
        self.scratch = bytearray(capacity)
        self._view = memoryview(self.scratch)
        self._array: Bytes = np.frombuffer(self.scratch, np.uint8)
        self._elements: npt.NDArray[np.void] = np.ndarray(
            (capacity - FRAME_HEADER_BYTES + 1,),
            np.dtype((np.void, FRAME_HEADER_BYTES)),
            self.scratch,
            strides=(1,),
        )

    @property
    def payload_length(self) -> int:
        """The bytes of all frames so far."""
        return self.end - HEADER_BYTES

    def begin(self, first_id: int, stored_at_ns: int) -> None:
        """Start over, for messages with ids from `first_id` on, stored at a time."""
        self.first_id = first_id
        self.stored_at_ns = stored_at_ns
        self.count = 0
        self.end = HEADER_BYTES
        self._size: int | None = None
        self._ends: list[int | npt.NDArray[np.int64]] = []

    def _reserve(self, length: int) -> None:
        """See that `length` more bytes of frames, and the trailer, fit."""
        wanted = self.end + length
        if wanted <= len(self.scratch):
            return
        capacity = len(self.scratch)
        while capacity < wanted:
            capacity *= 2
        old = self._view[: self.end]
        self._allocate(capacity)
        self._view[: self.end] = old

    def _ids(self, count: int) -> bytes:
        first = (self.first_id + self.count) & _ID_MASK
        ids = np.arange(count, dtype=np.uint64)
        ids += np.uint64(first)
        return hexlify(ids.astype(">u8").tobytes())

    def add(self, body: bytes | memoryview) -> None:
        """Add one message."""
        size = len(body)
        at = self.end
        end = at + FRAME_HEADER_BYTES + size
        if end > len(self.scratch):
            self._reserve(end - at)
        _FRAME.pack_into(
            self.scratch,
            at,
            FRAME_SIZE_EXTRA + size,
            _FRAME_TYPE_MESSAGE,
            self.stored_at_ns,
            1,
            b"%016x" % ((self.first_id + self.count) & _ID_MASK),
        )
        self._view[at + FRAME_HEADER_BYTES : end] = body
        self._ends.append(end - HEADER_BYTES)
        self._of_size(size)
        self.count += 1
        self.end = end

    def add_matrix(self, bodies: Bytes) -> None:
        """Add messages of one size: ``uint8[count, size]``, of any strides."""
        count, size = bodies.shape
        if count == 1:
            self.add(bodies.tobytes())
            return
        frame_bytes = FRAME_HEADER_BYTES + size
        length = count * frame_bytes
        self._reserve(length)
        at = self.end
        rows = self._array[at : at + length].reshape(count, frame_bytes)
        fixed = _FIXED.pack(FRAME_SIZE_EXTRA + size, _FRAME_TYPE_MESSAGE, self.stored_at_ns, 1)
        rows[:, : _FIXED.size] = np.frombuffer(fixed, np.uint8)
        ids = np.frombuffer(self._ids(count), np.uint8)
        rows[:, _FIXED.size : FRAME_HEADER_BYTES] = ids.reshape(count, 16)
        rows[:, FRAME_HEADER_BYTES:] = bodies
        start = at - HEADER_BYTES
        self._ends.append(
            np.arange(start + frame_bytes, start + length + 1, frame_bytes, dtype=np.int64)
        )
        self._of_size(size)
        self.count += count
        self.end = at + length

    def add_many(self, bodies: Sequence[bytes | memoryview]) -> None:
        """Add messages of any sizes."""
        count = len(bodies)
        if count <= _FEW:
            for body in bodies:
                self.add(body)
            return
        sizes = np.fromiter(map(len, bodies), np.int64, count)
        lengths = sizes + FRAME_HEADER_BYTES
        ends = lengths.cumsum()
        length = int(ends[-1])
        self._reserve(length)
        at = self.end
        self._view[at : at + length] = _GAP.join((b"", *bodies))
        headers = np.empty((count, FRAME_HEADER_BYTES), np.uint8)
        fixed = _FIXED.pack(0, _FRAME_TYPE_MESSAGE, self.stored_at_ns, 1)
        headers[:, : _FIXED.size] = np.frombuffer(fixed, np.uint8)
        headers[:, :4] = (sizes + FRAME_SIZE_EXTRA).astype(">u4").view(np.uint8).reshape(count, 4)
        ids = np.frombuffer(self._ids(count), np.uint8)
        headers[:, _FIXED.size :] = ids.reshape(count, 16)
        starts = ends - lengths
        starts += at
        self._elements[starts] = headers.view(self._elements.dtype).reshape(count)
        self._ends.append(ends + (at - HEADER_BYTES))
        smallest = int(sizes.min())
        self._of_size(smallest if smallest == int(sizes.max()) else -1)
        self.count += count
        self.end = at + length

    def _of_size(self, size: int) -> None:
        if self._size is None:
            self._size = size
        elif self._size != size:
            self._size = -1

    def finish(self) -> tuple[memoryview, Flag]:
        """Write the trailer. Returns the record's bytes, its header still to be sealed."""
        assert self.count > 0
        length = record_length(self.payload_length, self.count)
        self._reserve(length - self.end)
        ends_at = align8(self.end)
        self._view[self.end : ends_at] = bytes(ends_at - self.end)
        if len(self._ends) == 1 or self.count == len(self._ends):
            ends = np.array(self._ends, "<u4")
        else:
            ends = np.concatenate([np.atleast_1d(e) for e in self._ends]).astype("<u4")
        trailer_end = ends_at + 4 * self.count
        self._view[ends_at:trailer_end] = ends.tobytes()
        self._view[trailer_end:length] = bytes(length - trailer_end)
        return self._view[:length], Flag(0) if self._size == -1 else Flag.UNIFORM
