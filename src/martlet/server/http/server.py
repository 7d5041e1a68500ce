"""The HTTP server: aiohttp with a router like nsqd's.

aiohttp implements the protocol. The router behaves as nsqd's: JSON for 404 and 405, the methods
allowed, a redirect from ``/ping/`` and ``/PING`` to ``/ping``. An endpoint is a coroutine function
that returns the answer: None, text, an object for JSON, or a response.
"""

from __future__ import annotations

import asyncio
import html
import logging
import os
import posixpath
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from aiohttp import web

from martlet.http_connection import GONE_STATUS, HttpConnection
from martlet.http_requests import ADMIN_AGENT, SAFE_METHODS
from martlet.log.open_files import Acceptor
from martlet.server.http import lone_publish
from martlet.server.http.access import V1, refuse_foreign_change, route_of
from martlet.server.http.request import (
    BAD_ESCAPE,
    SERVER,
    AnswerAgain,
    Endpoint,
    HttpError,
    PublishEndpoint,
    Request,
    Routes,
)
from martlet.server.http.response import ReadyText, refuse, respond
from martlet.server.listening_socket import shown
from martlet.server.observability.stats import pauses
from martlet.text import format_duration

if TYPE_CHECKING:
    import ssl

    from martlet.server.http.access import Operators

log = logging.getLogger(__name__)

_MAX_ROLES = 5
"""How often the role of a replica may change while a request is answered."""
_FOR_BROWSERS = (
    "This is a Martlet broker. For people: /stats, /ping and /info; the page in a browser is that"
    " of 'martlet admin' (or of 'martlet up')."
)
_STOP_S = 0.3
"""The time in seconds that open requests get when the broker stops."""
_LINGER_S = 1.0
"""The time for which a refused body is still read, so that its sender sees the answer."""
_UNLOGGED = frozenset({"/pub", "/mpub"})
"""Paths requested too often for a log line each."""
_PLAIN = frozenset({"/ping"})
"""Paths whose answers do not have NSQ's content type."""
_MAX_LINE_BYTES = 1 << 16
_MAX_HEADERS = 1 << 10
_OK = ReadyText("OK")


class _Protocol(HttpConnection):
    """A connection with a fast path for publishes."""

    headers = SERVER

    is_vouched_for: bool | None = None
    """See `Request`."""
    publish_lone: Callable[[str, bytes], bool] | None = None
    """The fast path of ``/pub``; None once aiohttp has got any bytes."""
    on_input: Callable[[], object]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve a client."""
        self.when_gone: set[Callable[[], object]] = set()
        """Called when the client disconnects."""
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Tell requests under way that their client has disconnected."""
        super().connection_lost(exc)
        for call in list(self.when_gone):
            call()

    def data_received(self, data: bytes) -> None:
        """Answer a request of the fast path; hand all others to aiohttp."""
        if self.publish_lone is not None and not (self._force_close or self._close):
            request = lone_publish.parse(data)
            if request is not None and self._answer_lone(request, self.publish_lone):
                self.has_head()
                return
            self.publish_lone = None
        self.on_input()
        super().data_received(data)

    def _answer_lone(
        self, request: lone_publish.LoneRequest, publish: Callable[[str, bytes], bool]
    ) -> bool:
        transport = self.transport
        # A client that does not read its answers is held up by aiohttp.
        if transport is None or transport.get_write_buffer_size() or not publish(*request):
            return False
        transport.write(_OK.data())
        # Or aiohttp would close the connection as one that is idle.
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        return True


class _WebServer(web.Server):
    def __call__(self) -> web.RequestHandler:
        """Make the protocol of a new connection."""
        return _Protocol(self, loop=self._loop, **self._kwargs)


