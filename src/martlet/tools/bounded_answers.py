"""Bounded answers: an HTTP destination cannot fill our memory by answering more than it was asked.

aiohttp keeps each answer until somebody reads it, and reads on over interim ones (1xx) to the final
one, however many there are.  A destination that sends them without end takes a processor and some
hundred megabytes for each connection, and one that answers a request which nobody made has its
answers kept until the next one is.  So the answers to each request are counted, whatever they are,
and a connection that brings too many is cut.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

MAX_ANSWERS = 100
"""To one request, with the interim ones: a server that is slow may say 102 each second or so."""


class BoundedAnswers(ResponseHandler):
    """A connection to an HTTP server.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._answer_count = 0

    def set_response_params(self, **params: Any) -> None:
        """A request is made: what comes from now on answers it."""
        self._answer_count = 0
        super().set_response_params(**params)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """One more answer has come, at least its head."""
        self._answer_count += 1
        if self._answer_count <= MAX_ANSWERS:
            super().feed_data(data, size)
        elif self._answer_count == MAX_ANSWERS + 1:
            self.abort()
            self.set_exception(
                aiohttp.ClientPayloadError(f"more than {MAX_ANSWERS} answers to one request")
            )


class BoundedConnector(aiohttp.TCPConnector):
    """Connects to HTTP servers whose answers are counted, with any number of connections."""

    def __init__(self) -> None:
        super().__init__(limit=0)
        factory = partial(BoundedAnswers, loop=self._loop)
        self._factory = cast("partial[ResponseHandler]", factory)
