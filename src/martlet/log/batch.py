"""A batch under construction: frames laid out in place, in a reused scratch buffer.

The bodies go straight from the buffer they were received in to where the frames stand; headers and
ids are written for many messages at once.  A run of bodies of one size is a matrix and one strided
copy.  Bodies of several sizes are joined with gaps for the headers, which are then scattered into
the gaps through a view of the buffer that has an element at every byte.
"""

from __future__ import annotations

import struct
from binascii import hexlify
from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from martlet.log.record import (
    FRAME,
    FRAME_HEADER_BYTES,
    FRAME_SIZE_EXTRA,
    FRAME_TYPE_MESSAGE,
    HEADER_BYTES,
    ID_MASK,
    RecordFlag,
)
from martlet.native.raw_bodies import Bodies, RawBodies
from martlet.properties.block import Entry, join

Bytes = npt.NDArray[np.uint8]

FIRST_CAPACITY = 1 << 16
"""Bytes of a new scratch buffer; it grows by doubling."""
_HEAD = struct.Struct(">IIqH12s")
"""A frame's header but for the last four digits of the id."""
_END = struct.Struct("<I")
_ENDS = np.dtype("<u4")
_PADDING = bytes(8)
_UNIFORM = int(RecordFlag.UNIFORM)
_DIGITS_AT = _HEAD.size
_TIME_AT = 8
"""The offset of the timestamp in a frame."""
_LOW_BITS = 16
_LOW_MASK = (1 << _LOW_BITS) - 1
_FEW = 8
"""Up to this many messages of different sizes are laid out faster one by one."""
assert FRAME.size == FRAME_HEADER_BYTES == _DIGITS_AT + 4


def _low_digits() -> npt.NDArray[np.uint32]:
    """Return four hexadecimal digits, as one word, for each 16-bit number."""
    numbers = np.arange(1 << _LOW_BITS, dtype=">u2").tobytes()
    return np.frombuffer(hexlify(numbers), np.uint32)


_LOW_DIGITS = _low_digits()
_HEAD_TYPE = np.dtype((np.void, _HEAD.size))
_MIDDLE = np.dtype((np.void, _HEAD.size - _TIME_AT))
"""Of a frame's header: the time, the attempts, and the id but for its last four digits."""


def total_bytes(bodies: Bodies) -> int:
    """Return the total size of some bodies."""
    if isinstance(bodies, RawBodies):
        return bodies.total_bytes
    return bodies.size if isinstance(bodies, np.ndarray) else sum(map(len, bodies))


class _Rows:
    """A scratch buffer seen as `count` frames of one size, from byte `at` on."""

    __slots__ = ("bodies", "body", "digits", "ends", "heads", "of", "size")

    def __init__(self, scratch: bytearray, at: int, size: int, count: int) -> None:
        stride = FRAME_HEADER_BYTES + size
        self.of = scratch
        self.size = size
        self.body = np.dtype((np.void, size))
        self.heads: npt.NDArray[np.void] = np.ndarray((count,), _HEAD_TYPE, scratch, at, (stride,))
        self.digits: npt.NDArray[np.uint32] = np.ndarray(
            (count,), np.uint32, scratch, at + _DIGITS_AT, (stride,)
        )
        self.bodies: npt.NDArray[np.void] = np.ndarray(
            (count,), self.body, scratch, at + FRAME_HEADER_BYTES, (stride,)
        )
        first = at - HEADER_BYTES + stride
        self.ends = np.arange(first, first + count * stride, stride, dtype=_ENDS)


