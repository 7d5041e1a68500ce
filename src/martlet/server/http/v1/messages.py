"""Publishing over HTTP: one message as a JSON object, or many as NDJSON, one on each line.

::

    POST /v1/topics/orders/messages     Content-Type: application/x-ndjson
    {"body": "17.50", "tag": "card", "keys": ["order-1041"]}
    {"body_base64": "AAECAw==", "order_key": "customer-7", "defer_ms": 5000}

All lines are checked before any message is stored. The answer says where each was stored, by the
fields of SEND's: see `martlet.server.nsq.publish`. A field of a message is an entry of `FIELDS`,
which the OpenAPI document shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from martlet.broker.broker import BrokerCore
from martlet.broker.errors import LimitReached, NotFound, QueuesRefused, WritesRefused
from martlet.broker.queue.queue_log import Receipt
from martlet.broker.topic.topic import Topic
from martlet.names import PutStatus
from martlet.options import BrokerOptions
from martlet.properties.model import (
    MAX_KEYS,
    MAX_PRIORITY,
    NORMAL_PRIORITY,
    BadProperties,
    Properties,
    TextOrBytes,
)
from martlet.server.group_commit import GroupCommit
from martlet.server.http.request import HttpError, Request
from martlet.server.http.v1.arguments import flag, json_fields, refusal, require_media_type
from martlet.server.nsq.publish import queue_of, topic_to_fill
from martlet.server.observability.replication import Replication
from martlet.server.rpc.registry import LATEST_MS, CallArguments, CallError, deliver_at_ns
from martlet.text import MILLISECOND_NS, SECOND_NS

JSON, NDJSON = "application/json", "application/x-ndjson"
MAX_MESSAGES = 10_000
"""The maximum number of messages in one request."""

FIELDS: Mapping[str, Mapping[str, Any]] = {
    "body": {"type": "string", "minLength": 1, "description": "the body, as text"},
    "body_base64": {
        "type": "string",
        "contentEncoding": "base64",
        "minLength": 4,
        "description": "the body, where it is no text; in place of `body`",
    },
    "tag": {"type": "string", "description": "to filter by: printable text without `|`"},
    "keys": {
        "type": "array",
        "items": {"type": "string", "minLength": 1},
        "maxItems": MAX_KEYS,
        "description": "to find the message by",
    },
    "headers": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "the application's own",
    },
    "headers_base64": {
        "type": "object",
        "additionalProperties": {"type": "string", "contentEncoding": "base64"},
        "description": "those whose values are no text; beside `headers`",
    },
    "order_key": {
        "type": "string",
        "description": "messages of one key go to one queue, in order",
    },
    "order_key_base64": {
        "type": "string",
        "contentEncoding": "base64",
        "description": "the key, where it is no text; in place of `order_key`",
    },
    "priority": {
        "type": "integer",
        "minimum": 0,
        "maximum": MAX_PRIORITY,
        "default": NORMAL_PRIORITY,
        "description": "channels deliver higher ones first; not beside `queue`",
    },
    "queue": {
        "type": "integer",
        "minimum": 0,
        "description": "the number of the queue; not beside `order_key` or `priority`",
    },
    "deliver_at_ms": {
        "type": "integer",
        "minimum": 0,
        "maximum": LATEST_MS,
        "description": "when to deliver it, in milliseconds since 1970; the past means now",
    },
    "defer_ms": {
        "type": "integer",
        "minimum": 0,
        "description": "how long to wait before it is delivered; not beside `deliver_at_ms`",
    },
}
"""The fields of a message, each with its JSON schema."""
_TARGET = ("order_key", "order_key_base64", "priority", "queue")


class MessageToPublish(NamedTuple):
    """A message to publish, checked."""

    body: bytes
    entry: bytes
    target: CallArguments
    """The fields that choose its queue."""
    at_ns: int
    """When to deliver it; 0 for now."""


@dataclass
class StoredRun:
    """Messages that were stored together."""

    queue: int
    offset: int | None
    """The offset of the first; None for messages that wait for their time."""
    first_id: int
    """The id of the first."""
    count: int
    """How many there are."""
    receipt: Receipt

    def stored_at(self) -> Iterator[dict[str, object]]:
        """Yield the queue, offset and id of each message."""
        for number in range(self.count):
            yield {
                "queue": self.queue,
                "offset": None if self.offset is None else self.offset + number,
                "id": f"{(self.first_id + number) % (1 << 64):016x}",
            }


class MessagePublisher:
    """Publishes the messages of requests."""

    def __init__(
        self,
        broker: BrokerCore,
        commits: GroupCommit,
        options: BrokerOptions,
        replication: Replication | None,
    ) -> None:
        self._broker = broker
        self._commits = commits
        self._options = options
        self._replication = replication

    async def publish(self, request: Request, name: str) -> object:
        """Publish the messages of a request to a topic. Returns the answer. Raises HttpError."""
        kind = require_media_type(request, JSON, NDJSON)
        waits = flag(request, "wait", True)
        options = self._options
        limit = max(options.max_body_size, options.max_msg_size)
        too_big = f"BODY_TOO_BIG: a request has at most {limit} bytes (--max-body-size)"
        data = await request.read(limit, too_big)
        if kind == JSON:
            messages = [self._message(data, "the message")]
        else:
            messages = list(self._lines(data))
        runs, refused = self._stage(name, messages)
        status = await self._status(runs, waits)
        # Receipts of this tick's batches know their errors once those are committed.
        errors = [run.receipt.error for run in runs if run.receipt.error is not None]
        failed = next(iter(errors), refused)
        stored = [
            row if run.receipt.error is None else None for run in runs for row in run.stored_at()
        ]
        stored += [None] * (len(messages) - len(stored))
        if failed is not None:
            raise HttpError(503, f"REFUSED: {failed}", {"messages": stored})
        if kind == JSON:
            return {"status": status, **stored[0], "count": 1}  # type: ignore[dict-item]
        return {"status": status, "count": len(messages), "messages": stored}

    # reading

    def _lines(self, data: bytes) -> Iterable[MessageToPublish]:
        lines = [line for line in data.split(b"\n") if line.strip()]
        if not lines:
            raise HttpError(400, "NO_MESSAGES: the body has no line with a message")
        if len(lines) > MAX_MESSAGES:
            raise HttpError(
                413,
                f"TOO_MANY_MESSAGES: {len(lines)} messages, and a request has {MAX_MESSAGES} at"
                " most: send several requests",
            )
        for number, line in enumerate(lines, 1):
            yield self._message(line, f"message {number}")

    def _message(self, data: bytes, what: str) -> MessageToPublish:
        """Read a message. Raises HttpError."""
        arguments = CallArguments(json_fields(data, what))
        try:
            arguments.only(*FIELDS)
            body = _body(arguments)
            entry = _properties(arguments).pack()
            at_ns = self._time_ns(arguments)
            target = _target(arguments)
        except CallError as error:
            raise refusal(error, what) from None
        except BadProperties as error:
            raise HttpError(400, f"INVALID_PROPERTIES: {what}: {error}") from None
        max_bytes = self._options.max_msg_size
        if len(body) > max_bytes:
            raise HttpError(
                413,
                f"MSG_TOO_BIG: the body of {what} has {len(body)} bytes, the limit is {max_bytes}"
                " (--max-msg-size)",
            )
        return MessageToPublish(body, entry, target, at_ns)

    def _time_ns(self, arguments: CallArguments) -> int:
        now_ns, max_ns = self._broker.wall(), self._options.max_delay_ns
        if "defer_ms" not in arguments:
            return deliver_at_ns(arguments, now_ns, max_ns)
        if "deliver_at_ms" in arguments:
            raise CallError(
                "BAD_ARGUMENT", "'deliver_at_ms' and 'defer_ms' both set the time: give one"
            )
        defer_ms = arguments.number("defer_ms")
        if defer_ms * MILLISECOND_NS > max_ns:
            raise CallError(
                "BAD_ARGUMENT",
                f"'defer_ms' is {defer_ms // 1000} s; the longest delay is {max_ns // SECOND_NS} s"
                " (--max-delay)",
            )
        return now_ns + defer_ms * MILLISECOND_NS if defer_ms else 0

    # storing

    def _stage(
        self, name: str, messages: list[MessageToPublish]
    ) -> tuple[list[StoredRun], Exception | None]:
        """Stage messages; return what refused the rest. Raises HttpError: none is stored."""
        broker = self._broker
        runs: list[StoredRun] = []
        try:
            topic = topic_to_fill(broker, name, *(message.target for message in messages))
            # Each queue is found before any message is stored: one may not exist.
            queues = [queue_of(broker, topic, message.target) for message in messages]
        except (CallError, NotFound, QueuesRefused) as error:
            raise HttpError(400, f"NO_QUEUE: {error}") from None
        except LimitReached as error:
            raise HttpError(503, f"LIMIT_REACHED: {error}") from None
        except WritesRefused as error:
            raise HttpError(503, f"REFUSED: {error}") from None
        pairs = zip(queues, messages, strict=True)
        for (queue, at_ns), group in groupby(pairs, lambda pair: (pair[0], pair[1].at_ns)):
            target = topic.next_queue() if queue < 0 else topic.at_queues[queue]
            try:
                runs.append(self._stage_run(target, [message for _, message in group], at_ns))
            except WritesRefused as error:
                return runs, error
        return runs, None

    def _stage_run(self, target: Topic, messages: list[MessageToPublish], at_ns: int) -> StoredRun:
        delays = self._broker.delays
        queue = delays.bucket(target, at_ns, len(messages)) if at_ns else target
        offset = queue.next_offset
        entries = [
            (number, message.entry) for number, message in enumerate(messages) if message.entry
        ]
        receipt = queue.stage([message.body for message in messages], at_ns, entries)
        return StoredRun(
            target.number,
            None if at_ns else offset,
            int(queue.queue.message_id(offset), 16),
            len(messages),
            receipt,
        )

    async def _status(self, runs: list[StoredRun], waits: bool) -> PutStatus:
        """Wait until the messages are as safe as a PUB answered OK, within a SEND's limit."""
        if not waits:
            self._broker.commit()
            return PutStatus.OK
        replication, options = self._replication, self._options
        is_sync = replication is not None and replication.is_sync
        timeout_ns = options.sync_replica_timeout_ns if is_sync else options.sync_flush_timeout_ns
        settled = [self._commits.settled(run.receipt) for run in runs]
        try:
            async with asyncio.timeout(timeout_ns / SECOND_NS):
                results = await asyncio.gather(*settled, return_exceptions=True)
        except TimeoutError:
            return PutStatus.FLUSH_SLAVE_TIMEOUT if is_sync else PutStatus.FLUSH_DISK_TIMEOUT
        for run, result in zip(runs, results, strict=True):
            if isinstance(result, WritesRefused):
                run.receipt.error = result
        if replication is not None and replication.lacks_replicas:
            return PutStatus.SLAVE_NOT_AVAILABLE
        return PutStatus.OK


