"""Unread input: the commands of a client that was lost before the broker had read them.

A client that dies with messages unread resets its connection.  The next write to it fails, which
closes the transport, though the kernel still holds what the client had sent: FINs and STARTEDs.
If they were dropped, finished messages would be delivered again, and a crash would be charged to
messages that had nothing to do with it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any, Protocol, cast

from martlet.layer.layer import Layer


class LostConnection(Protocol):
    """A connection whose transport is closed, and that can still take input."""

    transport: asyncio.Transport

    @property
    def held_up(self) -> bool:
        """Whether its commands are not read at present."""

    @property
    def has_turn_ahead(self) -> bool:
        """Whether commands that have come wait for nothing but their turn."""

    def go_on(self) -> None:
        """Give them their turn."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""

    def buffer_updated(self, nbytes: int) -> None:
        """Handle bytes that are in the buffer."""


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


def handle_unread(connection: LostConnection) -> None:
    """Handle what a client sent before its connection was lost.

    The kernel's receive buffer bounds it, since a connection that was reset receives nothing more.
    """
    sock = connection.transport.get_extra_info("socket")
    if sock is None:
        return
    layers: list[Layer] = []
    lowest: Layer | LostConnection = connection
    transport = connection.transport
    while isinstance(transport, Layer):
        layers.append(transport)
        lowest, transport = transport, transport.lower
    connection.transport = cast(asyncio.Transport, _LostTransport())
    try:
        while True:
            while connection.has_turn_ahead:
                connection.go_on()
            if connection.held_up:
                return
            if any(layer.hand_up() for layer in layers):
                continue
            count = os.readv(sock.fileno(), [lowest.get_buffer(-1)])
            if not count:
                return
            lowest.buffer_updated(count)
    except OSError:
        return  # The kernel has nothing more, or a layer cannot read it.
