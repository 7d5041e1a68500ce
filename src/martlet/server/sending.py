"""SEND: messages with properties and options, answered with where they were stored.

The answer is a JSON object.  A refusal is one too, with a status of its own, and does not end the
connection::

    {"status": "OK", "queue": 0, "offset": 1041, "count": 3, "id": "00c0ffee00c0ffee"}
    {"status": "REFUSED", "text": "the disk is full: ..."}
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from martlet.broker.errors import LimitReached, WritesRefused
from martlet.duration import MILLISECOND_NS
from martlet.protocol import nsq_v2 as v2
from martlet.server.arguments import Arguments, CallError
from martlet.server.owed import Promise

if TYPE_CHECKING:
    from martlet.broker.topic import Topic
    from martlet.server.connection import Connection

_OPTIONS = ("deliver_at_ms", "wait")


class Stored(Promise):
    """What is answered once messages are stored.

    Args:
        topic: where.
        offset, count: which.
        waits: whether that is when they are as safe as a PUB that is answered OK.
    """

    __slots__ = ("_count", "_offset", "_topic")

    def __init__(self, topic: Topic, offset: int, count: int, waits: bool) -> None:
        super().__init__(waits)
        self._topic = topic
        self._offset = offset
        self._count = count

    def stored(self) -> bytes:
        """The answer."""
        queue = self._topic.queue
        return told(
            status="OK",
            queue=queue.number,
            offset=self._offset,
            count=self._count,
            id=queue.message_id(self._offset).decode(),
        )

    def refused(self, error: WritesRefused) -> bytes:
        """The answer where they were not."""
        return refusal(error)


def told(**fields: object) -> bytes:
    """A frame that answers SEND."""
    return v2.frame(v2.FrameType.RESPONSE, json.dumps(fields, separators=(",", ":")).encode())


def refusal(error: Exception) -> bytes:
    """The answer to a SEND that is not done."""
    status = "REFUSED"
    if isinstance(error, CallError):
        status = error.code
    elif isinstance(error, LimitReached):
        status = "LIMIT_REACHED"
    return told(status=status, text=str(error))


def send(connection: Connection, command: v2.Send) -> None:
    """SEND."""
    if connection.guard is not None:
        connection.guard.check("PUB", command.topic, "")
    try:
        _stage(connection, command)
    except (CallError, WritesRefused) as error:
        connection.reply(refusal(error))


def _stage(connection: Connection, command: v2.Send) -> None:
    arguments = Arguments(command.options)
    arguments.only(*_OPTIONS)
    deliver_at_ns = arguments.number("deliver_at_ms", 0, most=1 << 42) * MILLISECOND_NS
    waits = arguments.flag("wait", True)
    topic = connection.broker.topic(command.topic).next_part()
    if deliver_at_ns:
        connection.broker.commit()
    offset = topic.next_offset
    receipt = topic.stage(command.bodies, deliver_at_ns, command.properties)
    count = len(command.bodies)
    counters = connection.message_counters
    counters[command.topic] = counters.get(command.topic, 0) + count
    connection.owed.append((receipt, "SEND", Stored(topic, offset, count, waits)))
    connection.server.staged(connection)
