"""Clients at a standby: their connections are carried on to the primary, byte for byte.

::

    client --- TCP --- standby --- connection between replicas --- primary
                 SplicedConnection        SPLICE, SPLICED       ClientConnection
                 Forwarder, of HTTP

While there is no primary the client is held: nothing is read, and nothing is answered. Where this
replica itself becomes primary, a held client is its own. When another epoch begins, the connections
of earlier ones end: the primary of one may hang, and clients notice that late.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING, cast

from martlet.addresses import shown_peer
from martlet.log.open_files import is_for_the_log
from martlet.replica.frames import CLIENT_IS_OPERATOR, Frame, FrameKind
from martlet.server.listening_socket import is_local
from martlet.server.replication.link import ReplicaLink, connect, hand_to

if TYPE_CHECKING:
    from martlet.server.replication.process import ReplicaProcess

HOLD_S = 10.0
"""How long a client is held while there is no primary, in seconds."""
_RETRY_S = 0.05
_ANSWER_S = 1.0
"""How long the primary may take to answer SPLICE, in seconds."""
MAX_SPLICING = 16
"""How many clients of a replica are on their way to the primary at the same time. Until they say
SPLICE, their connections are strangers to it; of more than `MAX_STRANGERS` it closes the oldest.
"""


class _Splice:
    """The owner of one connection to the primary, until it carries a client's bytes."""

    def __init__(self) -> None:
        self.links: set[ReplicaLink] = set()
        self.strangers: dict[ReplicaLink, None] = {}
        self.answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The epoch of the primary."""

    def link_received(self, link: ReplicaLink, frames: list[Frame]) -> None:
        """The primary answered."""
        if self.answered.done():
            return
        if frames[0].kind == FrameKind.SPLICED:
            self.answered.set_result(frames[0].epoch)
        else:
            self.answered.set_exception(ConnectionError("it is not the primary"))

    def link_drained(self, link: ReplicaLink) -> None:
        """Nothing waits to be sent."""

    def link_lost(self, link: ReplicaLink) -> None:
        """The primary closed the connection."""
        if not self.answered.done():
            self.answered.set_exception(ConnectionError("it is not the primary"))
            self.answered.exception()  # It need not be awaited: `connect` may have failed.

    def link_spliced(self, link: ReplicaLink, frame: Frame) -> None:
        """Never called: this end has connected."""
        raise AssertionError(frame)


class _Pipe(asyncio.Protocol):
    """One end of a splice: what it receives goes out at the other end."""

    _has_ended = False
    """Whether the peer at this end has said that it sends no more."""

    def __init__(self, other: asyncio.Transport) -> None:
        self._other = other
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._other.write(data)

    def pause_writing(self) -> None:
        """Called by the event loop: this end takes no more."""
        if not self._other.is_closing():
            self._other.pause_reading()

    def resume_writing(self) -> None:
        """Called by the event loop."""
        if not self._other.is_closing():
            self._other.resume_reading()

    def eof_received(self) -> bool | None:
        """Called by the event loop: this end sends no more. Returns whether it stays open."""
        self._has_ended = True
        return self._end_other()

    def _end_other(self) -> bool | None:
        if not self._other.can_write_eof():
            return None  # TLS has no half of a connection.
        self._other.write_eof()
        other = self._other.get_protocol()
        # Where both have ended nothing else would close them.
        return None if isinstance(other, _Pipe) and other._has_ended else True

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        self._other.close()


async def open_splice(
    finder: ReplicaProcess,
    log: logging.Logger,
    client: str,
    kind: int = 0,
    *,
    is_operator: bool = False,
) -> tuple[ReplicaLink, int]:
    """Connect to the primary, for the bytes of one client.

    Args:
        kind: 0 for NSQ's protocol, else `CLIENT_SPEAKS_HTTP` or `CLIENT_IS_OPERATOR`.
        is_operator: of NSQ's protocol, whether the client is an operator by its connection.

    Returns the connection, to be released, and the primary's epoch.

    Raises OSError: there is no primary, it did not answer, or the log needs the file descriptor.
    The primary has got no byte of the client.
    """
    address = finder.primary_address()
    if address is None:
        raise ConnectionError("this replica knows no primary: see `martlet replicas show`")
    owner = _Splice()
    async with finder.splicing:
        link = await connect(
            address, finder.trust, lambda: ReplicaLink(owner, finder.trust, log, is_acceptor=False)
        )
        try:
            if is_for_the_log(link.descriptor):
                raise OSError(errno.EMFILE, "too few files are left for the log; raise LimitNOFILE")
            vouched = CLIENT_IS_OPERATOR if is_operator else 0
            link.send(Frame(FrameKind.SPLICE, 0, kind, vouched, client.encode()))
            async with asyncio.timeout(_ANSWER_S):
                epoch = await owner.answered
            if epoch < finder.epoch:
                raise ConnectionError("it is not the primary any more")
        except BaseException:
            link.close()
            raise
    return link, epoch


class SplicedConnection(_Pipe):
    """The connection of a client of a standby."""

    def __init__(self, finder: ReplicaProcess, log: logging.Logger) -> None:
        self._finder = finder
        self._log = log
        self._transport = None
        self._is_spliced = False
        self._epoch = 0
        self._early = bytearray()
        """The bytes that arrived before reading was paused."""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hold the client until there is a primary."""
        super().connection_made(transport)
        assert self._transport is not None
        self._finder.spliced.add(self)
        self._transport.pause_reading()
        self._task = asyncio.get_running_loop().create_task(self._find(self._transport))

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if self._is_spliced:
            super().data_received(data)
            return
        # uvloop begins to read after `connection_made`, whether that has paused it or not.
        assert self._transport is not None
        self._early += data
        self._transport.pause_reading()

    async def _find(self, transport: asyncio.Transport) -> None:
        try:
            async with asyncio.timeout(HOLD_S):
                while not transport.is_closing():
                    own = self._finder.own_connection()
                    if own is not None:
                        self._finder.spliced.discard(self)
                        hand_to(transport, own, self._early)
                        return
                    if await self._splice(transport):
                        return
                    # The primary may end, or step down, at any moment.
                    await self._finder.until_primary(_RETRY_S)
        except TimeoutError:
            self._log.warning(
                "TCP: closing %s, as there is no primary since %g s",
                transport.get_extra_info("peername"),
                HOLD_S,
            )
        except Exception:  # Its client would wait for ever.
            self._log.exception("TCP: closing %s", transport.get_extra_info("peername"))
        transport.abort()

    async def _splice(self, transport: asyncio.Transport) -> bool:
        client = shown_peer(transport)
        # A certificate is seen by the primary, with which the client speaks TLS.
        is_operator = self._finder.operators.include(is_local=is_local(transport))
        try:
            link, self._epoch = await open_splice(
                self._finder, self._log, client, is_operator=is_operator
            )
        except OSError as error:
            if error.errno != errno.EMFILE:
                return False
            self._log.warning("TCP: closing %s: %s", client, error.strerror)
            transport.abort()
            return True
        if transport.is_closing():
            link.close()
            return True
        self._other = link.release(_Pipe(transport))
        self._is_spliced = True
        if self._early:
            self._other.write(bytes(self._early))
        transport.resume_reading()
        if self._has_ended:
            self._end_other()
        return True

    def eof_received(self) -> bool | None:
        """Called by the event loop: the client sends no more, and waits for answers."""
        self._has_ended = True
        return self._end_other() if self._is_spliced else True

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        self._finder.spliced.discard(self)
        if self._task is not None and not self._task.done():
            self._task.cancel()
        elif self._is_spliced:
            self._other.close()

    def abort(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()

    def epoch_began(self, epoch: int) -> None:
        """End the connection, if it is to the primary of an earlier epoch."""
        if self._is_spliced and self._epoch < epoch:
            self.abort()
            self._other.abort()
