"""An HTTP request to an endpoint: query and body by nsqd's rules.

A query is parsed as Go parses it: an invalid escape, or a semicolon, makes all of it invalid. A
body is read in pieces up to its limit, so a client cannot make the broker hold more.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol, cast
from urllib.parse import unquote_to_bytes

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError

from martlet import __version__
from martlet.addresses import shown_peer
from martlet.http_connection import BodyTimer, end_slow
from martlet.http_requests import PROXIED, host_of, is_address, is_of_browser, is_of_other_site
from martlet.names import is_valid_name
from martlet.protocol.nsq.v2 import quoted
from martlet.server.listening_socket import is_local

log = logging.getLogger(__name__)

_MAX_LEFT_BYTES = 256 << 10
"""The size up to which a refused body is still read, as by nsqd."""
_NUMBER = re.compile(r"[0-9]{1,19}")
SERVER = {"Server": f"martlet/{__version__}"}
"""The server's name on every answer."""
BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")


class HttpError(Exception):
    """The refusal of a request, such as ``{"message": "TOPIC_NOT_FOUND"}``.

    Args:
        plain: whether the answer is the bare message instead of JSON.
    """

    def __init__(
        self,
        status: int,
        message: str,
        fields: dict[str, object] | None = None,
        *,
        plain: bool = False,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message
        self.fields = fields or {}
        self.plain = plain
        self.headers = headers


class GoneWatcher(Protocol):
    """A connection that calls functions when its client is gone."""

    when_gone: set[Callable[[], object]]


class AnswerAgain(Exception):
    """The endpoints changed after the request was received: find the one that answers it now."""


class Request:
    """A request to one of the endpoints.

    Args:
        is_vouched_for: whether the replica that has forwarded it says that its client is an
            operator; None if none has.
        own_hosts: the names in DNS by which browsers may reach the server.
    """

    __slots__ = (
        *("_held", "_own_hosts", "_query", "raw", "is_operators", "is_vouched_for"),
        *("method", "path", "query_text", "target"),
    )

    def __init__(
        self,
        request: web.BaseRequest,
        is_vouched_for: bool | None = None,
        own_hosts: frozenset[str] = frozenset(),
    ) -> None:
        self.raw = request
        self._own_hosts = own_hosts
        self.is_vouched_for = is_vouched_for
        self.is_operators = False
        """Whether it was checked that the client is an operator."""
        self.target = request.raw_path
        if not self.target.startswith(("/", "*")):  # the absolute form, as to a proxy
            self.target = request.rel_url.raw_path_qs
        self.method = request.method
        path, _, self.query_text = self.target.partition("?")
        self.path = _decode(path)
        self._query: Mapping[str, str] | None = None
        self._held: bytes | None = None
        """The body, where it was read to be sent elsewhere."""

    @property
    def remote_address(self) -> str:
        """The client's ``address:port``."""
        return shown_peer(self.raw.transport)

    @property
    def is_local(self) -> bool:
        """Whether the client is on this machine: by loopback or a Unix socket, and no proxy."""
        return is_local(self.raw.transport) and not any(map(self.headers, PROXIED))

    @property
    def tls_version(self) -> str:
        """The version of TLS of the client's connection, such as ``TLSv1.3``; empty without."""
        transport = self.raw.transport
        session = None if transport is None else transport.get_extra_info("ssl_object")
        return (session.version() or "") if session is not None else ""

    @property
    def has_certificate(self) -> bool:
        """Whether the client has shown a certificate, which Python's ssl has verified."""
        transport = self.raw.transport
        return transport is not None and bool(transport.get_extra_info("peercert"))

    @property
    def host(self) -> str:
        """The server that the client names, as ``host:port``."""
        return self.raw.host

    @property
    def client_host(self) -> str:
        """The client's host, also of a forwarded request; empty for one at a Unix socket."""
        if self.is_vouched_for is not None:
            # That replica has added the client's to those of other proxies.
            return ",".join(self.headers("X-Forwarded-For")).rpartition(",")[2].strip()
        return self.remote_address.rpartition(":")[0].strip("[]")

    @property
    def common_name(self) -> str | None:
        """The name in the client's certificate; empty without one, None without TLS."""
        transport = self.raw.transport
        if transport is None or transport.get_extra_info("sslcontext") is None:
            return None
        certificate = transport.get_extra_info("peercert") or {}
        names = [pair for attributes in certificate.get("subject", ()) for pair in attributes]
        return next((str(value) for name, value in names if name == "commonName"), "")

    @property
    def is_of_browser(self) -> bool:
        """Whether a browser says that a page sends it."""
        return is_of_browser(self.raw.headers)

    @property
    def is_of_other_site(self) -> bool:
        """Whether a browser says that it is sent for a page of another site."""
        return is_of_other_site(self.raw.headers, self.raw.host)

    @property
    def is_of_foreign_page(self) -> bool:
        """Whether a browser sends it for a page of another site: see `martlet.http_requests`."""
        request = self.raw
        if self.is_of_other_site:
            return True
        transport = request.transport
        sock = None if transport is None else transport.get_extra_info("socket")
        if transport is None or sock is None or sock.family == socket.AF_UNIX:
            return False
        host = host_of(request.host)
        # A name without a dot is this network's. In TLS a browser has checked the name.
        is_own = is_address(host) or "." not in host or host in self._own_hosts
        return not is_own and transport.get_extra_info("sslcontext") is None

    @property
    def is_gone(self) -> bool:
        """Return whether the client is disconnected."""
        transport = self.raw.transport
        return transport is None or transport.is_closing()

    @property
    def query(self) -> Mapping[str, str]:
        """Return the first value of each argument. Raises HttpError: 400 INVALID_REQUEST: the query
        is malformed.
        """
        if self._query is None:
            self._query = parse_query(self.query_text)
        return self._query

    def argument(self, name: str) -> str:
        """Return an argument of the query. Raises HttpError: 400, such as MISSING_ARG_TOPIC: it is
        missing.
        """
        try:
            return self.query[name]
        except KeyError:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}") from None

    def number(self, name: str, default: int | None = None) -> int:
        """Return an argument of the query that is a whole number from 0 on. Raises HttpError: 400:
        it is not a number, or it is missing and has no default.
        """
        if default is not None and name not in self.query:
            return default
        text = self.argument(name)
        if not _NUMBER.fullmatch(text):
            raise HttpError(
                400, f"INVALID_ARG_{name.upper()}: {text!r} is not a whole number from 0"
            )
        return int(text)

    @property
    def header_names(self) -> Iterable[str]:
        """The names of the headers, as the client wrote them."""
        return self.raw.headers.keys()

    def headers(self, name: str) -> list[str]:
        """Return the values of a header in order, with bytes that aiohttp escaped read as UTF-8."""
        values = self.raw.headers.getall(name, ())
        try:
            return [value.encode("utf-8", "surrogateescape").decode() for value in values]
        except UnicodeDecodeError:
            raise HttpError(400, f"INVALID_HEADER: {name} is not UTF-8") from None

    def topic_and_channel(self) -> tuple[str, str]:
        """Return the two names of the query. Raises HttpError: 400: one is missing or invalid."""
        for what in ("topic", "channel"):
            if not is_valid_name(self.argument(what)):
                raise HttpError(400, f"INVALID_ARG_{what.upper()}")
        return self.query["topic"], self.query["channel"]

    @property
    def content_length(self) -> int:
        """Return the announced size of the body; 0 if it is not announced."""
        return self.raw.content_length or 0

    @property
    def has_much_left(self) -> bool:
        """Return whether the rest of the body is too long to read it for the connection's sake."""
        request = self.raw
        if request.content.at_eof():
            return False
        expects = "Expect" in request.headers
        return expects or not 0 < self.content_length <= _MAX_LEFT_BYTES

    async def read(self, limit_bytes: int, too_large: str) -> bytes:
        """Read the entire body.

        Raises:
            HttpError: 413 with the text `too_large`: it exceeds the limit; 408: it comes too
            slowly, and the connection is closed; 500 INTERNAL_ERROR: it broke off.
        """
        request = self.raw
        if self.content_length > limit_bytes:
            raise HttpError(413, too_large)
        if self._held is not None:
            return self._held
        if not request.body_exists:
            return b""
        expects = request.headers.get("Expect", "")
        if expects.lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            if request.content.is_eof():  # it came with its head
                body = await request.content.readany()
                if len(body) > limit_bytes:
                    raise HttpError(413, too_large)
                return body
            pieces = bytearray()
            async with BodyTimer() as timer:
                while len(pieces) <= limit_bytes:
                    piece = await request.content.readany()
                    if not piece:
                        return bytes(pieces)
                    pieces += piece
                    timer.received(len(pieces))
        except TimeoutError:
            end_slow(request)
            raise HttpError(408, "REQUEST_TIMEOUT") from None
        except (ClientError, HttpProcessingError, OSError):
            raise HttpError(500, "INTERNAL_ERROR") from None
        raise HttpError(413, too_large)

    async def hold(self, limit_bytes: int) -> bytes:
        """Read the body, which `read` returns again later. Raises HttpError."""
        self._held = await self.read(limit_bytes, "BODY_TOO_BIG")
        return self._held

    @contextmanager
    def when_gone(self, call: Callable[[], object]) -> Iterator[None]:
        """Call a function if the client disconnects, while the context lasts."""
        protocol = cast(GoneWatcher, self.raw.protocol)
        protocol.when_gone.add(call)
        try:
            yield
        finally:
            protocol.when_gone.discard(call)

    async def send(self, response: web.Response) -> None:
        """Send an answer now, so that a failure is known. Raises ConnectionError, ClientError."""
        response.headers.update(SERVER)
        await response.prepare(self.raw)
        await response.write_eof()

    async def stream(
        self, pieces: Iterable[memoryview], content_type: str, max_bytes: int
    ) -> web.StreamResponse:
        """Answer with several pieces of bytes without joining them, in writes of a limited size."""
        pieces = list(pieces)
        response = web.StreamResponse(headers=SERVER)
        response.content_type = content_type
        response.content_length = sum(map(len, pieces))
        await response.prepare(self.raw)
        for piece in pieces:
            for start in range(0, len(piece), max_bytes):
                await response.write(piece[start : start + max_bytes])
        await response.write_eof()
        return response


