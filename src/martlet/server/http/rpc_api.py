"""The HTTP endpoint for calls: ``POST /call/<method>``, the fields as a JSON object in the body.

An error is answered with status 404 for a missing object, 400 for a bad argument, 503 if the broker
accepts no writes, and with its code, text and fields as JSON.
"""

from __future__ import annotations

import json

from aiohttp import web

from martlet.server.http.request import HttpError, Request, Routes
from martlet.server.rpc.registry import CallerConnection, CallError, CallRegistry, encoded

MAX_BODY_BYTES = 1 << 20
FIELDS_HEADER = "X-Martlet-Fields"
_STATUS = {
    "NOT_FOUND": 404,
    "UNKNOWN_METHOD": 404,
    "REFUSED": 503,
    "LIMIT_REACHED": 503,
    "CONFLICT": 409,
    "NOT_A_MEMBER": 409,
    "OUT_OF_REACH": 409,
    "INCOMPLETE": 409,
    "GONE": 410,
    "FORBIDDEN": 403,
}


class HttpCaller:
    """A caller over HTTP, where the route answers operators alone, and there is no AUTH."""

    def __init__(self, request: Request) -> None:
        self.remote_address = request.remote_address
        self._request = request

    @property
    def is_gone(self) -> bool:
        """Return whether the client is disconnected."""
        return self._request.is_gone

    @property
    def connection(self) -> CallerConnection | None:
        """None."""
        return None

    @property
    def is_operator(self) -> bool:
        """Return whether it was checked that the client is one."""
        return self._request.is_operators

    def may_publish(self, topic: str) -> None:
        """Allow it."""

    def may_read(self, topic: str) -> None:
        """Allow it."""

    def may_consume(self, topic: str, channel: str) -> None:
        """Allow it."""


class CallApi:
    """The endpoint of calls."""

    def __init__(self, calls: CallRegistry) -> None:
        self._calls = calls

    def routes(self) -> Routes:
        """The endpoint of each path and method."""
        return {"/call/:name": {"POST": self.call}}

    async def call(self, request: Request) -> object:
        """Call the method that the path names."""
        method = request.path.rpartition("/")[2]
        body = await request.read(MAX_BODY_BYTES, "BODY_TOO_BIG")
        try:
            fields = json.loads(body) if body else {}
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise HttpError(400, "INVALID_BODY: it must be a JSON object")
        try:
            answer, data = await self._calls.run(HttpCaller(request), method, fields)
        except CallError as error:
            status = _STATUS.get(error.code, 400)
            raise HttpError(status, str(error), {"code": error.code, **error.fields}) from None
        if not data:
            return dict(answer)
        return web.Response(
            body=data,
            content_type="application/octet-stream",
            headers={FIELDS_HEADER: encoded(answer).decode()},
        )
