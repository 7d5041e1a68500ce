"""A layer that compresses written bytes and decompresses received ones.

The codec of each connection is one of `martlet.protocol.compression.snappy` and
`martlet.protocol.compression.deflate`. Each write is flushed, so that the peer can read it at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from martlet.layer.layer import BrokenLayer, Layer, Piece
from martlet.protocol.compression import Corrupt


class Codec(Protocol):
    """The compressor and decompressor of one connection."""

    @property
    def at_end(self) -> bool:
        """Whether the peer has finished its stream."""

    def encode(self, pieces: Iterable[Piece]) -> bytes:
        """Compress the pieces, flushed, so that the peer can read all of them."""

    def feed(self, data: memoryview) -> None:
        """Copy received bytes into the decompressor's input."""

    def read_into(self, space: memoryview) -> int:
        """Decompress into the space; fill it unless more input is needed. Raises Corrupt."""


class CompressionLayer(Layer):
    """A layer with a codec."""

    def __init__(self, loop: asyncio.AbstractEventLoop, space: memoryview, codec: Codec) -> None:
        super().__init__(loop, space)
        self._codec = codec

    def _receive(self, data: memoryview) -> None:
        self._codec.feed(data)

    def _encode(self, pieces: Iterable[Piece]) -> bytes:
        return self._codec.encode(pieces)

    def _fill(self, space: memoryview) -> int:
        try:
            count = self._codec.read_into(space)
        except Corrupt as error:
            raise BrokenLayer(str(error)) from error
        if self._codec.at_end and count < len(space):
            self._at_end = True
        return count
