"""The compiled path: serves clients that send one PUB or FIN at a time, without the event loop.

While the loop is awake (see `martlet.server.tick`), this path asks the loop's own epoll descriptor
which sockets are readable, and reads those of its connections itself::

    readable, a connection of this path  ->   a lone FIN: handled in C
                                         ->   a lone PUB: stored and answered in C, in one record
                                              with those to its topic that came at the same time;
                                              with ``--flush=sync`` they are flushed in between
                                         ->   other input: handled as the loop would hand it over
    anything else                        ->   left to the loop

Readiness is level-triggered, so the loop sees whatever this path leaves alone. Connections with
TLS, compression or AUTH, and those that are held up or closing, are left to the loop. So are all
while flushes take long, or run in their thread.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from crc32c import crc32c

from martlet.broker.channel.channel import Channel
from martlet.broker.channel.delivery import Delivery
from martlet.broker.queue.consumer import ChannelConsumer
from martlet.log.storage import DiskSegment
from martlet.native import ELSEWHERE, native
from martlet.server.nsq.subscription import ClientSubscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from martlet.broker.broker import BrokerCore
    from martlet.native import Native
    from martlet.server.flusher import Flusher
    from martlet.server.nsq.connection import ClientConnection


class CompiledPath:
    """The connections that are served without the event loop.

    Args:
        flusher: flushes what PUBs have stored, before they are answered; None with a flush mode
            that answers once they are written.
    """

    def __init__(
        self,
        functions: Native,
        epoll: int,
        broker: BrokerCore,
        received: bytearray,
        flusher: Flusher | None,
    ) -> None:
        self._log = broker.log
        self._flusher = flusher
        self._serve = functions.serve
        self._epoll = epoll
        self._received = received
        self._connections: dict[int, ClientConnection] = {}
        # In the order that `_native.c` knows.
        self._shared = (
            broker,
            self._connections,
            self._flush if flusher is not None else None,
            _feed,
            _fail,
            self._await_flush,
            crc32c,
            DiskSegment,
            Delivery,
            Channel,
            ChannelConsumer,
            ClientSubscription,
        )

    def add(self, connection: ClientConnection) -> None:
        """Serve a connection from now on, if it has a socket."""
        sock = connection.output.transport.get_extra_info("socket")
        if sock is not None:
            fd = connection.output.fd = sock.fileno()
            assert fd not in self._connections
            self._connections[fd] = connection

    def remove(self, connection: ClientConnection) -> None:
        """Leave a connection to the loop from now on, before its socket is closed."""
        output = connection.output
        if output.fd >= 0:
            del self._connections[output.fd]
            output.fd = -1

    def serve(self, window_ns: int, budget_ns: int) -> int:
        """Serve connections for at most `budget_ns`, until none has sent anything for `window_ns`,
        or something else is to be done. Those that have sent something by now are served anyway.

        Returns the sum of FED, ELSEWHERE and SERVED of `martlet.native`; 0 if nothing came.
        """
        if self._flusher is not None and not self._flusher.is_quick:
            return ELSEWHERE
        return self._serve(self._shared, self._received, self._epoll, window_ns, budget_ns)

    def _flush(self) -> bool:
        """Flush what PUBs have stored. False if that failed, or has to run in the thread."""
        assert self._flusher is not None
        return self._flusher.is_quick and self._flusher.flush_in_loop()

    def _await_flush(self, connection: ClientConnection, _: int) -> None:
        """Answer a stored PUB after the flush at the turn's end."""
        connection.replies.promise_flushed(self._log.position)


def open_compiled_path(
    broker: BrokerCore,
    received: bytearray,
    flusher: Flusher | None,
) -> CompiledPath | None:
    """Return the path; None where nothing is compiled, or the loop is not uvloop's."""
    backend: Callable[[], int] | None = getattr(asyncio.get_running_loop(), "_get_backend_id", None)
    if native is None or backend is None:
        return None
    return CompiledPath(native, backend(), broker, received, flusher)


def _feed(connection: ClientConnection, nbytes: int) -> None:
    """Handle bytes that stand in the connection's buffer, as the loop would hand them over."""
    connection.buffer_updated(nbytes)


def _fail(connection: ClientConnection, error: int | BaseException) -> None:
    """Close a connection whose socket has failed, with an errno, or whose input raised an error."""
    if isinstance(error, int):
        connection.lose(OSError(error, os.strerror(error)))
        return
    if not isinstance(error, Exception):
        raise error
    connection.break_off(error)
