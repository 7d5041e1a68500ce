"""The lingering close: a connection ends so that the client still reads the last error.

A socket that is closed while it has unread bytes is reset, and what the other side had not read yet
is lost to it: the very error for which it is closed.  So the sending side is shut first;
input is thrown away until the other side closes too::

    ... error | end              we have sent all
    ... more of what it sent     thrown away, as it comes
    end                          closed, by both

No client can hold a connection open by that: the time, the bytes and the number of clients have
limits, beyond which it is closed hard.  nsqd just closes, and its clients may see a reset instead
of the error.
"""

from __future__ import annotations

import asyncio

from martlet.layer.layer import Layer

LINGER_S = 5.0
"""How long a client may take to read the last answer."""
MAX_BYTES = 32 << 20
"""How much of its input is thrown away."""
MAX_AT_ONCE = 256
"""How many clients may linger; one beyond that is closed at once."""
_WASTE = bytearray(256 * 1024)
_leaving: set[_Drain] = set()


class _Drain(asyncio.BufferedProtocol):
    """Throws input away, and reports to its owner when the connection is gone."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._owner = transport.get_protocol()
        self._left_bytes = MAX_BYTES
        self._end = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
        _leaving.add(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        """The buffer of bytes that are thrown away."""
        return _WASTE

    def buffer_updated(self, nbytes: int) -> None:
        """Throw bytes away."""
        self._left_bytes -= nbytes
        if self._left_bytes < 0:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report it to the owner."""
        _leaving.discard(self)
        self._end.cancel()
        self._owner.connection_lost(exc)


def take_leave(transport: asyncio.Transport) -> None:
    """Close a connection once what was written is sent, and read if the client reads at all.

    Its protocol gets no more bytes and must write none; `connection_lost` is called as usual.
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
