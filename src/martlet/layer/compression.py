"""A layer that compresses what is written, and decompresses what comes.

The codec of each connection is one of `martlet.protocol.compression.snappy` and
`martlet.protocol.compression.deflate`. Each write is flushed, so that the other end can read it at
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from martlet.layer.layer import BrokenLayer, Layer, Piece
from martlet.protocol.compression.corrupt import Corrupt


class Codec(Protocol):
    """Both directions of one connection."""

    @property
    def at_end(self) -> bool:
        """Whether the other end has finished its stream."""

    def encode(self, pieces: Iterable[Piece]) -> bytes:
        """What is to be sent for the pieces, with all that is needed to read them."""

    def feed(self, data: memoryview) -> None:
        """Take what came; it is copied."""

    def read_into(self, space: memoryview) -> int:
        """Decompress into the space, and fill it unless more must come first. Raises Corrupt."""


class CompressionLayer(Layer):
    """A layer with a codec."""

    def __init__(self, loop: asyncio.AbstractEventLoop, space: memoryview, codec: Codec) -> None:
        super().__init__(loop, space)
        self._codec = codec

    def _take(self, data: memoryview) -> None:
        self._codec.feed(data)

    def _wrap(self, pieces: Iterable[Piece]) -> bytes:
        return self._codec.encode(pieces)

    def _give(self, space: memoryview) -> int:
        try:
            count = self._codec.read_into(space)
        except Corrupt as error:
            raise BrokenLayer(str(error)) from error
        if self._codec.at_end and count < len(space):
            self._at_end = True
        return count
