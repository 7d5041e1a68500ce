"""Connections between replicas: frames over TCP."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Protocol, cast

from martlet.replica.frames import Frame, FrameReader, FrameRefused

MAX_LINKS = 64
"""The maximum of connections from and to other replicas."""
_CONNECT_S = 1.0
"""How long a connection may take to come about, in seconds."""


class LinkOwner(Protocol):
    """The process at one end of the connections.

    Attributes:
        links: the open ones.
    """

    links: set[ReplicaLink]

    def link_received(self, link: ReplicaLink, frames: list[Frame]) -> None:
        """Frames arrived."""

    def link_lost(self, link: ReplicaLink) -> None:
        """A connection ended that this process did not end."""


class ReplicaLink(asyncio.Protocol):
    """One end of a connection: `martlet.replica.shipping.Link`.

    Args:
        owner: is called for what arrives.
        log: the destination of log lines.
    """

    def __init__(self, owner: LinkOwner, log: logging.Logger) -> None:
        self._owner = owner
        self._log = log
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        if len(self._owner.links) >= MAX_LINKS:
            self._log.warning("REPLICA: more than %d connections of replicas", MAX_LINKS)
            self.is_closed = True
            transport.close()
            return
        self._owner.links.add(self)
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it.
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        try:
            frames = self._reader.feed(data)
        except FrameRefused as error:
            self._log.warning("REPLICA: closing a connection: %s", error)
            self.close()
            self._owner.link_lost(self)
            return
        if frames:
            self._owner.link_received(self, frames)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        self._owner.links.discard(self)
        if not self.is_closed:
            self.is_closed = True
            self._owner.link_lost(self)

    def send(self, frame: Frame) -> None:
        """Send a frame; nothing happens where the connection has ended."""
        if self.is_closed or self._transport is None:
            return
        # A copy: the transport may keep what it is given, and a segment's bytes may change once it
        # is used again.
        self._transport.write(frame.pack_header() + bytes(frame.body))

    def close(self) -> None:
        """End the connection at once; the owner is not called for it."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()


async def connect(address: str, make: Callable[[], ReplicaLink]) -> ReplicaLink:
    """Connect to a replica at ``HOST:PORT``.

    Raises:
        ConnectionRefusedError: nothing listens there.
        OSError: no connection came about for another reason.
    """
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, link = await loop.create_connection(make, host.strip("[]"), int(port))
    except TimeoutError as error:
        raise OSError(errno.ETIMEDOUT, f"no answer within {_CONNECT_S:g} s") from error
    return link
