"""Connections between replicas: frames over TCP, or over TLS.

A connection begins with the handshake of `martlet.server.replication.trust`, if there is a secret.
Its first frame may be SPLICE: then it carries the bytes of one client, whom another replica has
accepted, and no more frames once SPLICED has answered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from martlet.addresses import Address
from martlet.replica.frames import (
    MAX_BODY_BYTES,
    MAX_GREETING_BYTES,
    Frame,
    FrameKind,
    FrameReader,
    FrameRefused,
)
from martlet.server.nsq.lingering_close import take_leave
from martlet.server.replication.trust import LinkTrust, NotTrusted, SecretHandshake

MAX_LINKS = 64
"""The maximum of connections from and to other replicas, those of spliced clients aside."""
MAX_STRANGERS = 256
"""The maximum of accepted connections that have not said yet what they are for; the oldest go."""
_CONNECT_S = 1.0
"""How long a connection may take to come about, in seconds."""
_LARGE_BYTES = 1 << 14
"""The body of a frame that is worth a system call of its own."""
_SMALL_BUFFER_BYTES = 1 << 12
"""The buffer of a connection that receives little, as acknowledgements."""
_BUFFER_BYTES = 1 << 20
"""The buffer of one that receives a log: so large that a turn of the loop, and an acknowledgement,
are for many records, and small enough that the bytes are still in the processor's cache when they
are written and checked.
"""
_FIRST_FRAME_S = 5.0
"""How long an accepted connection may take until its first frame, in seconds."""


class LinkOwner(Protocol):
    """The process at one end of the connections; it copies what it keeps of a frame's body."""

    links: set[ReplicaLink]
    """The links that have sent a frame, or that this process has opened."""
    strangers: dict[ReplicaLink, None]
    """The accepted links that have not, oldest first."""

    def link_received(self, link: ReplicaLink, frames: list[Frame]) -> None:
        """Frames arrived."""

    def link_drained(self, link: ReplicaLink) -> None:
        """A connection that was full takes frames again."""

    def link_lost(self, link: ReplicaLink) -> None:
        """A connection ended that this process did not end."""

    def link_spliced(self, link: ReplicaLink, frame: Frame) -> None:
        """A replica asks that this connection carry the bytes of one of its clients."""


