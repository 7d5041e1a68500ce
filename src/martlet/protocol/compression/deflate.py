"""Deflate, as NSQ uses it: one raw stream each way, without zlib's header and sum.

After each write the stream is flushed to a byte's edge (``Z_SYNC_FLUSH``), which ends it with
``00 00 ff ff``; the window goes on, so that what was sent before helps to compress what follows.
Source: RFC 1951.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from martlet.protocol.compression import Corrupt

DEFAULT_LEVEL = 6
_RAW = -zlib.MAX_WBITS


class Deflate:
    """The compressor and decompressor of one connection.

    Args:
        level: from 1, the fastest, to 9, the smallest.
    """

    def __init__(self, level: int = DEFAULT_LEVEL) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, _RAW)
        self._decompressor = zlib.decompressobj(_RAW)
        self._waiting: bytes | memoryview = b""
        self._more = False

    @property
    def at_end(self) -> bool:
        """Whether the peer has finished its stream."""
        return self._decompressor.eof

    def encode(self, pieces: Iterable[bytes | bytearray | memoryview]) -> bytes:
        """Compress the pieces, flushed."""
        compress = self._compressor.compress
        packed = [compress(piece) for piece in pieces]
        packed.append(self._compressor.flush(zlib.Z_SYNC_FLUSH))
        return b"".join(packed)

    def feed(self, data: memoryview) -> None:
        """Copy received bytes into the decompressor's input."""
        self._waiting = bytes(data) if not self._waiting else b"".join((self._waiting, data))

    def read_into(self, space: memoryview) -> int:
        """Decompress into the space; fill it unless more input is needed.

        Raises:
            Corrupt: the input is not deflate.
        """
        if not self._waiting and not self._more:
            return 0
        try:
            data = self._decompressor.decompress(self._waiting, len(space))
        except zlib.error as error:
            raise Corrupt(f"flate: corrupt input: {error}") from error
        self._waiting = self._decompressor.unconsumed_tail
        count = len(data)
        # A full space may leave something inside the decompressor even when no input is left.
        self._more = count == len(space)
        space[:count] = data
        return count
