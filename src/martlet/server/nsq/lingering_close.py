"""The lingering close: close a connection so that the client still reads the last error.

Closing a socket with unread bytes resets the connection, and the client loses what it has not read
yet: the very error that ends the connection. So the broker shuts the sending side first, and
discards input until the client closes too::

    ... error | end              the broker has sent all
    ... more of its input        discarded as it arrives
    end                          closed by both

No client can hold a connection open by that: the time, the bytes and the number of lingering
clients have limits, beyond which the connection is aborted. nsqd just closes, and its clients may
see a reset instead of the error.
"""

from __future__ import annotations

import asyncio

from martlet.layer.layer import Layer

LINGER_S = 5.0
"""The time that a client has to read the last answer."""
MAX_BYTES = 32 << 20
"""The maximum input that is discarded."""
MAX_AT_ONCE = 256
"""The maximum number of lingering clients; further ones are closed at once."""
_WASTE = bytearray(256 * 1024)
_leaving: set[_Drain] = set()


class _Drain(asyncio.BufferedProtocol):
    """Discard input, and notify the owner when the connection is gone."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._owner = transport.get_protocol()
        self._left_bytes = MAX_BYTES
        self._end = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
        _leaving.add(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return the buffer for discarded bytes."""
        return _WASTE

    def buffer_updated(self, nbytes: int) -> None:
        """Discard bytes."""
        self._left_bytes -= nbytes
        if self._left_bytes < 0:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the owner."""
        _leaving.discard(self)
        self._end.cancel()
        self._owner.connection_lost(exc)


def take_leave(transport: asyncio.Transport) -> None:
    """Close a connection once its output is sent, and read if the client reads at all.

    Its protocol receives no more bytes and must write none; `connection_lost` is called as usual.
    """
    bottom = transport.bottom if isinstance(transport, Layer) else transport
    if bottom.is_closing() or isinstance(bottom.get_protocol(), _Drain):
        return
    if not bottom.can_write_eof() or len(_leaving) >= MAX_AT_ONCE:
        transport.close()
        return
    # Any kind of transport may change its protocol while it is paused.
    if bottom.is_reading():
        bottom.pause_reading()
    bottom.set_protocol(_Drain(bottom))
    transport.write_eof()
    bottom.resume_reading()