class ReplicaLink(asyncio.BufferedProtocol):
    """One end of a connection: `martlet.replica.shipping.Link`.

    Args:
        is_acceptor: whether the other end has connected.
    """

    def __init__(
        self, owner: LinkOwner, trust: LinkTrust, log: logging.Logger, *, is_acceptor: bool = True
    ) -> None:
        self._owner = owner
        self._log = log
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        """The transport's, where nothing is encrypted."""
        # The beginnings of the frames of many strangers must not fill the memory.
        self._reader = FrameReader(MAX_GREETING_BYTES if is_acceptor else MAX_BODY_BYTES)
        self._buffer = memoryview(bytearray(_SMALL_BUFFER_BYTES))
        self._handshake = (
            SecretHandshake(trust.secret, is_acceptor=is_acceptor) if trust.secret else None
        )
        tls_flag = " or --replica-tls-ca-file" if trust.client_tls is not None else ""
        self._may_differ = f"--replica-secret-file{tls_flag}"
        self._is_acceptor = is_acceptor
        self._deadline: asyncio.TimerHandle | None = None
        self._is_first = True
        self._refusal: OSError | None = None
        self.is_closed = False
        self.is_full = False
        """Whether bytes wait that the socket did not take: what is sent now waits behind them."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once frames may be sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it.
        if self._is_acceptor:
            self._be_stranger()
        else:
            self._owner.links.add(self)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if transport.get_extra_info("ssl_object") is None:
                self._socket = connected
        if self._handshake is not None:
            self._transport.write(self._handshake.begin())
        else:
            self.ready.set_result(None)

    @property
    def descriptor(self) -> int:
        """The file descriptor of its socket."""
        assert self._transport is not None
        return cast(int, self._transport.get_extra_info("socket").fileno())

    def _be_stranger(self) -> None:
        """Wait for the first frame, for a while, beside a limited number of others."""
        strangers = self._owner.strangers
        strangers[self] = None
        if len(strangers) > MAX_STRANGERS:
            next(iter(strangers)).close()
        why = NotTrusted(f"no frame within {_FIRST_FRAME_S:g} s")
        self._deadline = asyncio.get_running_loop().call_later(_FIRST_FRAME_S, self._refuse, why)

    def _admit(self) -> None:
        self._owner.strangers.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the event loop."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the event loop."""
        received = self._buffer[:nbytes]
        if nbytes == len(self._buffer) and not self._is_first:
            self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        try:
            if self._handshake is not None:
                received = memoryview(self._prove(self._handshake, bytes(received)))
            frames = self._reader.feed(received)
        except (FrameRefused, NotTrusted) as error:
            self._refuse(error)
            return
        if not frames:
            return
        is_first, self._is_first = self._is_first and self._is_acceptor, False
        if is_first:
            self._admit()
            self._reader.max_body_bytes = MAX_BODY_BYTES
            if frames[0].kind == FrameKind.SPLICE:
                self._owner.link_spliced(self, frames[0])
                return
            if len(self._owner.links) >= MAX_LINKS:
                self._refuse(NotTrusted(f"{MAX_LINKS} connections of replicas are the maximum"))
                return
            self._owner.links.add(self)
        self._owner.link_received(self, frames)

    def _prove(self, handshake: SecretHandshake, data: bytes) -> bytes:
        """Go on with the handshake. Returns the bytes behind it. Raises NotTrusted."""
        assert self._transport is not None
        reply, rest = handshake.feed(data)
        self._transport.write(reply)
        if handshake.is_done:
            self._handshake = None
            self.ready.set_result(None)
        return rest

    def _refuse(self, error: Exception) -> None:
        assert self._transport is not None
        is_stranger = self in self._owner.strangers
        level = logging.INFO if is_stranger else logging.WARNING  # Strangers may be many.
        peer = self._transport.get_extra_info("peername")
        self._log.log(level, "REPLICA: closing the connection to %s: %s", peer, error)
        self._refusal = error if isinstance(error, OSError) else None
        if is_stranger:  # It may still send: then it reads the end, and no reset.
            self.is_closed = True
            self._admit()
            take_leave(self._transport)
        else:
            self.close()
        self._owner.link_lost(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        self._owner.links.discard(self)
        self._admit()
        if not self.ready.done():
            closed = f"closed by the other replica: it may have another {self._may_differ}"
            reason = self._refusal or error
            reason = reason if isinstance(reason, OSError) else ConnectionResetError(closed)
            self.ready.set_exception(reason)
            self.ready.exception()  # It need not be awaited.
        if not self.is_closed:
            self.is_closed = True
            self._owner.link_lost(self)

    def send(self, frame: Frame) -> None:
        """Send a frame; nothing happens where the connection has ended."""
        if self.is_closed or self._transport is None:
            return
        header, body = frame.pack_header(), frame.body
        if len(body) < _LARGE_BYTES:
            self._transport.write(b"".join((header, body)))
            return
        sent = self._send_at_once(header, body)
        if sent < len(header):
            self._transport.write(header[sent:])
        if sent < len(header) + len(body):
            # Without a copy: a segment is not used again while its bytes are still to be sent.
            self._transport.write(memoryview(body)[max(0, sent - len(header)) :])
            if self._transport.get_write_buffer_size():
                self.is_full = True
                self._transport.set_write_buffer_limits(0)  # `resume_writing` when all is sent.

    def pause_writing(self) -> None:
        """Called by the event loop; `is_full` says it already."""

    def resume_writing(self) -> None:
        """Called by the event loop: the socket has taken everything."""
        if self.is_full and not self.is_closed:
            assert self._transport is not None
            self.is_full = False
            self._transport.set_write_buffer_limits()
            self._owner.link_drained(self)

    def _send_at_once(self, header: bytes, body: bytes | memoryview) -> int:
        """Write as much as the socket takes, without a copy. Returns the number of bytes."""
        transport = self._transport
        assert transport is not None
        if self._socket is None or transport.is_closing() or transport.get_write_buffer_size():
            return 0
        try:
            return os.writev(self._socket.fileno(), (header, body))
        except OSError:
            return 0  # It is full; or it is broken, which the transport reports.

    def close(self) -> None:
        """End the connection at once; the owner is not called for it."""
        self.is_closed = True
        self._admit()
        if self._transport is not None:
            self._transport.abort()

    def release(self, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        """Give the connection to another protocol; this one is done with it."""
        assert self._transport is not None and not self.is_closed
        self.is_closed = True
        self._owner.links.discard(self)
        self._admit()
        hand_to(self._transport, protocol)
        return self._transport


def hand_to(
    transport: asyncio.Transport,
    protocol: asyncio.BaseProtocol,
    received: bytes | bytearray = b"",
) -> None:
    """Give a connection, with what was received before, to another protocol."""
    # uvloop chooses how it reads when reading begins.
    transport.pause_reading()
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    while received:
        if isinstance(protocol, asyncio.BufferedProtocol):
            space = memoryview(protocol.get_buffer(len(received)))
            length = min(len(space), len(received))
            space[:length] = received[:length]
            protocol.buffer_updated(length)
            received = received[length:]
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(bytes(received))
            break
    if not transport.is_closing():
        transport.resume_reading()


async def connect(address: str, trust: LinkTrust, make: Callable[[], ReplicaLink]) -> ReplicaLink:
    """Connect to a replica at ``HOST:PORT``.

    Raises:
        ConnectionRefusedError: nothing listens there.
        OSError: no connection came about for another reason.
    """
    try:
        host, port = Address.parse(address)
    except ValueError as error:
        raise OSError(str(error)) from error
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, link = await loop.create_connection(make, host, port, ssl=trust.client_tls)
            try:
                await link.ready
            except BaseException:
                link.close()
                raise
    except TimeoutError as error:
        raise OSError(
            f"no answer within {_CONNECT_S:g} s; if it runs, do both have the same"
            " --replica-secret-file and --replica-tls-cert, or none?",
        ) from error
    except ssl.SSLError as error:
        raise OSError(f"TLS with the replica at {address} failed: {error}") from error
    return link
