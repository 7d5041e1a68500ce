"""SEND: messages with properties and options, answered with where they were stored.

The answer is a JSON object.  A refusal is one too, with a status of its own, and does not end the
connection::

    {"status": "OK", "queue": 0, "offset": 1041, "count": 3, "id": "00c0ffee00c0ffee"}
    {"status": "REFUSED", "text": "the disk is full: ..."}

The options, all of which may be left out:

- ``deliver_at_ms``: since 1970 (see `martlet.server.delivery_time`)
- ``queue``: the number of the queue; ``order_key``: the queue of all messages with that key
- ``wait``: false for an answer once they are written, though a PUB would wait for the disk
- ``flush_timeout_ms``: for how long at most it waits for the disk, if not for
  ``--sync-flush-timeout``; the status is then FLUSH_DISK_TIMEOUT, and they are stored all the same
- ``transaction``: nobody sees them until that is committed
  (`martlet.server.nsq.send_in_transaction`)
- ``oneway``: true for no answer at all
- ``producer``, 32 hexadecimal digits, and ``sequence``: a number of this send.  One that is
  repeated is not stored again but answered as the first one, and with ``"duplicate": true`` (see
  `martlet.broker.idempotence`); ``age_ms`` tells how long ago it was sent first

Answers come in the order of the commands: one that need not wait stands behind one that does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from martlet.broker.errors import LimitReached, NotFound, WritesRefused
from martlet.broker.idempotence import ProducerSend, Reused, TooOld, marked
from martlet.durations import MILLISECOND_NS
from martlet.properties.model import PRODUCER_BYTES, Sent
from martlet.protocol.nsq import v2
from martlet.put_status import PutStatus
from martlet.server.delivery_time import deliver_at_ns
from martlet.server.nsq.reply_queue import DeferredReply
from martlet.server.rpc.arguments import CallArguments, CallError

if TYPE_CHECKING:
    from martlet.broker.topic.topic import Topic
    from martlet.server.nsq.connection import ClientConnection

_OPTIONS = (
    "age_ms",
    "deliver_at_ms",
    "flush_timeout_ms",
    "oneway",
    "order_key",
    "producer",
    "queue",
    "sequence",
    "wait",
)
_CODES: dict[type[Exception], str] = {
    LimitReached: "LIMIT_REACHED",
    NotFound: "NO_QUEUE",
    Reused: "SEQUENCE_REUSED",
    TooOld: "TOO_OLD",
}


class StoredSend(DeferredReply):
    """What is answered once messages are stored.

    Args:
        home: where they go to.
        topic: where they are, which may be a bucket; None where that has gone since.
        send: which.
        waits: whether that is when they are as safe as a PUB that is answered OK.
        is_duplicate: whether they were stored before.
    """

    __slots__ = ("_home", "_is_duplicate", "_send", "_status", "_topic", "is_answered")

    def __init__(
        self,
        home: Topic,
        topic: Topic | None,
        send: ProducerSend,
        waits: bool,
        is_duplicate: bool = False,
    ) -> None:
        super().__init__(waits)
        self._home = home
        self._topic = topic
        self._send = send
        self._is_duplicate = is_duplicate
        self._status = PutStatus.OK
        self.is_answered = False
        """Whether the client has the answer."""

    def hurry(self) -> None:
        """The disk takes too long: do not wait for it any more."""
        self.waits = False
        self._status = PutStatus.FLUSH_DISK_TIMEOUT

    def stored(self) -> bytes:
        """The answer."""
        self.is_answered = True
        topic, offset = self._topic, self._send.offset
        return encode_reply(
            status=self._status,
            queue=self._home.number,
            offset=offset if topic is self._home else None,
            count=self._send.count,
            id=topic.queue.message_id(offset).decode() if topic is not None else None,
            **({"duplicate": True} if self._is_duplicate else {}),
        )

    def refused(self, error: WritesRefused) -> bytes:
        """The answer where they were not."""
        self.is_answered = True
        return refusal(error)


class NoReply(DeferredReply):
    """Nothing is answered; what went wrong is logged.

    Args:
        connection, topic: who has sent, and where.
    """

    __slots__ = ("_connection", "_topic")

    def __init__(self, connection: ClientConnection, topic: str) -> None:
        super().__init__(waits=False)
        self._connection = connection
        self._topic = topic

    def stored(self) -> bytes:
        """Nothing."""
        return b""

    def refused(self, error: Exception) -> bytes:
        """Nothing."""
        events = self._connection.server.events
        events.dropped(self._connection.remote_address, self._topic, error)
        return b""


def encode_reply(**fields: object) -> bytes:
    """A frame that answers SEND."""
    return v2.frame(v2.FrameType.RESPONSE, json.dumps(fields, separators=(",", ":")).encode())


def refusal(error: Exception) -> bytes:
    """The answer to a SEND that is not done."""
    if isinstance(error, CallError):
        return encode_reply(status=error.code, text=str(error), **error.fields)
    return encode_reply(status=_CODES.get(type(error), "REFUSED"), text=str(error))


def send(connection: ClientConnection, command: v2.SendCommand) -> None:
    """SEND."""
    if connection.guard is not None:
        connection.guard.check("PUB", command.topic, "")
    if "transaction" in command.options:
        from martlet.server.nsq.send_in_transaction import add

        return add(connection, command)
    untold = None
    if command.options.get("oneway") is True:
        untold = NoReply(connection, command.topic)
    try:
        _stage(connection, command, CallArguments(command.options), untold)
    except (CallError, LimitReached, NotFound, Reused, TooOld, WritesRefused) as error:
        if untold is not None:
            untold.refused(error)
        else:
            connection.reply(refusal(error))


def _stage(
    connection: ClientConnection,
    command: v2.SendCommand,
    arguments: CallArguments,
    untold: NoReply | None,
) -> None:
    arguments.only(*_OPTIONS)
    arguments.flag("oneway")
    broker, server = connection.broker, connection.server
    at_ns = deliver_at_ns(arguments, server)
    waits = arguments.flag("wait", True)
    usual_ms = server.options.sync_flush_timeout_ns // MILLISECOND_NS
    timeout_ms = arguments.number("flush_timeout_ms", usual_ms, min_value=1, max_value=1 << 31)
    sent = _sent(arguments, len(command.bodies))
    topic = broker.topic(command.topic)
    known = None
    if sent is not None:
        age_ns = arguments.number("age_ms", 0, max_value=1 << 42) * MILLISECOND_NS
        known = broker.producers.find(sent, topic, broker.clock() - age_ns if age_ns else 0)
    promise: StoredSend | NoReply
    if known is not None:
        home = broker.by_id[known.home].home
        promise = StoredSend(home, broker.by_id.get(known.topic), known, waits, is_duplicate=True)
        receipt = known.receipt
    else:
        part = _part(topic, arguments)
        if at_ns:
            part = broker.delays.bucket(part, at_ns, len(command.bodies))
        offset, count = part.next_offset, len(command.bodies)
        properties = command.properties if sent is None else marked(command.properties, sent)
        receipt = part.stage(command.bodies, at_ns, properties)
        stored = ProducerSend(receipt, part.id, offset, count, part.home.id)
        if sent is not None:
            broker.producers.add(sent, stored, broker.clock())
        counters = connection.message_counters
        counters[command.topic] = counters.get(command.topic, 0) + count
        promise = StoredSend(part.home, part, stored, waits)
    if untold is not None:
        promise = untold
    elif waits and not server.answers_at_once:
        server.late_flushes.watch(connection, promise, timeout_ms)
    connection.owed.append((receipt, "SEND", promise))
    server.staged(connection)


def _sent(arguments: CallArguments, count: int) -> Sent | None:
    if "producer" not in arguments and "sequence" not in arguments:
        return None
    producer = arguments.text("producer")
    sequence = arguments.number("sequence", min_value=1)
    try:
        id = bytes.fromhex(producer)
    except ValueError:
        id = b""
    if len(id) != PRODUCER_BYTES or len(producer) != 2 * PRODUCER_BYTES:
        raise CallError(
            "BAD_ARGUMENT", f"'producer' must be 32 hexadecimal digits, not {producer[:40]!r}"
        )
    return Sent(id, sequence, count)


def _part(topic: Topic, arguments: CallArguments) -> Topic:
    """The topic at the queue that the messages go to."""
    queue = queue_of(topic, arguments)
    return topic.next_part() if queue < 0 else topic.parts[queue]


def queue_of(topic: Topic, arguments: CallArguments) -> int:
    """The number of the queue that messages go to; -1 for any. Raises CallError and NotFound."""
    if "queue" in arguments:
        if "order_key" in arguments:
            raise CallError("BAD_ARGUMENT", "'queue' and 'order_key' each tell where: give one")
        return topic.part(arguments.number("queue")).number
    if "order_key" in arguments:
        return topic.part_for_key(arguments.text("order_key").encode()).number
    return -1
