"""The lookup daemon behind its doors, on one event loop."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from martlet.lookup.api import LookupApi
from martlet.lookup.connection import LookupConnection
from martlet.lookup.registry import Registry
from martlet.options import LookupOptions
from martlet.protocol.nsq.v2 import NSQD_VERSION
from martlet.server.listening_socket import listen, port_of, serve, shown

if TYPE_CHECKING:
    from martlet.server.http.server import HttpServer

log = logging.getLogger(__name__)


class Lookup:
    """A lookup daemon.

    Args:
        options: as the flags give them.
    """

    def __init__(self, options: LookupOptions) -> None:
        self.options = options
        self.clock = time.time_ns
        self.registry = Registry(
            self.clock, options.inactive_producer_timeout_ns, options.tombstone_lifetime_ns
        )
        self._connections: set[LookupConnection] = set()
        self._http: HttpServer | None = None

    async def start(self) -> None:
        """Open the doors. Raises OSError where one cannot be opened."""
        from martlet.server.http.server import HttpServer

        with ExitStack() as undo:
            tcp = undo.enter_context(listen(self.options.tcp_address, "tcp-address"))
            http = undo.enter_context(listen(self.options.http_address, "http-address"))
            undo.pop_all()
        self.tcp_port, self.http_port = port_of(tcp), port_of(http)
        self.tcp_address, self.http_address = shown(tcp), shown(http)
        self._tcp = await serve(asyncio.get_running_loop(), lambda: LookupConnection(self), tcp)
        log.info("TCP: listening on %s", self.tcp_address)
        self._http = HttpServer(LookupApi(self.registry).routes())
        await self._http.start(http)
        log.info("HTTP: listening on %s", self.http_address)

    async def stop(self) -> None:
        """Close the doors."""
        self._tcp.close()
        for connection in list(self._connections):
            connection.close()
        if self._http is not None:
            await self._http.stop()

    def describe(self) -> bytes:
        """What a broker is told of the daemon."""
        return json.dumps(
            {
                "broadcast_address": self.options.broadcast_address,
                "hostname": socket.gethostname(),
                "http_port": self.http_port,
                "tcp_port": self.tcp_port,
                "version": NSQD_VERSION,
            },
            separators=(",", ":"),
        ).encode()

    def opened(self, connection: LookupConnection) -> bool:
        """A broker has connected. False where it is one too many."""
        max_count = self.options.max_connections
        self._connections.add(connection)
        return not max_count or len(self._connections) <= max_count

    def closed(self, connection: LookupConnection) -> None:
        """A broker has gone."""
        self._connections.discard(connection)
