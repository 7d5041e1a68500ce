"""The HTTP request as the endpoints see it: query and body by the rules of nsqd.

A query is cut as Go cuts it: an escape that is none, or a semicolon, makes all of it invalid.  A
body is read in pieces and no further than its limit, so a client cannot make the broker hold more.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import unquote_to_bytes

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError

from martlet import __version__
from martlet.names import is_valid_name
from martlet.protocol.nsq.v2 import quoted
from martlet.server.listening_socket import shown_peer

log = logging.getLogger(__name__)

_MAX_LEFT_BYTES = 256 << 10
"""nsqd too reads so much of a body that it has refused."""
_NUMBER = re.compile(r"[0-9]{1,19}")
SERVER = {"Server": f"martlet/{__version__}"}
"""The one name of the server, on every answer."""
BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")


class HttpError(Exception):
    """The refusal of a request: ``{"message": "TOPIC_NOT_FOUND"}`` and the like.

    Args:
        status: of the answer.
        message: in the answer.
        fields: what else its JSON says.
        plain: whether it is the bare message and no JSON.
    """

    def __init__(
        self,
        status: int,
        message: str,
        fields: dict[str, object] | None = None,
        *,
        plain: bool = False,
    ) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message
        self.fields = fields or {}
        self.plain = plain


class Request:
    """A request to one of the endpoints."""

    __slots__ = ("_query", "_request", "method", "path", "query_text", "target")

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self.target = request.raw_path
        if not self.target.startswith(("/", "*")):  # the absolute form, as to a proxy
            self.target = request.rel_url.raw_path_qs
        self.method = request.method
        path, _, self.query_text = self.target.partition("?")
        self.path = _decode(path)
        self._query: Mapping[str, str] | None = None

    @property
    def remote_address(self) -> str:
        """The client's ``address:port``."""
        return shown_peer(self._request.transport)

    @property
    def is_gone(self) -> bool:
        """Whether the client is disconnected."""
        transport = self._request.transport
        return transport is None or transport.is_closing()

    @property
    def query(self) -> Mapping[str, str]:
        """The first value of each argument.

        Raises:
            HttpError: 400 INVALID_REQUEST, the query is not well formed.
        """
        if self._query is None:
            self._query = parse_query(self.query_text)
        return self._query

    def argument(self, name: str) -> str:
        """An argument of the query.

        Raises:
            HttpError: 400 MISSING_ARG_TOPIC and the like, it is missing.
        """
        try:
            return self.query[name]
        except KeyError:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}") from None

    def number(self, name: str, default: int | None = None) -> int:
        """An argument of the query that is a whole number from 0.

        Raises:
            HttpError: 400, it is none, or it is missing and has no default.
        """
        if default is not None and name not in self.query:
            return default
        text = self.argument(name)
        if not _NUMBER.fullmatch(text):
            raise HttpError(
                400, f"INVALID_ARG_{name.upper()}: {text!r} is not a whole number from 0"
            )
        return int(text)

    def headers(self, name: str) -> list[str]:
        """The values of a header, in order; what aiohttp took for other bytes is UTF-8."""
        values = self._request.headers.getall(name, ())
        try:
            return [value.encode("utf-8", "surrogateescape").decode() for value in values]
        except UnicodeDecodeError:
            raise HttpError(400, f"INVALID_HEADER: {name} is not UTF-8") from None

    def topic_and_channel(self) -> tuple[str, str]:
        """The two valid names of the query.

        Raises:
            HttpError: 400, one is missing or not valid.
        """
        for what in ("topic", "channel"):
            if not is_valid_name(self.argument(what)):
                raise HttpError(400, f"INVALID_ARG_{what.upper()}")
        return self.query["topic"], self.query["channel"]

    @property
    def content_length(self) -> int:
        """The bytes of the body as announced; 0 where it is not said."""
        return self._request.content_length or 0

    @property
    def has_much_left(self) -> bool:
        """Whether more of the body may come than is worth reading to keep the connection."""
        request = self._request
        if request.content.at_eof():
            return False
        expects = "Expect" in request.headers
        return expects or not 0 < self.content_length <= _MAX_LEFT_BYTES

    async def read(self, limit_bytes: int, too_large: str) -> bytes:
        """The whole body.

        Raises:
            HttpError: 413 with the text `too_large`, there is more than the limit; 500
                INTERNAL_ERROR, it broke off.
        """
        request = self._request
        if self.content_length > limit_bytes:
            raise HttpError(413, too_large)
        if not request.body_exists:
            return b""
        expects = request.headers.get("Expect", "")
        if expects.lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            body = await request.content.readany()
            if request.content.at_eof():
                if len(body) > limit_bytes:
                    raise HttpError(413, too_large)
                return body
            pieces = bytearray(body)
            while len(pieces) <= limit_bytes:
                piece = await request.content.readany()
                if not piece:
                    return bytes(pieces)
                pieces += piece
        except (ClientError, HttpProcessingError, OSError):
            raise HttpError(500, "INTERNAL_ERROR") from None
        raise HttpError(413, too_large)

    async def stream(
        self, pieces: Iterable[memoryview], content_type: str, max_bytes: int
    ) -> web.StreamResponse:
        """Answer with bytes that are not copied together, so many at a time."""
        pieces = list(pieces)
        response = web.StreamResponse(headers=SERVER)
        response.content_type = content_type
        response.content_length = sum(map(len, pieces))
        await response.prepare(self._request)
        for piece in pieces:
            for start in range(0, len(piece), max_bytes):
                await response.write(piece[start : start + max_bytes])
        await response.write_eof()
        return response


Endpoint = Callable[[Request], Awaitable[object]]
Routes = Mapping[str, Mapping[str, Endpoint]]
"""For each path, the endpoint of each method. A path may end in ``/:name``, for any one name."""


@lru_cache(maxsize=256)  # clients ask for the same again and again
def parse_query(text: str) -> Mapping[str, str]:
    """Cut a query into its arguments; of several of one name the first counts.

    Raises:
        HttpError: 400 INVALID_REQUEST, as Go finds it not well formed.
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


def _fault(text: str) -> str:
    """The first fault that Go finds; empty for none."""
    if ";" in text or BAD_ESCAPE.search(text):
        for piece in text.split("&"):
            if ";" in piece:
                return "invalid semicolon separator in query"
            for part in piece.partition("="):
                bad = BAD_ESCAPE.search(part)
                if bad:
                    escape = part[bad.start() : bad.start() + 3]
                    return f"invalid URL escape {quoted(escape.encode(errors='surrogateescape'))}"
    return ""


def _decode(text: str) -> str:
    return unquote_to_bytes(text).decode(errors="replace") if "%" in text else text
