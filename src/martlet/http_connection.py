"""A connection of a client over HTTP: what aiohttp does, and how long a client may take.

==================  ================================================================================
a client takes      until its connection is closed
==================  ================================================================================
`HEAD_S`            for the head of its first request, from its connecting, or of a further one,
                    from the first bytes of it that come after the answer to the one before
`BODY_S`            for a body, and a second more for each `BODY_BYTES_PER_S` that came; only time
                    in which the server waits for the client counts
==================  ================================================================================

So no number of connections that never finish a request keeps descriptors for long. They are closed
without an answer; the log has a line. A connection between two requests may stay idle, as at nsqd,
also with the beginning of a head that came together with the request before.

A client that sends no HTTP, or goes away before its answer, is no error of the server: its log has
a line and no traceback.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from martlet.addresses import shown_peer

log = logging.getLogger(__name__)

HEAD_S = 20.0
BODY_S = 20.0
BODY_BYTES_PER_S = 500


class BodyTimer:
    """Raises TimeoutError while a client sends its body too slowly, as a context manager."""

    def __init__(self) -> None:
        self._began_s = asyncio.get_running_loop().time()
        self._limit = asyncio.timeout_at(self._began_s + BODY_S)

    async def __aenter__(self) -> Self:
        """Begin."""
        await self._limit.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        await self._limit.__aexit__(kind, error, trace)

    def received(self, count_bytes: int) -> None:
        """Take more time, now that so many bytes came in all."""
        self._limit.reschedule(self._began_s + BODY_S + count_bytes / BODY_BYTES_PER_S)


class HttpConnection(web.RequestHandler):
    """One connection."""

    headers: Mapping[str, str] = {}
    """Those of each answer to bytes that are no request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._head_timer: asyncio.TimerHandle | None = None
        self._await_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop waiting."""
        self.has_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of requests."""
        count = self._request_count
        super().data_received(data)
        if self._request_count != count:
            self.has_head()
        elif self._head_timer is None and self._is_idle:
            self._await_head()

    @property
    def _is_idle(self) -> bool:
        """Whether no request is under way."""
        return self._waiter is not None and not self._waiter.done()

    def _await_head(self) -> None:
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_S, self._end_headless)

    def has_head(self) -> None:
        """Note that the head of a request is complete."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_headless(self) -> None:
        self._head_timer = None
        log.info("HTTP: closing %s: no request within %g s", shown_peer(self.transport), HEAD_S)
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that are no request."""
        response = super().handle_error(request, status, exc, message)
        response.headers.update(self.headers)
        return response

    def log_exception(self, *arguments: Any, **named: Any) -> None:
        """Log an error of the server with a traceback, and what a client did in a line."""
        error = named.get("exc_info")
        peer = shown_peer(self.transport)
        if isinstance(error, HttpProcessingError):
            why = " ".join(error.message.split())[:200]
            log.info("HTTP: 400 %s: what it sent is no request: %s", peer, why)
        elif isinstance(error, ConnectionError):
            log.debug("HTTP: %s went away", peer)
        else:
            log.error("HTTP: a request of %s failed", peer, exc_info=error)


@asynccontextmanager
async def body_timer(request: web.BaseRequest) -> AsyncIterator[None]:
    """Limit the time in which a short body is read. Raises HTTPRequestTimeout."""
    try:
        async with asyncio.timeout(BODY_S):
            yield
    except TimeoutError:
        end_slow(request)
        raise web.HTTPRequestTimeout from None


def end_slow(request: web.BaseRequest) -> None:
    """Close the connection of a client that sends its body too slowly.

    It gets no answer, which it may not read either, and which would keep the connection.
    """
    if request.transport is not None:
        log.info(
            "HTTP: closing %s: its body did not come within %g s and a second for each %d bytes",
            shown_peer(request.transport),
            BODY_S,
            BODY_BYTES_PER_S,
        )
        request.transport.abort()


def is_gone(request: web.BaseRequest) -> bool:
    """Whether the client of a request is disconnected."""
    transport = request.transport
    return transport is None or transport.is_closing()


GONE_STATUS = 499
"""The status in the log of a request whose client has disconnected; it is not sent."""
