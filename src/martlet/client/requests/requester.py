"""The requester: give each request an id, and get its reply.

::

    producer                    broker                           worker
      SUB reply topic  ------>    reply.5f..#ephemeral
      SEND request     ------>    topic  -------------------->   handler
                                  reply.5f..#ephemeral  <-----   SEND reply
                                                         ---->   OK, then FIN
      message, FIN     <------

A producer subscribes to its reply topic on its own connections, of which a broker handles the
commands in order: so the topic's channel is there before any request. A worker replies to the
broker that it has the request from. A lost connection is subscribed again when it is remade; a
reply stored meanwhile waits in the topic.

A worker that is lost before its reply is stored has not finished the request, so that another gets
it. A second reply to one request, or one that comes after the timeout, is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass
from functools import partial

from martlet.client.errors import (
    ConnectionLost,
    ProducerFull,
    Refused,
    RequestFailed,
    SubscribeRefused,
)
from martlet.client.requests.headers import CORRELATION_ID, ERROR
from martlet.client.transport.connection import Connection
from martlet.properties.model import NONE, Properties
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.message_run import MessageRun

logger = logging.getLogger("martlet.client")

CHANNEL = "replies#ephemeral"
MAX_READY = 2500
"""The maximum number of replies on their way on one connection."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a request.

    Attributes:
        properties: its headers and other properties.
        timestamp_ns: when it was stored, in nanoseconds since 1970.
    """

    body: bytes
    properties: Properties
    timestamp_ns: int


class Requester:
    """The requests of one producer that wait for replies.

    Attributes:
        late_count: the number of replies that were dropped, as no call waited for them.
    """

    def __init__(self, max_waiting: int) -> None:
        self.topic = f"reply.{secrets.token_hex(16)}#ephemeral"
        self.late_count = 0
        self._max_waiting = max_waiting
        self._last_number = 0
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._refusal: SubscribeRefused | None = None

    @property
    def waiting_count(self) -> int:
        """The number of requests that wait for their reply."""
        return len(self._waiting)

    def connected(self, connection: Connection) -> None:
        """Get the replies at a broker, if it is a Martlet broker."""
        if not connection.features.extensions or self._refusal is not None:
            return
        connection.on_run = partial(self._on_run, connection)
        command = commands.subscribe(self.topic, CHANNEL)
        connection.send(command, _ReplySubscription(self, connection))

    def begin(self) -> tuple[str, asyncio.Future[Reply]]:
        """Return the id of a new request, and the future of its reply. `end` ends it. Raises
        ProducerFull: too many wait. SubscribeRefused: a broker refuses the reply topic.
        """
        if self._refusal is not None:
            raise self._refusal
        if len(self._waiting) >= self._max_waiting:
            raise ProducerFull(
                f"{len(self._waiting)} requests wait for their reply, the maximum is"
                f" {self._max_waiting}: wait for some of them, or raise it by"
                " limits=Limits(max_waiting_requests=...)"
            )
        self._last_number += 1
        correlation_id = f"{self._last_number:x}"
        future = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        return correlation_id, future

    def end(self, correlation_id: str) -> None:
        """End a request: its reply is no longer waited for."""
        self._waiting.pop(correlation_id, None)

    def fail(self, error: Exception) -> None:
        """Fail all requests."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    def refused(self, error: Refused) -> None:
        """Fail all requests, now and later: a broker does not let this client have replies."""
        self._refusal = SubscribeRefused(
            error.code, f"{error.text}: the reply topic {self.topic!r} is refused to this client"
        )
        self.fail(self._refusal)

    def _on_run(self, connection: Connection, run: MessageRun) -> None:
        for index, (timestamp_ns, _attempts, _id, body) in enumerate(run.fields()):
            packed = run.properties.get(index)
            self._on_reply(Reply(body, Properties.unpack(packed) if packed else NONE, timestamp_ns))
        connection.write(commands.finish_array(run.ids()))

    def _on_reply(self, reply: Reply) -> None:
        header = reply.properties.header_text
        future = self._waiting.get(header(CORRELATION_ID) or "")
        if future is None or future.done():
            self.late_count += 1
        elif (kind := header(ERROR)) is None:
            future.set_result(reply)
        else:
            future.set_exception(RequestFailed(kind, reply.body.decode(errors="replace")))


class _ReplySubscription:
    """Wait for the answer to SUB."""

    def __init__(self, requester: Requester, connection: Connection) -> None:
        self._requester = requester
        self._connection = connection

    def answered(self, _data: bytes) -> None:
        count = min(MAX_READY, self._connection.features.max_ready_count)
        self._connection.write(commands.ready(count))

    def refused(self, error: Refused) -> None:
        logger.error("%s: no replies: %s", self._connection.address, error)
        self._requester.refused(error)

    def lost(self, error: ConnectionLost) -> None:
        """Do nothing: the next connection is subscribed again."""
