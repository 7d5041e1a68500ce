"""The record of a single message: a batch of one, laid out and sealed in one call.

A batch does work once for many messages, which costs more for a single one. The bytes are the same
as `martlet.log.batch` and `martlet.log.record` would write::

    0 record header 80 | frame header 34 | body | padding to 8 | end of the frame u32 | 0 u32
"""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c

from martlet.log.record import (
    FRAME_HEADER_BYTES,
    FRAME_SIZE_EXTRA,
    HEADER_BYTES,
    HEADER_STRUCT,
    MAGIC,
    VERSION,
    RecordFlag,
    RecordKind,
)

_FRAME = Struct(">IIqH16s")
_BODY_AT = HEADER_BYTES + FRAME_HEADER_BYTES
_PADDING = bytes(7)
_END = Struct("<II")
_CRC = Struct("<I")
_FRAME_TYPE_MESSAGE = 2
_BATCH = int(RecordKind.BATCH)
_UNIFORM = int(RecordFlag.UNIFORM)
_ID_MASK = (1 << 64) - 1
MAX_BODY_BYTES = 1 << 15
"""Longer bodies do not use the buffer: they gain little by it."""


def lone_length(size: int) -> int:
    """Return the length of the record of one message with a body of `size` bytes."""
    return ((_BODY_AT + size + 7) & ~7) + 8


class Lone:
    """Builds records of one message in a reused buffer."""

    __slots__ = ("_buffer", "_view")

    def __init__(self) -> None:
        self._buffer = bytearray(lone_length(MAX_BODY_BYTES))
        self._view = memoryview(self._buffer)

    def record(
        self,
        body: bytes | memoryview,
        id: int,
        position: int,
        epoch: int,
        topic: int,
        queue: int,
        offset: int,
        stored_at_ns: int,
    ) -> memoryview:
        """Return the record of a message at an offset, for a position. It is valid until the next
        call.
        """
        size = len(body)
        buffer, view = self._buffer, self._view
        payload_end = _BODY_AT + size
        ends_at = (payload_end + 7) & ~7
        length = ends_at + 8
        payload_length = payload_end - HEADER_BYTES
        HEADER_STRUCT.pack_into(
            buffer, 0, MAGIC, 0, length, VERSION, _BATCH, _UNIFORM, position, epoch, topic, queue,
            1, offset, stored_at_ns, 0, payload_length, 0, 0,
        )  # fmt: skip
        _FRAME.pack_into(
            buffer, HEADER_BYTES, FRAME_SIZE_EXTRA + size, _FRAME_TYPE_MESSAGE, stored_at_ns, 1,
            b"%016x" % (id & _ID_MASK),
        )  # fmt: skip
        view[_BODY_AT:payload_end] = body
        if payload_end != ends_at:
            view[payload_end:ends_at] = _PADDING[: ends_at - payload_end]
        _END.pack_into(buffer, ends_at, payload_length, 0)
        _CRC.pack_into(buffer, 4, crc32c(view[8:length]))
        return view[:length]
