"""The lookup daemon: its listeners and its registry, on one event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from martlet.http_requests import own_hosts
from martlet.log.open_files import Acceptor
from martlet.lookup.api import LookupApi
from martlet.lookup.connection import LookupConnection
from martlet.lookup.failovers import Failovers
from martlet.lookup.registry import Registry
from martlet.options import LookupOptions
from martlet.protocol.nsq.v2 import NSQD_VERSION
from martlet.server.clock import BEAT_NS, Clock
from martlet.server.listening_socket import listen, port_of, shown
from martlet.text import SECOND_NS, go_json

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
        self._clock = Clock()
        self._beating: asyncio.TimerHandle | None = None
        self._failovers = Failovers(time.monotonic)
        self.registry = Registry(
            self._clock,
            options.inactive_producer_timeout_ns,
            options.tombstone_lifetime_ns,
            self._failovers,
        )
        self._connections: set[LookupConnection] = set()
        self._http: HttpServer | None = None

    async def start(self) -> None:
        """Listen and accept connections. Raises OSError where an address cannot be used."""
        from martlet.server.http.server import HttpServer

        with ExitStack() as undo:
            tcp = undo.enter_context(listen(self.options.tcp_address, "tcp-address"))
            http = undo.enter_context(listen(self.options.http_address, "http-address"))
            undo.pop_all()
        self.tcp_port, self.http_port = port_of(tcp), port_of(http)
        self.tcp_address, self.http_address = shown(tcp), shown(http)
        self._beat()
        self._tcp = Acceptor(self._connection, tcp, f"TCP {shown(tcp)}")
        log.info("TCP: listening on %s", self.tcp_address)
        self._http = HttpServer(
            LookupApi(self.registry, self._failovers).routes(),
            own_hosts=own_hosts(self.options.allowed_hosts, self.options.broadcast_address),
        )
        await self._http.start(http)
        log.info("HTTP: listening on %s", self.http_address)

    def _beat(self) -> None:
        """Note that the daemon runs: while it is stopped, no broker falls silent."""
        self._clock.beat()
        self._beating = asyncio.get_running_loop().call_later(BEAT_NS / SECOND_NS, self._beat)

    def _connection(self) -> LookupConnection:
        return LookupConnection(
            self.registry,
            self._clock,
            self._connections,
            self.options.max_connections,
            self._describe,
        )

    async def stop(self) -> None:
        """Close the listeners and all connections."""
        if self._beating is not None:
            self._beating.cancel()
        self._tcp.close()
        for connection in list(self._connections):
            connection.close()
        if self._http is not None:
            await self._http.stop()

    def _describe(self) -> bytes:
        """The answer to a broker's IDENTIFY."""
        return go_json(
            {
                "broadcast_address": self.options.broadcast_address,
                "hostname": socket.gethostname(),
                "http_port": self.http_port,
                "tcp_port": self.tcp_port,
                "version": NSQD_VERSION,
            }
        ).encode()
