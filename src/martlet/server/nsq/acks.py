"""Answers of consumers to the messages that they hold: FIN, REQ, TOUCH and STARTED.

An id less the first queue's base is an offset, or of a topic of several queues a place (see
`martlet.broker.channel.partitioned`).

What cannot be done is refused by an error that is not fatal, which names the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from martlet.broker.errors import NotInFlight
from martlet.broker.retry import Cause
from martlet.protocol.nsq import v2

if TYPE_CHECKING:
    from martlet.server.nsq.connection import ClientConnection

_MILLISECOND_NS = 1_000_000


def finish_run(connection: ClientConnection, command: v2.FinishRun) -> None:
    """FIN of many messages."""
    channel, consumer = connection.subscription()
    base = np.uint64(channel.queue.id_base)
    left = channel.finish_run(consumer, (command.ids - base).view(np.int64))
    if not len(left):
        return
    errors: list[bytes] = []
    for offset in left.tolist():
        try:
            channel.finish(consumer, offset)
        except NotInFlight as error:
            refusal = _not_done("FIN", channel.queue.message_id(offset), error)
            connection.server.events.refused(connection.remote_address, refusal)
            errors.append(refusal.frame())
    if errors:
        connection.reply(b"".join(errors))


def finish(connection: ClientConnection, command: v2.Finish) -> None:
    """FIN."""
    channel, consumer = connection.subscription()
    try:
        channel.finish(consumer, channel.queue.offset_of(command.id))
    except (NotInFlight, ValueError) as error:
        connection.refuse(_not_done("FIN", command.id, error))


def requeue(connection: ClientConnection, command: v2.RequeueCommand) -> None:
    """REQ."""
    channel, consumer = connection.subscription()
    delay_ns = command.delay_ms * _MILLISECOND_NS
    max_ns = connection.server.options.max_req_timeout_ns
    if delay_ns > max_ns:
        connection.server.events.shortened(connection.remote_address, delay_ns, max_ns)
        delay_ns = max_ns
    # Who has said that it takes no more, and has it delivered at once, gives back what it had.
    closing = connection.state == v2.ParserState.CLOSING and not delay_ns
    cause = Cause.GIVEN_BACK if closing else Cause.REQUEUED
    try:
        offset = channel.queue.offset_of(command.id)
        channel.requeue(consumer, offset, delay_ns, cause=cause)
    except (NotInFlight, ValueError) as error:
        connection.refuse(_not_done("REQ", command.id, error))


def touch(connection: ClientConnection, command: v2.Touch) -> None:
    """TOUCH."""
    channel, consumer = connection.subscription()
    try:
        channel.touch(consumer, channel.queue.offset_of(command.id))
    except (NotInFlight, ValueError) as error:
        connection.refuse(_not_done("TOUCH", command.id, error))


def started(connection: ClientConnection, command: v2.StartedCommand) -> None:
    """STARTED."""
    channel, consumer = connection.subscription()
    try:
        channel.started(consumer, channel.queue.offset_of(command.id))
    except (NotInFlight, ValueError):
        return  # Its time was over, as was that of all before it.


def _not_done(verb: str, id: bytes, error: Exception) -> v2.ProtocolError:
    """Why an answer to a message is refused; an id that is none stands for no message either."""
    text = str(error) if isinstance(error, NotInFlight) else "ID not in flight"
    shown = id.decode("utf-8", "surrogateescape")
    return v2.ProtocolError(f"E_{verb}_FAILED", f"{verb} {shown} failed {text}", fatal=False)
