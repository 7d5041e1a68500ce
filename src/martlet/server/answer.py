"""Answers of consumers to the messages that they hold: FIN, REQ and TOUCH.

What cannot be done is refused by an error that is not fatal, which names the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from martlet.broker.errors import NotInFlight
from martlet.protocol import nsq_v2 as v2

if TYPE_CHECKING:
    from martlet.server.connection import Connection

_MILLISECOND_NS = 1_000_000


def finish_run(connection: Connection, command: v2.FinishRun) -> None:
    """FIN of many messages."""
    channel, consumer = connection.subscription()
    base = np.uint64(channel.cursor.queue.id_base)
    offsets = (command.ids - base).view(np.int64)
    if (offsets[1:] > offsets[:-1]).all() and channel.finish_run(consumer, offsets):
        return
    for number in command.ids.tolist():
        finish(connection, v2.Finish(b"%016x" % number))


def finish(connection: Connection, command: v2.Finish) -> None:
    """FIN."""
    channel, consumer = connection.subscription()
    try:
        channel.finish(consumer, channel.cursor.queue.offset_of(command.id))
    except (NotInFlight, ValueError) as error:
        _not_done(connection, "FIN", command.id, error)


def requeue(connection: Connection, command: v2.Requeue) -> None:
    """REQ."""
    channel, consumer = connection.subscription()
    delay_ns = command.delay_ms * _MILLISECOND_NS
    try:
        channel.requeue(consumer, channel.cursor.queue.offset_of(command.id), delay_ns)
    except (NotInFlight, ValueError) as error:
        _not_done(connection, "REQ", command.id, error)


def touch(connection: Connection, command: v2.Touch) -> None:
    """TOUCH."""
    channel, consumer = connection.subscription()
    try:
        channel.touch(consumer, channel.cursor.queue.offset_of(command.id))
    except (NotInFlight, ValueError) as error:
        _not_done(connection, "TOUCH", command.id, error)


def _not_done(connection: Connection, verb: str, id: bytes, error: Exception) -> None:
    """Refuse an answer to a message; an id that is none stands for no message either."""
    text = str(error) if isinstance(error, NotInFlight) else "ID not in flight"
    shown = id.decode("utf-8", "surrogateescape")
    what = f"{verb} {shown} failed {text}"
    connection.refuse(v2.ProtocolError(f"E_{verb}_FAILED", what, fatal=False))
