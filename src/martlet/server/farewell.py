"""The farewell: how a connection ends so that the other side gets its last words.

A socket that is closed while bytes lie in it unread is reset, and what the other side had not read
yet is lost to it: the very error that says why it is let go.  So the sending side is shut first;
what still comes is thrown away until the other side closes too, or for a while at most.
"""

from __future__ import annotations

import asyncio

LINGER_S = 5.0
"""How long a client may take to read its last words."""
_WASTE = bytearray(256 * 1024)


class _Deaf(asyncio.BufferedProtocol):
    """Throws away what comes; its owner is told when the connection is gone."""

    def __init__(self, owner: asyncio.BaseProtocol, end: asyncio.TimerHandle) -> None:
        self._owner = owner
        self._end = end

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where the next bytes go."""
        return _WASTE

    def buffer_updated(self, nbytes: int) -> None:
        """Nobody listens."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._end.cancel()
        self._owner.connection_lost(exc)


def take_leave(transport: asyncio.Transport, owner: asyncio.BaseProtocol) -> None:
    """Close a connection once what was written is sent, and read if the client reads at all.

    Args:
        transport: the connection's.
        owner: its protocol, which gets no more bytes, and is told when the connection is lost.
    """
    if transport.is_closing():
        return
    if not transport.can_write_eof():  # TLS has an end of its own.
        transport.close()
        return
    end = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
    # What is paused may change its protocol, whichever kind that is.
    if transport.is_reading():
        transport.pause_reading()
    transport.set_protocol(_Deaf(owner, end))
    transport.write_eof()
    transport.resume_reading()
