"""Replies on their way to the broker.

Replies of one turn of the event loop to one requester go in one command, on the connection that the
requests came on. A request is finished when the broker has stored its reply, and redelivered if the
broker could not: a lost consumer, a lost connection and a full disk lose no reply, but may cause a
second one, which the requester drops.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from martlet.client.errors import BadBody, ConnectionLost, PublishUnclear, Refused
from martlet.client.producer.message import Body, check_body
from martlet.client.producer.options import NO_HEADERS, SendOptions
from martlet.client.requests.headers import (
    CORRELATION_ID,
    ERROR,
    HandlerError,
    ReplyAddress,
    check_headers,
)
from martlet.names import PutStatus
from martlet.properties.block import pack_entries
from martlet.properties.model import NONE, TextOrBytes
from martlet.protocol.nsq import commands

logger = logging.getLogger("martlet.client")

CLAIM_MS = 30_000
"""The time for a requester to come back for a reply; then the broker deletes the reply topic."""
CLAIM_EXTENSIONS = 3
"""The version of the extensions since which a broker does so."""
AGAIN_MS = 1000
"""The delay of a request whose reply could not be stored."""
MAX_BATCH_BYTES = 256 * 1024
"""The size at which a batch of replies is full."""
_STORED = frozenset(PutStatus)


class OutgoingReply(NamedTuple):
    """A reply."""

    topic: str
    body: bytes
    headers: Mapping[str, TextOrBytes]
    """All of them, those that name the request included."""

    @classmethod
    def of(
        cls, to: ReplyAddress, body: Body, headers: Mapping[str, TextOrBytes] | None, max_bytes: int
    ) -> OutgoingReply:
        """Make a reply.

        Raises:
            BadBody: the body is empty or too big. BadProperties, ValueError: the headers are
            invalid, or reserved. TypeError: the body is not bytes.
        """
        body = check_body(body, sys.maxsize)
        if max_bytes and len(body) > max_bytes:
            raise BadBody(
                f"a reply of {len(body)} bytes is above the broker's --max-msg-size, {max_bytes}:"
                " store it elsewhere, and reply where it is"
            )
        every = {**check_headers(headers), CORRELATION_ID: to.correlation_id}
        reply = cls(to.topic, body, every)
        reply.packed()
        return reply

    @classmethod
    def of_error(cls, to: ReplyAddress, error: HandlerError) -> OutgoingReply:
        """Make a reply that has the error of a handler."""
        headers = {CORRELATION_ID: to.correlation_id, ERROR: error.kind}
        return cls(to.topic, error.text.encode(errors="replace"), headers)

    def packed(self, more_headers: Mapping[str, str] = NO_HEADERS) -> bytes:
        """Pack the headers, with more where there is room. Raises BadProperties."""
        return SendOptions(headers=self.headers).pack_with(NONE, more_headers)


ReplyHooks = Callable[
    [str, bytes], tuple[Mapping[str, str], Callable[[BaseException | None], object]]
]
"""Begins a publish with a topic and a body; returns its headers, and the function to end it."""


class RequestAnswers(Protocol):
    """The answers to the requests of a connection."""

    def finish(self, message_id: bytes) -> None:
        """Finish a request."""

    def requeue(self, message_id: bytes, delay_ms: int) -> None:
        """Have a request redelivered."""


class ReplyBatch:
    """Replies to one requester that go together; waits until they are stored."""

    __slots__ = ("_answers", "_bodies", "_entries", "_ids", "_on_done", "_topic", "size_bytes")

    def __init__(self, topic: str, answers: RequestAnswers) -> None:
        self._topic = topic
        self._answers = answers
        self._bodies: list[bytes] = []
        self._entries: list[bytes] = []
        self._ids: list[bytes] = []
        self._on_done: list[Callable[[BaseException | None], object]] = []
        self.size_bytes = 0

    def add(self, reply: OutgoingReply, message_id: bytes | None, hooks: ReplyHooks | None) -> None:
        """Add a reply, and its request to be finished, if that is given."""
        more_headers: Mapping[str, str] = NO_HEADERS
        if hooks is not None:
            more_headers, on_done = hooks(reply.topic, reply.body)
            self._on_done.append(on_done)
        packed = reply.packed(more_headers)
        self._entries.append(packed)
        self._bodies.append(reply.body)
        if message_id is not None:
            self._ids.append(message_id)
        self.size_bytes += len(reply.body) + len(packed)

    def command(self, extensions: int) -> bytes:
        """Encode the SEND to a broker with that version of the extensions."""
        fields: dict[str, Any] = {"claim_ms": CLAIM_MS} if extensions >= CLAIM_EXTENSIONS else {}
        return commands.send(self._topic, self._bodies, fields, pack_entries(self._entries))

    def _done(self, error: BaseException | None) -> None:
        for on_done in self._on_done:
            on_done(error)

    def answered(self, data: bytes) -> None:
        """Handle the broker's answer. Raises PublishUnclear if it is unintelligible."""
        try:
            fields: dict[str, Any] = json.loads(data)
            status = fields["status"]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise PublishUnclear(f"a reply was answered {data[:80]!r}") from error
        if status in _STORED:
            self._done(None)
            for message_id in self._ids:
                self._answers.finish(message_id)
            return
        refusal = Refused(str(status), str(fields.get("text", "")))
        logger.warning("replies to %s are not stored: %s", self._topic, refusal)
        self._done(refusal)
        for message_id in self._ids:
            self._answers.requeue(message_id, AGAIN_MS)

    def refused(self, error: Refused) -> None:
        """Handle an error that ends the connection, so that the request is redelivered."""
        logger.error("replies to %s are refused: %s", self._topic, error)
        self._done(error)

    def lost(self, error: ConnectionLost) -> None:
        """Handle a lost connection: the requests are redelivered."""
        self._done(error)
