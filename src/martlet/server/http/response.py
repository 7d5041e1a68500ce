"""Make an HTTP response of an endpoint's result.

Most requests publish, and are answered ``OK``. Those bytes are built once, except the date: aiohttp
would build and write the same headers each time, which costs as much as storing the message.
"""

from __future__ import annotations

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time

from martlet.server.http.request import SERVER, HttpError
from martlet.text import go_json

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
_HEADERS = {**SERVER, "X-NSQ-Content-Type": "nsq; version=1.0"}
_TEXT_HEADERS = {**_HEADERS, "Content-Type": TEXT}
_JSON_HEADERS = {**_HEADERS, "Content-Type": JSON}


def respond(status: int, answer: object) -> web.Response:
    """Make the response for a result: text as it is, None as an empty body, the rest as JSON."""
    if not answer and isinstance(answer, str | None):
        return web.Response(status=status, headers=_HEADERS)
    if isinstance(answer, str):
        return web.Response(status=status, body=answer.encode(), headers=_TEXT_HEADERS)
    return respond_json(go_json(answer), status)


def respond_json(text: str, status: int = 200) -> web.Response:
    """Make the response for a text that is JSON already."""
    return web.Response(status=status, body=text.encode(), headers=_JSON_HEADERS)


def refuse(error: HttpError) -> web.Response:
    """Make the response for an error."""
    if error.plain:
        return web.Response(
            status=error.status,
            body=error.message.encode(),
            headers={**SERVER, "Content-Type": TEXT, **error.headers},
        )
    response = respond(error.status, {"message": error.message, **error.fields})
    response.headers.update(error.headers)
    return response


class ReadyText(web.StreamResponse):
    """Status 200 and a short text, for a persistent connection; one object serves all requests."""

    def __init__(self, text: str) -> None:
        super().__init__(headers=_TEXT_HEADERS)
        body = text.encode()
        lines = [f"{name}: {value}" for name, value in _TEXT_HEADERS.items()]
        self._begin = "\r\n".join(
            ["HTTP/1.1 200 OK", *lines, f"Content-Length: {len(body)}", "Date: "]
        ).encode()
        self._end = b"\r\n\r\n" + body
        self._made_for = ""
        self._bytes = b""

    @staticmethod
    def suits(request: web.BaseRequest) -> bool:
        """Return whether a request may be answered with it."""
        return request.version == HttpVersion11 and request.keep_alive

    @property
    def keep_alive(self) -> bool:
        """Always."""
        return True

    def data(self) -> bytes:
        """Return all its bytes, with the time of now."""
        date = rfc822_formatted_time()
        if date != self._made_for:
            self._made_for = date
            self._bytes = self._begin + date.encode() + self._end
        return self._bytes

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send it. Raises ConnectionResetError if the client has disconnected."""
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        transport.write(self.data())
        if transport.get_write_buffer_size():
            await request.writer.drain()
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: all is sent."""