Endpoint = Callable[[Request], Awaitable[object]]


class PublishEndpoint:
    """The endpoint of ``POST /pub``.

    Args:
        publish: answers any request.
        lone: stores a message in an existing topic at once, and returns whether it did.
    """

    def __init__(self, publish: Endpoint, lone: Callable[[str, bytes], bool]) -> None:
        self._publish = publish
        self.lone = lone

    def __call__(self, request: Request) -> Awaitable[object]:
        """Answer any request."""
        return self._publish(request)


Routes = Mapping[str, Mapping[str, Endpoint]]
"""The endpoint of each method of each path. A path may end in ``/:name``, for any one name."""


@lru_cache(maxsize=256)  # clients repeat the same few queries
def parse_query(text: str) -> Mapping[str, str]:
    """Parse a query into its arguments; of several with one name the first counts. Raises
    HttpError: 400 INVALID_REQUEST: malformed by Go's rules.
    """
    fault = _fault(text)
    if fault:
        log.error("failed to parse request params - %s", fault)
        raise HttpError(400, "INVALID_REQUEST")
    arguments: dict[str, str] = {}
    for piece in text.split("&"):
        if piece:
            key, _, value = piece.partition("=")
            arguments.setdefault(_decode(key.replace("+", " ")), _decode(value.replace("+", " ")))
    return MappingProxyType(arguments)


def _fault(query: str) -> str:
    """Return the first fault that Go finds; empty for none."""
    if ";" in query or BAD_ESCAPE.search(query):
        for piece in query.split("&"):
            if ";" in piece:
                return "invalid semicolon separator in query"
            for text in piece.partition("="):
                bad = BAD_ESCAPE.search(text)
                if bad:
                    escape = text[bad.start() : bad.start() + 3]
                    return f"invalid URL escape {quoted(escape.encode(errors='surrogateescape'))}"
    return ""


def _decode(text: str) -> str:
    return unquote_to_bytes(text).decode(errors="replace") if "%" in text else text
