"""The listeners of a broker.

========  ===================  =====================================================
listener  flag                 what is served
========  ===================  =====================================================
TCP       ``--tcp-address``    NSQ's protocol, TLS being negotiated there
HTTP      ``--http-address``   the endpoints; nothing where it is empty
HTTPS     ``--https-address``  the same in TLS; nothing without a certificate
========  ===================  =====================================================

Who answers may change while the listeners stay open: of a replica, the standby and the primary.

Each address is ``host:port`` or the path of a Unix socket. Where clients must use TLS, without the
exception for HTTP, HTTP only names the port of HTTPS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from martlet.http_requests import own_hosts
from martlet.log.open_files import Acceptor
from martlet.options import BrokerOptions, TlsRequired
from martlet.server.http.access import Operators
from martlet.server.listening_socket import listen, port_of, remove, shown
from martlet.server.observability.histogram import LoopLag

if TYPE_CHECKING:
    import socket
    import ssl

    from martlet.server.http.request import Routes
    from martlet.server.http.server import HttpServer


class Listeners:
    """The listening sockets of a broker. They listen once made, and accept connections from
    ``answer_by`` on.

    Attributes:
        tcp_address, http_address: the actual addresses, with the port chosen for port 0.
        tcp_port, http_port, https_port: 0 if nothing listens, -1 for a Unix socket.
        operators: who may use Martlet's own routes of HTTP.
        on_http_input: called with input over HTTP that takes several rounds of the loop.
        lag: that of the event loop, while these listen.

    Raises:
        OSError: the broker cannot listen on an address, or a file of the options cannot be used;
            the text names it and its flag.
    """

    def __init__(
        self, options: BrokerOptions, tls: ssl.SSLContext | None, log: logging.Logger
    ) -> None:
        self._tls = tls
        self._log = log
        self._connection: Callable[[], asyncio.BaseProtocol]
        self._listeners: list[Acceptor] = []
        self._http_servers: list[HttpServer] = []
        self.on_http_input: Callable[[], object] = lambda: None
        self._http_in_tls_only = options.tls_demanded is TlsRequired.YES
        self.operators = Operators.load(options, log)
        self._own_hosts = own_hosts(options.allowed_hosts, options.broadcast_address)
        self.lag = LoopLag()
        http = options.http_address
        https = options.https_address if tls is not None else ""
        with ExitStack() as undo:
            self._tcp = undo.enter_context(listen(options.tcp_address, "tcp-address"))
            self._http = undo.enter_context(listen(http, "http-address")) if http else None
            self._https = undo.enter_context(listen(https, "https-address")) if https else None
            undo.pop_all()
        named = {"TCP": self._tcp, "HTTP": self._http, "HTTPS": self._https}
        self._sockets = {name: sock for name, sock in named.items() if sock is not None}
        self._addresses = {name: shown(sock) for name, sock in self._sockets.items()}
        self._files = [shown(sock) for sock in self._sockets.values() if port_of(sock) < 0]
        self.tcp_address = self._addresses["TCP"]
        self.http_address = self._addresses.get("HTTP", "")
        self.tcp_port = port_of(self._tcp)
        self.http_port = port_of(self._http) if self._http else 0
        self.https_port = port_of(self._https) if self._https else 0

    async def answer_by(
        self,
        connection: Callable[[], asyncio.BaseProtocol],
        routes: Callable[[], Routes],
        *,
        ends_requests: bool = False,
    ) -> None:
        """Accept connections, and answer them from now on.

        Args:
            connection: makes the protocol of a TCP connection.
            routes: returns the endpoints of HTTP; called only if there is HTTP.
            ends_requests: whether to close the connections over HTTP with a request under way.
        """
        self._connection = connection
        if self._listeners:
            if self._http_servers:
                endpoints = routes()
                answers = (
                    server.answer_by(endpoints, ends_requests=ends_requests)
                    for server in self._http_servers
                )
                await asyncio.gather(*answers)
            return
        self.lag.start()
        self._listeners.append(Acceptor(self._accept, self._tcp, f"TCP {self.tcp_address}"))
        self._log.info("TCP: listening on %s", self.tcp_address)
        if self._http is None and self._https is None:
            return
        endpoints = routes()
        if self._http is not None:
            instead = self.https_port if self._http_in_tls_only else None
            await self._open_http("HTTP", self._http, endpoints, None, instead)
        if self._https is not None:
            await self._open_http("HTTPS", self._https, endpoints, self._tls, None)

    def _accept(self) -> asyncio.BaseProtocol:
        return self._connection()

    def _has_input(self) -> None:
        """Call what `on_http_input` is by now: it changes with the role of a replica."""
        self.on_http_input()

    async def _open_http(
        self,
        name: str,
        sock: socket.socket,
        routes: Routes,
        tls: ssl.SSLContext | None,
        https_port_instead: int | None,
    ) -> None:
        # Imported here: aiohttp takes longer to import than a broker takes to listen.
        from martlet.server.http.server import HttpServer

        server = HttpServer(
            routes, self.operators, https_port_instead, self._has_input, self._own_hosts
        )
        await server.start(sock, tls)
        self._http_servers.append(server)
        self._log.info("%s: listening on %s", name, shown(sock))

    def close(self) -> None:
        """Stop accepting connections over TCP, and remove the files of Unix sockets."""
        self.lag.stop()
        for path in self._files:
            remove(path)
        for listener in self._listeners:
            listener.close()
        if not self._listeners:  # they were never opened
            for sock in self._sockets.values():
                sock.close()
        else:
            for name, address in self._addresses.items():
                self._log.info("%s: closing %s", name, address)

    async def close_http(self) -> None:
        """Close HTTP, giving requests under way a moment."""
        await asyncio.gather(*(server.stop() for server in self._http_servers))
