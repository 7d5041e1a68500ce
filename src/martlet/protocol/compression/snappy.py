"""Snappy's framing format: a stream of chunks, each of at most 64 KiB of content.

::

    type u8 | length u24, little-endian | content of that length

    ff  "sNaPpY"                       begins a stream, may be repeated
    00  sum u32 LE | snappy            a block
    01  sum u32 LE | bytes as they are a block that would not become smaller
    80 to fe                           to be skipped
    02 to 7f                           unknown: an error

The sum is the CRC-32C of the content before compression, masked.  Each chunk is complete, so the
receiver can decode each write as soon as it arrives, and no chunk needs more memory than 64 KiB.
Source: https://github.com/google/snappy/blob/main/framing_format.txt
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from crc32c import crc32c

from martlet.protocol.compression import Corrupt

MAX_BYTES = 1 << 16
_BEGIN = b"\xff\x06\x00\x00sNaPpY"
_HEAD_BYTES = 4
_SUM_BYTES = 4
_MAX_BLOCK_LENGTH = 76_490
"""The maximum size of 64 KiB after compression: 32 + n + n / 6."""
_SMALLEST = 64
"""Fewer bytes than this are sent uncompressed."""
_COMPRESSED, _PLAIN, _FIRST_SKIPPABLE, _STREAM = 0x00, 0x01, 0x80, 0xFF

_SUM = struct.Struct("<I")
_HEADER = struct.Struct("<II")


def _masked_sum(data: bytes | bytearray | memoryview) -> int:
    total = crc32c(data)
    return ((total >> 15 | total << 17) + 0xA282EAD8) & 0xFFFFFFFF


class Snappy:
    """The compressor and decompressor of one connection."""

    def __init__(self) -> None:
        from cramjam import DecompressionError, snappy  # not loaded without such clients

        self._error = DecompressionError
        self._compress = snappy.compress_raw
        self._decompress = snappy.decompress_raw_into
        self._length = snappy.decompress_raw_len
        self.at_end = False
        """A stream of chunks has no end marker."""
        self._has_begun = False
        self._is_begun = False
        self._wire = bytearray()
        self._at = 0
        self._skip = 0
        self._rest = memoryview(b"")

    def encode(self, pieces: Iterable[bytes | bytearray | memoryview]) -> bytes:
        """Compress the pieces."""
        view = memoryview(b"".join(pieces))
        chunks: list[bytes | memoryview] = []
        if not self._has_begun:
            self._has_begun = True
            chunks.append(_BEGIN)
        for start in range(0, len(view), MAX_BYTES):
            block = view[start : start + MAX_BYTES]
            size = len(block)
            kind, content = _PLAIN, block
            if size >= _SMALLEST:
                smaller = memoryview(self._compress(block))
                if len(smaller) < size - size // 8:
                    kind, content = _COMPRESSED, smaller
            head = (len(content) + _SUM_BYTES) << 8 | kind
            chunks += (_HEADER.pack(head, _masked_sum(block)), content)
        return b"".join(chunks)

    def feed(self, data: memoryview) -> None:
        """Copy received bytes into the decompressor's input."""
        if self._at:
            del self._wire[: self._at]
            self._at = 0
        self._wire += data

    def read_into(self, space: memoryview) -> int:
        """Decompress into the space; fill it unless more input is needed.

        Raises:
            Corrupt: the input is not snappy.
        """
        filled = 0
        while filled < len(space):
            if self._rest:
                count = min(len(self._rest), len(space) - filled)
                space[filled : filled + count] = self._rest[:count]
                self._rest = self._rest[count:]
                filled += count
                continue
            chunk = self._next()
            if chunk is None:
                break
            filled += self._read(*chunk, space[filled:])
        return filled

    def _next(self) -> tuple[int, int, int] | None:
        """Return kind, start and stop of the next chunk with content; None if input is missing."""
        while True:
            at = self._at + self._skip
            left = len(self._wire) - at
            if left < _HEAD_BYTES:
                if left < 0:
                    self._skip, self._at = -left, len(self._wire)
                return None
            self._skip, self._at = 0, at
            (head,) = _SUM.unpack_from(self._wire, at)
            kind, length = head & 0xFF, head >> 8
            if not self._is_begun and kind != _STREAM:
                raise Corrupt("snappy: corrupt input: it does not begin with a stream identifier")
            if kind not in (_COMPRESSED, _PLAIN, _STREAM):
                if kind < _FIRST_SKIPPABLE:
                    raise Corrupt(f"snappy: unsupported input: chunk of type {kind:#04x}")
                self._skip = _HEAD_BYTES + length
                continue
            self._check_length(kind, length)
            if left < _HEAD_BYTES + length:
                return None
            start = at + _HEAD_BYTES
            self._at = start + length
            if kind != _STREAM:
                return kind, start, self._at
            if self._wire[start : self._at] != _BEGIN[_HEAD_BYTES:]:
                raise Corrupt("snappy: corrupt input: another stream identifier")
            self._is_begun = True

    def _check_length(self, kind: int, length: int) -> None:
        if kind == _STREAM:
            low = high = len(_BEGIN) - _HEAD_BYTES
        else:
            low = _SUM_BYTES
            high = low + (_MAX_BLOCK_LENGTH if kind == _COMPRESSED else MAX_BYTES)
        if not low <= length <= high:
            raise Corrupt(
                f"snappy: corrupt input: a chunk of type {kind:#04x} has {length} bytes,"
                f" not {low} to {high}"
            )

    def _read(self, kind: int, start: int, stop: int, space: memoryview) -> int:
        """Decompress a chunk into the space, and buffer the bytes that do not fit."""
        (expected,) = _SUM.unpack_from(self._wire, start)
        with memoryview(self._wire) as wire, wire[start + _SUM_BYTES : stop] as content:
            try:
                size = len(content) if kind == _PLAIN else self._length(content)
                if size > MAX_BYTES:
                    raise Corrupt(f"snappy: corrupt input: a chunk of {size} bytes")
                fits = size <= len(space)
                block = space[:size] if fits else memoryview(bytearray(size))
                if kind == _PLAIN:
                    block[:] = content
                else:
                    self._decompress(content, block)
            except self._error as error:
                raise Corrupt(f"snappy: corrupt input: {error}") from error
        if _masked_sum(block) != expected:
            raise Corrupt("snappy: corrupt input: a chunk's sum is wrong")
        if fits:
            return size
        self._rest = block
        return 0