class HttpServer:
    """Serves HTTP on a listening socket.

    Args:
        operators: check that a client may use an endpoint; None if everyone may use all, but for
            changes by pages of other sites in a browser.
        https_port_instead: serve nothing, but point to HTTPS on this port; 0 if there is none.
        on_input: called with each input that takes several rounds of the loop.
    """

    def __init__(
        self,
        routes: Routes,
        operators: Operators | None = None,
        https_port_instead: int | None = None,
        on_input: Callable[[], object] = lambda: None,
        own_hosts: frozenset[str] = frozenset(),
    ) -> None:
        self._own_hosts = own_hosts
        self._routes = routes
        self._on_input = on_input
        self._operators = operators
        self._https_port_instead = https_port_instead
        self._listener: Acceptor | None = None
        self._busy: set[web.RequestHandler] = set()
        """The connections with a request under way."""
        self._web = _WebServer(
            self._handle,
            access_log=None,
            lingering_time=_LINGER_S,
            max_line_size=_MAX_LINE_BYTES,
            max_field_size=_MAX_LINE_BYTES,
            max_headers=_MAX_HEADERS,
            auto_decompress=False,  # a message is stored as it arrives
        )

    async def start(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a listening socket, in TLS if given a context."""
        pauses.watch()
        name = "HTTP" if tls is None else "HTTPS"
        self._listener = Acceptor(self.connection, sock, f"{name} {shown(sock)}", tls)

    def connection(self, is_vouched_for: bool | None = None) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        protocol = self._web()
        cast(_Protocol, protocol).on_input = self._on_input
        if self._https_port_instead is None:
            cast(_Protocol, protocol).publish_lone = self._publish_lone
        if is_vouched_for is not None:
            cast(_Protocol, protocol).is_vouched_for = is_vouched_for
        return protocol

    def _publish_lone(self, topic: str, body: bytes) -> bool:
        endpoint = self._routes.get("/pub", {}).get("POST")
        return isinstance(endpoint, PublishEndpoint) and endpoint.lone(topic, body)

    async def answer_by(self, routes: Routes, *, ends_requests: bool) -> None:
        """Answer by other endpoints.

        Args:
            ends_requests: whether to close the connections with a request under way, after a
                moment. The others go on: what is asked there is for the new endpoints.
        """
        self._routes = routes
        if ends_requests:
            await asyncio.gather(*(connection.shutdown(_STOP_S) for connection in self._busy))

    async def stop(self) -> None:
        """Stop accepting, and close open connections after a moment."""
        if self._listener is not None:
            self._listener.close()
        await self._web.shutdown(_STOP_S)

    async def _handle(self, base: web.BaseRequest) -> web.StreamResponse:
        self._busy.add(base.protocol)
        try:
            return await self._respond(base)
        finally:
            self._busy.discard(base.protocol)

    async def _respond(self, base: web.BaseRequest) -> web.StreamResponse:
        if self._https_port_instead is not None:
            fields: dict[str, object] = {"https_port": self._https_port_instead}
            refusal = refuse(HttpError(403, "TLS_REQUIRED", fields))
            refusal.force_close()
            return refusal
        request = Request(base, cast(_Protocol, base.protocol).is_vouched_for, self._own_hosts)
        started = time.perf_counter_ns()
        try:
            answer = await self._answer_by_role(request)
            if answer == "OK" and request.path in _UNLOGGED and ReadyText.suits(base):
                return _OK
            response = answer if isinstance(answer, web.StreamResponse) else respond(200, answer)
        except HttpError as error:
            response = refuse(error)
            if error.status == 413 and request.has_much_left:
                response.force_close()
        except Exception as error:
            if isinstance(error, ConnectionError) and request.is_gone:
                response = web.Response(status=GONE_STATUS)
            else:
                log.exception("panic in HTTP handler - %s %s", request.method, request.path)
                response = refuse(HttpError(500, "INTERNAL_ERROR"))
        if not response.prepared:
            response.headers.update(SERVER)
        if request.path in _PLAIN and response.status == 200:
            response.headers.popall("X-NSQ-Content-Type", None)
        is_logged = request.path not in _UNLOGGED and not request.path.startswith(V1)
        # The admin page polls every few seconds. Other reads are logged as nsqd does.
        is_poll = (
            request.method in SAFE_METHODS
            and (response.status < 400 or response.status == 404)
            and request.headers("User-Agent") == [ADMIN_AGENT]
        )
        level = logging.DEBUG if is_poll else logging.INFO
        if is_logged and log.isEnabledFor(level):
            elapsed = format_duration(time.perf_counter_ns() - started)
            log.log(
                level,
                "%d %s %s (%s) %s",
                response.status,
                request.method,
                request.target,
                request.remote_address,
                elapsed,
            )
        return response

    async def _answer_by_role(self, request: Request) -> object:
        for _ in range(_MAX_ROLES):
            try:
                return await self._answer(request)
            except AnswerAgain:
                continue
        raise HttpError(503, "NO_PRIMARY")

    async def _answer(self, request: Request) -> object:
        methods = self._find(request.path)
        if methods is None:
            if request.method == "OPTIONS" and request.path == "*":
                return web.Response()
            return self._redirect(request)
        endpoint = methods.get(request.method)
        if endpoint is not None:
            if self._operators is None:
                refuse_foreign_change(request)
            else:
                request.is_operators = self._operators.check(request)
            return await endpoint(request)
        allow = {"Allow": ", ".join(sorted({*methods, "OPTIONS"}))}
        if request.method == "OPTIONS":
            return web.Response(headers=allow)
        message = "METHOD_NOT_ALLOWED"
        if _is_of_v1(request.path):
            message += (
                f": {request.path} takes {' or '.join(sorted(methods))}, not {request.method}"
            )
        response = refuse(HttpError(405, message))
        response.headers.update(allow)
        return response

    def _find(self, path: str) -> Mapping[str, Endpoint] | None:
        methods = self._routes.get(route_of(path))
        if methods is None:
            folder, _, name = path.rpartition("/")
            if name:
                methods = self._routes.get(f"{folder}/:name")
        return methods

    def _meant(self, path: str) -> str:
        """Return the path without redundant slashes and dots, in the case of the routes."""
        clean = posixpath.normpath(path).replace("//", "/")
        for route in (clean.lower(), f"{clean.lower()}/"):
            if route in self._routes:
                return route
        folder, _, name = clean.rpartition("/")
        return f"{folder.lower()}/{name}"

    def _redirect(self, request: Request) -> web.Response:
        """Redirect to a route whose path differs by case or slashes alone."""
        if BAD_ESCAPE.search(request.target.partition("?")[0]):
            raise HttpError(400, "400 Bad Request", plain=True)
        path = self._meant(request.path)
        methods = self._find(path)
        if path == "/debug/pprof" or path.startswith("/debug/pprof/"):
            if self._operators is not None:
                self._operators.require(request)
            hint = f"py-spy record --pid {os.getpid()} --output profile.svg"
            raise HttpError(404, f"NOT_FOUND: there are no Go profiles here; try {hint!r}")
        if not methods or request.method not in methods or path == request.path or ":" in path:
            if _is_of_v1(request.path):
                raise HttpError(
                    404, "NOT_FOUND: there is no such route; /v1/openapi.json describes all of /v1"
                )
            if request.path == "/" and "text/html" in ",".join(request.headers("Accept")):
                raise HttpError(404, _FOR_BROWSERS, plain=True)
            raise HttpError(404, "NOT_FOUND")
        _, mark, query = request.target.partition("?")
        target = quote(path) + mark + query
        if request.method != "GET":
            return web.Response(status=307, headers={"Location": target})
        return web.Response(
            status=301,
            headers={"Location": target, "Content-Type": "text/html; charset=utf-8"},
            body=f'<a href="{html.escape(target)}">Moved Permanently</a>.\n\n'.encode(),
        )


def _is_of_v1(path: str) -> bool:
    return path == "/v1" or path.startswith("/v1/")
