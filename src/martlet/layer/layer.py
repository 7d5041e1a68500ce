"""A layer: between a transport and a protocol, it changes the bytes on their way.

To the transport below it is the protocol, to the protocol above it is the transport, so several can
be stacked, and neither end knows of them::

    socket  --get_buffer, buffer_updated-->  Layer  --get_buffer, buffer_updated-->  protocol
    socket  <--------------write-----------  Layer  <--------------write-----------  protocol

What is written goes down at once, whole: nothing waits in a layer for more.  What comes up is
handed on in pieces of the size that the protocol has room for.  A few bytes below may be very many
above (a decompression bomb), so no more than `MAX_BYTES_PER_TICK` are handed on before others have
their turn, and nothing more is read below while the protocol has paused.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, cast

Piece = bytes | bytearray | memoryview

SPACE_BYTES = 1 << 18
MAX_BYTES_PER_TICK = SPACE_BYTES
"""As much as a connection without layers receives at once."""


class BrokenLayer(ConnectionError):
    """What came from the other end is not what the layer understands."""


class Layer(asyncio.Transport, asyncio.BufferedProtocol):
    """One layer.

    Args:
        loop: the event loop of both ends.
        space: where bytes are received; it may be shared by all layers of a loop, since what is in
            it is taken over before anybody else can receive.

    Attributes:
        lower: the transport below.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, space: memoryview) -> None:
        super().__init__()
        self._loop = loop
        self._space = space
        self._paused = False
        self._holding = False
        self._at_end = False
        self._has_notified_end = False
        self._error: Exception | None = None

    def insert(self, lower: asyncio.Transport, upper: asyncio.BufferedProtocol) -> None:
        """Take the place between a transport and its protocol."""
        self.lower = lower
        self._upper = upper
        lower.set_protocol(self)

    def feed(self, data: Piece) -> None:
        """Take bytes that came before the layer was there."""
        self._take(memoryview(data))
        self._pump()

    # what a layer does with the bytes

    @abstractmethod
    def _take(self, data: memoryview) -> None:
        """Take what came from below; the memory is used again afterwards."""

    @abstractmethod
    def _give(self, space: memoryview) -> int:
        """Write what is to go up into the space; fill it unless more must come first.

        Raises:
            BrokenLayer: what came is wrong.
        """

    @abstractmethod
    def _wrap(self, pieces: Iterable[Piece]) -> bytes:
        """What is to be written below."""

    # the transport that the protocol above sees

    def write(self, data: Piece) -> None:
        """Send."""
        self.lower.write(self._wrap((data,)))

    def writelines(self, pieces: Iterable[Any]) -> None:
        """Send all pieces as one."""
        self.lower.write(self._wrap(pieces))

    def close(self) -> None:
        """Close when everything written is sent."""
        self.lower.close()

    def abort(self) -> None:
        """Close at once."""
        self.lower.abort()

    def can_write_eof(self) -> bool:
        """Whether the sending side can be shut by itself."""
        return self.lower.can_write_eof()

    def write_eof(self) -> None:
        """Shut the sending side when everything written is sent."""
        self.lower.write_eof()

    @property
    def bottom(self) -> asyncio.Transport:
        """The transport below this layer and all others."""
        lower = self.lower
        return lower.bottom if isinstance(lower, Layer) else lower

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self.lower.is_closing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand what comes from now on to another one: a layer that came in between."""
        self._upper = cast(asyncio.BufferedProtocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who gets what comes."""
        return self._upper

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the socket."""
        return self.lower.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """How much may wait to be sent."""
        self.lower.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """How much waits to be sent."""
        return self.lower.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Hand nothing up for a while."""
        self._paused = True
        self.lower.pause_reading()

    def resume_reading(self) -> None:
        """Hand up again what comes."""
        self._paused = False
        self._hold()
        self._loop.call_soon(self._go_on)

    def is_reading(self) -> bool:
        """Whether what comes is handed up."""
        return not self._paused and not self.is_closing()

    # the protocol that the transport below sees

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to receive."""
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        self._take(self._space[:nbytes])
        self._pump()

    def eof_received(self) -> bool:
        """The other end sends nothing more."""
        self._at_end = True
        if not self._paused and not self._holding:
            self._notify_end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._upper.connection_lost(self._error or exc)

    def pause_writing(self) -> None:
        """The other end does not read as fast as is written."""
        self._upper.pause_writing()

    def resume_writing(self) -> None:
        """The other end has read."""
        self._upper.resume_writing()

    # the way up

    def hand_up(self) -> int:
        """Hand up a piece of what there is, though the transport below is closed; count its bytes.

        Raises:
            BrokenLayer: what came is wrong.
        """
        count = self._give(cast(memoryview, self._upper.get_buffer(-1)))
        if count:
            self._upper.buffer_updated(count)
        return count

    def _pump(self) -> None:
        """Hand up what there is."""
        left = MAX_BYTES_PER_TICK
        while not self._paused and not self.is_closing():
            space = cast(memoryview, self._upper.get_buffer(-1))
            try:
                count = self._give(space)
            except BrokenLayer as error:
                self._break(error)
                return
            if count:
                self._upper.buffer_updated(count)
            if count < len(space):
                self._let_go()
                if self._at_end and not self._paused:
                    self._notify_end()
                return
            left -= count
            if left <= 0:
                self._hold()
                self._loop.call_soon(self._go_on)
                return

    def _go_on(self) -> None:
        try:
            if not self._paused:
                self._pump()
        except Exception:
            self.abort()
            raise

    def _hold(self) -> None:
        """Read nothing below until what is here has been handed up."""
        if not self._holding and not self.is_closing():
            self._holding = True
            self.lower.pause_reading()

    def _let_go(self) -> None:
        if self._holding:
            self._holding = False
            if not self.is_closing():
                self.lower.resume_reading()

    def _notify_end(self) -> None:
        if not self._has_notified_end and not self.is_closing():
            self._has_notified_end = True
            if not self._upper.eof_received():
                self.close()

    def _break(self, error: Exception) -> None:
        """Close at once: nothing sensible can be read any more."""
        self._error = error
        self.lower.abort()