def _body(arguments: CallArguments) -> bytes:
    """Return the body of a message. Raises CallError."""
    names = [name for name in ("body", "body_base64") if name in arguments]
    if len(names) != 1:
        raise CallError("BAD_ARGUMENT", "give the body as 'body', text, or as 'body_base64'")
    is_text = names[0] == "body"
    body = arguments.text("body", max_value=None).encode() if is_text else arguments.decoded(*names)
    if not body:
        raise CallError("BAD_ARGUMENT", "the body is empty: a message has at least one byte")
    return body


def _properties(arguments: CallArguments) -> Properties:
    """Return the properties of a message. Raises CallError."""
    keys = arguments.sequence("keys", max_value=MAX_KEYS) if "keys" in arguments else ()
    headers = arguments.mapping("headers") if "headers" in arguments else {}
    for what, some in (("keys", keys), ("headers", headers.values())):
        # Half a pair of surrogates, which JSON can hold, is no text either.
        if not all(isinstance(text, str) and _is_text(text) for text in some):
            raise CallError("BAD_ARGUMENT", f"{what!r} must have texts only")
    values: dict[str, TextOrBytes] = {name: str(value) for name, value in headers.items()}
    if "headers_base64" in arguments:
        coded = arguments.mapping("headers_base64")
        if twice := sorted(coded.keys() & values.keys()):
            raise CallError("BAD_ARGUMENT", f"the header {twice[0]!r} is given twice")
        values |= {name: CallArguments(coded).decoded(name) for name in coded}
    return Properties(
        arguments.text("tag", ""),
        tuple(map(str, keys)),
        values,
        arguments.order_key() or "",
        priority=arguments.number("priority", NORMAL_PRIORITY, max_value=MAX_PRIORITY),
    )


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _target(arguments: CallArguments) -> CallArguments:
    """Return the fields that choose the queue. Raises CallError."""
    if "queue" in arguments:
        arguments.number("queue")
    return arguments.without(*(set(FIELDS) - set(_TARGET)))
