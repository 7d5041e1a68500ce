"""The farewell: how a connection ends so that the other side gets its last words.

A socket that is closed while bytes lie in it unread is reset, and what the other side had not read
yet is lost to it: the very error that says why it is let go.  So the sending side is shut first;
what still comes is thrown away until the other side closes too::

    ... error | end              we have sent all
    ... more of what it sent     thrown away, as it comes
    end                          closed, by both

Nobody can hold a connection with it: it lasts so long, for so many bytes, and of so many clients
at once; beyond that it is closed hard.  nsqd just closes, and its clients may see a reset instead
of the error.
"""

from __future__ import annotations

import asyncio

from martlet.layer.layer import Layer

LINGER_S = 5.0
"""How long a client may take to read its last words."""
MAX_BYTES = 32 << 20
"""So much of what it still sends is thrown away."""
MAX_AT_ONCE = 256
"""So many clients may take their time; who is let go beyond that is closed at once."""
_WASTE = bytearray(256 * 1024)
_leaving: set[_Drain] = set()


class _Drain(asyncio.BufferedProtocol):
    """Throws away what comes; its owner is told when the connection is gone."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._owner = transport.get_protocol()
        self._left_bytes = MAX_BYTES
        self._end = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
        _leaving.add(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where the next bytes go."""
        return _WASTE

    def buffer_updated(self, nbytes: int) -> None:
        """Nobody listens."""
        self._left_bytes -= nbytes
        if self._left_bytes < 0:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        _leaving.discard(self)
        self._end.cancel()
        self._owner.connection_lost(exc)


def take_leave(transport: asyncio.Transport) -> None:
    """Close a connection once what was written is sent, and read if the client reads at all.

    Its protocol gets no more bytes, must write no more, and is told when the connection is lost.
    """
    bottom = transport.bottom if isinstance(transport, Layer) else transport
    if bottom.is_closing() or isinstance(bottom.get_protocol(), _Drain):
        return
    if not bottom.can_write_eof() or len(_leaving) >= MAX_AT_ONCE:
        transport.close()
        return
    # What is paused may change its protocol, whichever kind that is.
    if bottom.is_reading():
        bottom.pause_reading()
    bottom.set_protocol(_Drain(bottom))
    transport.write_eof()
    bottom.resume_reading()