class LogBatch:
    """Frames of one queue that will be appended as one record."""

    __slots__ = (
        "_ends",
        "_properties",
        "_rows",
        "_size",
        "_sizes",
        "_view",
        "_words",
        "count",
        "end",
        "first_id",
        "flags",
        "properties_length",
        "scratch",
        "stored_at_ns",
    )

    def __init__(self) -> None:
        self._rows: _Rows | None = None
        """The size of the last batch that began with a matrix: the next batch is often as large."""
        self._allocate(FIRST_CAPACITY)
        self.begin(0, 0)

    def _allocate(self, capacity: int) -> None:
        self.scratch = bytearray(capacity)
        self._view = memoryview(self.scratch)
        self._sizes: npt.NDArray[np.uint32] = np.ndarray(
            (capacity - 3,), ">u4", self.scratch, strides=(1,)
        )
        self._words: npt.NDArray[np.uint32] = np.ndarray(
            (capacity - 3,), np.uint32, self.scratch, strides=(1,)
        )

    @property
    def payload_length(self) -> int:
        """The total size of all frames so far."""
        return self.end - HEADER_BYTES

    def begin(self, first_id: int, stored_at_ns: int) -> None:
        """Reset the batch for messages with ids from `first_id` on, stored at `stored_at_ns`."""
        self.first_id = first_id
        self.stored_at_ns = stored_at_ns
        self.count = 0
        self.end = HEADER_BYTES
        self._size: int | None = None
        self._ends: list[int | bytearray | memoryview] = []
        """The ends of the frames: of one, or u32 of several."""
        self._properties: list[tuple[int, Sequence[Entry]]] = []
        self.properties_length = 0
        self.flags = 0
        """Record flags in addition to those that `finish` determines."""

    def _reserve(self, length: int) -> None:
        """Grow the buffer so that `length` more bytes of frames, and the trailer, fit."""
        end = self.end + length
        if end <= len(self.scratch):
            return
        capacity = len(self.scratch)
        while capacity < end:
            capacity *= 2
        old = self._view[: self.end]
        self._allocate(capacity)
        self._view[: self.end] = old

    def _head(self, size: int) -> bytes:
        """Return the start of the next frames, up to the last digits of their ids."""
        high = (self.first_id + self.count) >> _LOW_BITS
        return _HEAD.pack(
            FRAME_SIZE_EXTRA + size,
            FRAME_TYPE_MESSAGE,
            self.stored_at_ns,
            1,
            b"%012x" % (high & (ID_MASK >> _LOW_BITS)),
        )

    def _digits(self, count: int) -> npt.NDArray[np.uint32] | None:
        """Return the last digits of the next `count` ids; None where earlier digits differ."""
        low = (self.first_id + self.count) & _LOW_MASK
        return _LOW_DIGITS[low : low + count] if low + count <= len(_LOW_DIGITS) else None

    def add(self, body: bytes | memoryview) -> None:
        """Add one message."""
        size = len(body)
        at = self.end
        end = at + FRAME_HEADER_BYTES + size
        if end > len(self.scratch):
            self._reserve(end - at)
        FRAME.pack_into(
            self.scratch,
            at,
            FRAME_SIZE_EXTRA + size,
            FRAME_TYPE_MESSAGE,
            self.stored_at_ns,
            1,
            b"%016x" % ((self.first_id + self.count) & ID_MASK),
        )
        self._view[at + FRAME_HEADER_BYTES : end] = body
        self._ends.append(end - HEADER_BYTES)
        self._of_size(size)
        self.count += 1
        self.end = end

    def add_bodies(self, bodies: Bodies) -> None:
        """Add messages."""
        if type(bodies) is list:
            if len(bodies) == 1:
                self.add(bodies[0])
            else:
                self.add_many(bodies)
        elif isinstance(bodies, RawBodies):
            self.add_raw(bodies)
        else:
            self.add_matrix(cast("Bytes", bodies))

    def set_properties(self, first: int, entries: Sequence[Entry]) -> None:
        """Set packed properties (see `martlet.properties.model`) of messages.

        `entries` are (number, properties) with rising numbers, counted from message `first` of the
        batch, and all behind any message that has properties already. They must not be changed
        before the batch is finished.
        """
        self._properties.append((first, entries))

    def add_matrix(self, bodies: Bytes) -> None:
        """Add messages of one size: ``uint8[count, size]``, each body in one piece."""
        count, size = bodies.shape
        if count == 1:
            self.add(bodies.tobytes())
            return
        digits = self._digits(count)
        if digits is None:
            first = len(_LOW_DIGITS) - ((self.first_id + self.count) & _LOW_MASK)
            self.add_matrix(bodies[:first])
            self.add_matrix(bodies[first:])
            return
        rows = self._rows
        stride = FRAME_HEADER_BYTES + size
        length = count * stride
        self._reserve(length)
        at = self.end
        if at != HEADER_BYTES:
            rows = _Rows(self.scratch, at, size, count)
        elif rows is None or rows.size != size or rows.of is not self.scratch:
            rows = _Rows(self.scratch, at, size, (len(self.scratch) - at) // stride)
            self._rows = rows
        rows.heads[:count] = np.frombuffer(self._head(size), _HEAD_TYPE)
        rows.digits[:count] = digits
        rows.bodies[:count] = bodies.view(rows.body)[:, 0]
        self._ends.append(rows.ends[:count].data)
        self.end = at + length
        self._of_size(size)
        self.count += count

    def add_many(self, bodies: Sequence[bytes | memoryview]) -> None:
        """Add messages of any sizes."""
        count = len(bodies)
        if count <= _FEW:
            for body in bodies:
                self.add(body)
            return
        digits = self._digits(count)
        if digits is None:
            first = len(_LOW_DIGITS) - ((self.first_id + self.count) & _LOW_MASK)
            self.add_many(bodies[:first])
            self.add_many(bodies[first:])
            return
        sizes = np.fromiter(map(len, bodies), np.uint32, count)
        ends = (sizes + np.uint32(FRAME_HEADER_BYTES)).cumsum(dtype=np.uint32)
        length = int(ends[-1])
        self._reserve(length)
        at = self.end
        gap = self._head(0) + bytes(4)
        self._view[at : at + length] = gap.join((b"", *bodies))
        starts = np.empty(count, np.int64)
        starts[0] = at
        starts[1:] = ends[:-1]
        starts[1:] += at
        self._sizes[starts] = sizes + np.uint32(FRAME_SIZE_EXTRA)
        starts += _DIGITS_AT
        self._words[starts] = digits
        self.end = at + length
        self._add_ends(ends, at)
        smallest = int(sizes.min())
        self._of_size(smallest if smallest == int(sizes.max()) else -1)
        self.count += count

    def add_raw(self, bodies: RawBodies) -> None:
        """Add messages that are still as they were received."""
        count = len(bodies)
        length = count * FRAME_HEADER_BYTES + bodies.total_bytes
        self._reserve(length)
        at = self.end
        first_id = (self.first_id + self.count) & ID_MASK
        self._ends.append(bodies.lay_out(self.scratch, at, first_id, self.stored_at_ns))
        self._of_size(bodies.smallest if bodies.smallest == bodies.largest else -1)
        self.end = at + length
        self.count += count

    def add_frames(self, frames: memoryview, ends: npt.NDArray[np.uint32]) -> None:
        """Add messages given as frames, with new ids of this batch and its timestamp.

        Args:
            frames: one behind the other, of another batch.
            ends: where each ends, from the first one's start.
        """
        count = len(ends)
        done = 0
        if count <= _FEW:
            for end in ends.tolist():
                self.add(frames[done + FRAME_HEADER_BYTES : end])
                done = end
            return
        while done < count:
            # As far as the ids share their first digits.
            room = len(_LOW_DIGITS) - ((self.first_id + self.count) & _LOW_MASK)
            stop = min(count, done + room)
            start = int(ends[done - 1]) if done else 0
            length = int(ends[stop - 1]) - start
            self._add_frames(frames[start : start + length], ends[done:stop] - np.uint32(start))
            done = stop

    def _add_frames(self, frames: memoryview, ends: npt.NDArray[np.uint32]) -> None:
        count, length = len(ends), len(frames)
        self._reserve(length)
        at = self.end
        self._view[at : at + length] = frames
        sizes = ends.astype(np.int64)
        sizes[1:] -= ends[:-1]
        starts = ends - sizes + at
        heads: npt.NDArray[np.void] = np.ndarray(
            (len(self.scratch) - _MIDDLE.itemsize + 1,), _MIDDLE, self.scratch, strides=(1,)
        )
        heads[starts + _TIME_AT] = np.frombuffer(self._head(0)[_TIME_AT:], _MIDDLE)
        digits = self._digits(count)
        assert digits is not None
        self._words[starts + _DIGITS_AT] = digits
        self._add_ends(ends, at)
        smallest = int(sizes.min())
        same = smallest == int(sizes.max())
        self._of_size(smallest - FRAME_HEADER_BYTES if same else -1)
        self.end = at + length
        self.count += count

    def stamp(self, times_ns: npt.NDArray[np.int64]) -> None:
        """Replace the batch's timestamp by one for each message, in nanoseconds since 1970.

        Used for messages that were published elsewhere. A consumer gets this timestamp; the index
        and the record's header keep the batch's.
        """
        assert len(times_ns) == self.count
        starts = np.zeros(self.count + 1, np.int64)
        starts[1:] = self.frames()[1]
        starts += HEADER_BYTES + _TIME_AT
        times: npt.NDArray[np.int64] = np.ndarray(
            (len(self.scratch) - 7,), ">i8", self.scratch, strides=(1,)
        )
        times[starts[:-1]] = times_ns

    def _add_ends(self, ends: npt.NDArray[np.uint32], at: int) -> None:
        """Note the ends of frames, from byte `at` of the record."""
        self._ends.append((ends + np.uint32(at - HEADER_BYTES)).astype(_ENDS, copy=False).data)

    def _of_size(self, size: int) -> None:
        if self._size is None:
            self._size = size
        elif self._size != size:
            self._size = -1

    def frames(self) -> tuple[memoryview, npt.NDArray[np.uint32]]:
        """Return all frames, and where each ends, from the first one's start."""
        return self._view[HEADER_BYTES : self.end], np.frombuffer(self._trailer(), _ENDS)

    def _trailer(self) -> bytes:
        """Return the ends of all frames."""
        return b"".join([_END.pack(e) if isinstance(e, int) else e for e in self._ends])

    def finish(self) -> tuple[memoryview, int]:
        """Write the trailer. Returns the record's bytes, with the header not sealed yet, and its
        flags; sets `properties_length`.
        """
        assert self.count > 0
        ends_at = (self.end + 7) & ~7
        trailer_end = ends_at + 4 * self.count
        length = (trailer_end + 7) & ~7
        if self._properties:
            block = join(self._properties)
            self.properties_length = len(block)
            block_at, block_end = length, length + len(block)
            length = (block_end + 7) & ~7
            self._reserve(length - self.end)
            self._view[block_at:block_end] = block
            self._view[block_end:length] = _PADDING[: length - block_end]
            self._view[trailer_end:block_at] = _PADDING[: block_at - trailer_end]
        else:
            if length > len(self.scratch):
                self._reserve(length - self.end)
            self._view[trailer_end:length] = _PADDING[: length - trailer_end]
        self._view[self.end : ends_at] = _PADDING[: ends_at - self.end]
        self._view[ends_at:trailer_end] = self._trailer()
        return self._view[:length], self.flags if self._size == -1 else _UNIFORM | self.flags
