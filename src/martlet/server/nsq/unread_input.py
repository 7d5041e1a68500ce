"""Unread: the commands of a client that was lost before the broker had read them.

A client that dies with messages unread resets its connection.  The next write to it fails, which
closes the transport, though the kernel still holds what the client had sent: FINs, and what it said
that it starts to handle.  If that were dropped, finished messages would come again, and a crash
would be charged to messages that had nothing to do with it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from martlet.server.nsq.connection import ClientConnection


class _LostTransport(asyncio.Transport):
    """Takes answers that no client reads any more."""

    def write(self, data: object) -> None:
        """Drop it."""

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Drop them."""

    def pause_reading(self) -> None:
        """There is nothing to pause."""

    def resume_reading(self) -> None:
        """There is nothing to resume."""

    def is_closing(self) -> bool:
        """It is lost."""
        return True

    def close(self) -> None:
        """It is."""

    def abort(self) -> None:
        """It is."""


def handle_unread(connection: ClientConnection) -> None:
    """Handle what a client sent before its connection was lost.

    The kernel's receive buffer bounds it, since a connection that was reset gets nothing more.
    Behind TLS or compression nothing is read: the layer has let go of its state by then.
    """
    transport = connection.transport
    sock = transport.get_extra_info("socket")
    if sock is None or connection.snappy or connection.deflate or connection.tls is not None:
        return
    connection.transport = cast(asyncio.Transport, _LostTransport())
    if connection.consumer is not None and connection.channel is not None:
        # What it finishes now makes no room for more.
        connection.channel.set_ready(cast(Any, connection.consumer), 0)
    try:
        while True:
            while connection.has_turn_ahead:
                connection.go_on()
            if connection.held_up:
                return
            count = os.readv(sock.fileno(), [connection.get_buffer(-1)])
            if not count:
                return
            connection.buffer_updated(count)
    except OSError:
        connection.server.log.debug("[%s] nothing more is there", connection.remote_address)
