"""Unread input: the commands of a lost client that the broker had not read yet.

A client that dies with unread messages resets its connection. The next write to it fails, which
closes the transport, though the kernel still holds the client's last FINs and STARTEDs. Without
them, finished messages would be delivered again, and the crash would count as a failed attempt of
messages that the client had not started.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from time import thread_time_ns
from typing import TYPE_CHECKING, Any, cast

from martlet.layer.layer import Layer

if TYPE_CHECKING:
    from martlet.server.nsq.connection import ClientConnection

MAX_UNREAD_BYTES = 1 << 18
"""The FINs of 2,500 messages, nsqd's maximum in flight, are 52,500 bytes."""
MAX_CPU_NS = 20_000_000


class _LostTransport(asyncio.Transport):
    """A transport that drops all output."""

    def write(self, data: object) -> None:
        """Drop it."""

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Drop them."""

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def is_closing(self) -> bool:
        """Return True: the connection is lost."""
        return True

    def close(self) -> None:
        """It is."""

    def abort(self) -> None:
        """It is."""


def handle_unread(connection: ClientConnection) -> None:
    """Handle the input that a client sent before its connection was lost.

    At most `MAX_UNREAD_BYTES` of it, decoded, and for `MAX_CPU_NS` of the processor's time, since
    it is handled at once: no other connection has its turn in between, and a few compressed bytes
    may become very many.
    """
    sock = connection.output.transport.get_extra_info("socket")
    if sock is None:
        return
    layers: list[Layer] = []
    lowest: Layer | ClientConnection = connection
    transport = connection.output.transport
    while isinstance(transport, Layer):
        layers.append(transport)
        lowest, transport = transport, transport.lower
    connection.output.transport = cast(asyncio.Transport, _LostTransport())
    left = MAX_UNREAD_BYTES
    ends_ns = thread_time_ns() + MAX_CPU_NS
    try:
        while left > 0 and thread_time_ns() < ends_ns:
            if connection.input.has_turn_ahead:
                connection.go_on()
                continue
            if connection.input.is_held_up:
                return
            passed = next((count for layer in layers if (count := layer.pass_up())), 0)
            if not passed:
                passed = os.readv(sock.fileno(), [lowest.get_buffer(-1)[:left]])
                if not passed:
                    return
                lowest.buffer_updated(passed)
            left -= passed
    except OSError:
        return  # The kernel has nothing more, or a layer cannot read it.
