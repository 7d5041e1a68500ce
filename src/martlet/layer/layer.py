"""A layer: transforms the bytes between a transport and a protocol.

To the transport below it is the protocol, to the protocol above it is the transport, so several can
be stacked, and neither side notices them::

    socket  --get_buffer, buffer_updated-->  Layer  --get_buffer, buffer_updated-->  protocol
    socket  <--------------write-----------  Layer  <--------------write-----------  protocol

Each write is passed down at once and complete: a layer buffers no output. Input is passed up in
pieces that fit the protocol's buffer. A few bytes below may become very many above (a decompression
bomb), so a layer passes up at most `MAX_BYTES_PER_TICK` in one turn of the event loop, and reads
nothing below while the protocol has paused reading.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol, cast

from martlet.protocol.compression import Corrupt

Piece = bytes | bytearray | memoryview

SPACE_BYTES = 1 << 18
MAX_BYTES_PER_TICK = SPACE_BYTES
"""As many bytes as a connection without layers receives at once."""


class BrokenLayer(ConnectionError):
    """The peer sent bytes that the layer cannot decode."""


class Layer(asyncio.Transport, asyncio.BufferedProtocol):
    """One layer.

    Args:
        loop: the event loop of the transport and the protocol.
        space: the receive buffer; all layers of a loop may share it, since each copies its bytes
            before another can receive.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, space: memoryview) -> None:
        super().__init__()
        self._loop = loop
        self._space = space
        self._paused = False
        self._lower_paused = False
        self._at_end = False
        self._has_notified_end = False
        self._error: Exception | None = None

    def insert(self, lower: asyncio.Transport, upper: asyncio.BufferedProtocol) -> None:
        """Insert the layer between a transport and its protocol."""
        self.lower = lower
        self._upper = upper
        lower.set_protocol(self)

    def feed(self, data: Piece) -> None:
        """Process bytes that were received before the layer was inserted."""
        self._receive(memoryview(data))
        self._pump()

    # implemented by each layer

    @abstractmethod
    def _receive(self, data: memoryview) -> None:
        """Copy bytes received from below; the memory is reused afterwards."""

    @abstractmethod
    def _fill(self, space: memoryview) -> int:
        """Write bytes for the protocol above into the space; fill it unless more input is needed.

        Raises:
            BrokenLayer: the received bytes are invalid.
        """

    @abstractmethod
    def _encode(self, pieces: Iterable[Piece]) -> bytes:
        """Return the bytes to write below."""

    # the transport of the protocol above

    def write(self, data: Piece) -> None:
        """Send data."""
        self.lower.write(self._encode((data,)))

    def writelines(self, pieces: Iterable[Any]) -> None:
        """Send all pieces as one."""
        self.lower.write(self._encode(pieces))

    def close(self) -> None:
        """Close the connection once everything written is sent."""
        self.lower.close()

    def abort(self) -> None:
        """Close at once."""
        self.lower.abort()

    def can_write_eof(self) -> bool:
        """Whether the sending side can be shut down by itself."""
        return self.lower.can_write_eof()

    def write_eof(self) -> None:
        """Shut down the sending side once everything written is sent."""
        self.lower.write_eof()

    @property
    def bottom(self) -> asyncio.Transport:
        """The transport below this layer and all others."""
        lower = self.lower
        return lower.bottom if isinstance(lower, Layer) else lower

    def is_closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return self.lower.is_closing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass received bytes to another protocol from now on: a layer that was inserted above."""
        self._upper = cast(asyncio.BufferedProtocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that gets the received bytes."""
        return self._upper

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the socket."""
        return self.lower.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits of the lower transport's write buffer."""
        self.lower.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the size of the lower transport's write buffer."""
        return self.lower.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Stop passing bytes up."""
        self._paused = True
        self.lower.pause_reading()

    def resume_reading(self) -> None:
        """Pass bytes up again."""
        self._paused = False
        self._pause_lower()
        self._loop.call_soon(self._pump_again)

    def is_reading(self) -> bool:
        """Whether received bytes are passed up."""
        return not self._paused and not self.is_closing()

    # the protocol of the transport below

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the receive buffer."""
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` received bytes."""
        self._receive(self._space[:nbytes])
        self._pump()

    def eof_received(self) -> bool:
        """Process the end of the peer's stream."""
        self._at_end = True
        if not self._paused and not self._lower_paused:
            self._notify_end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the protocol above that the connection is lost."""
        self._upper.connection_lost(self._error or exc)

    def pause_writing(self) -> None:
        """Pause the protocol above: the peer reads too slowly."""
        self._upper.pause_writing()

    def resume_writing(self) -> None:
        """Resume the protocol above."""
        self._upper.resume_writing()

    # passing bytes up

    def pass_up(self) -> int:
        """Pass up some bytes that were received before the transport below was closed. Returns how
        many; 0 where none are left.  Raises BrokenLayer: the input is invalid, or was.
        """
        if self._error is not None:
            # Behind invalid bytes there may be valid ones, which belong to nothing any more.
            raise BrokenLayer(str(self._error))
        count = self._fill(cast(memoryview, self._upper.get_buffer(-1)))
        if count:
            self._upper.buffer_updated(count)
        return count

    def _pump(self) -> None:
        """Pass up the bytes that are available."""
        left = MAX_BYTES_PER_TICK
        while not self._paused and not self.is_closing():
            space = cast(memoryview, self._upper.get_buffer(-1))
            try:
                count = self._fill(space)
            except BrokenLayer as error:
                self._break(error)
                return
            if count:
                self._upper.buffer_updated(count)
            if count < len(space):
                self._resume_lower()
                if self._at_end and not self._paused:
                    self._notify_end()
                return
            left -= count
            if left <= 0:
                self._pause_lower()
                self._loop.call_soon(self._pump_again)
                return

    def _pump_again(self) -> None:
        try:
            if not self._paused:
                self._pump()
        except Exception:
            self.abort()
            raise

    def _pause_lower(self) -> None:
        """Pause reading below until the buffered bytes have been passed up."""
        if not self._lower_paused and not self.is_closing():
            self._lower_paused = True
            self.lower.pause_reading()

    def _resume_lower(self) -> None:
        if self._lower_paused:
            self._lower_paused = False
            if not self.is_closing():
                self.lower.resume_reading()

    def _notify_end(self) -> None:
        if not self._has_notified_end and not self.is_closing():
            self._has_notified_end = True
            if not self._upper.eof_received():
                self.close()

    def _break(self, error: Exception) -> None:
        """Abort the connection, as the stream can no longer be decoded."""
        self._error = error
        self.lower.abort()


class Codec(Protocol):
    """The compressor and decompressor of one connection, one of `martlet.protocol.compression`."""

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
    """A layer that compresses written bytes, each write flushed, so that the peer can read it at
    once, and decompresses received ones.
    """

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
