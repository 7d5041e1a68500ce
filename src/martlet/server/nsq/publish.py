"""Publishing: PUB, MPUB and DPUB, staged for the end of the turn, and the PUB that comes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.errors import WritesRefused
from martlet.durations import MILLISECOND_NS
from martlet.protocol.nsq import v2

if TYPE_CHECKING:
    from martlet.server.nsq.connection import ClientConnection


def publish_lone(connection: ClientConnection, nbytes: int) -> bool:
    """Append and answer a PUB that came by itself at once, instead of at the turn's end.

    Returns False where what has come goes the usual way: it is something else, or has to wait.
    """
    server = connection.server
    if connection.owed or connection.turns.crowded or not server.answers_at_once:
        return False
    lone = connection.decoder.lone_publish(server.receive_buffer, nbytes)
    if lone is None:
        return False
    name, start = lone
    topic = connection.broker.topics.get(name)
    if topic is None:
        return False
    if topic.several:
        topic = topic.next_part()
    connection.heard = True
    try:
        connection.broker.append(topic, server.receive_view[start:nbytes])
    except WritesRefused as error:
        connection.refuse(v2.ProtocolError("E_PUB_FAILED", f"PUB failed {error}"))
        return True
    counters = connection.message_counters
    counters[name] = counters.get(name, 0) + 1
    connection.transport.write(v2.OK)
    return True


def publish(connection: ClientConnection, command: v2.PublishCommand) -> None:
    """Stage messages; they are answered once they are committed, or flushed."""
    if connection.guard is not None:
        connection.guard.check(command.verb, command.topic, "")
    deliver_at_ns = 0
    if command.delay_ms:
        deliver_at_ns = connection.broker.clock() + command.delay_ms * MILLISECOND_NS
    try:
        topic = connection.broker.topic(command.topic)
        if topic.several:
            topic = topic.next_part()
        if deliver_at_ns:
            receipt = connection.broker.delays.defer(topic, command.bodies, deliver_at_ns)
        else:
            receipt = topic.stage(command.bodies)
    except WritesRefused as error:
        raise v2.ProtocolError(
            f"E_{command.verb}_FAILED", f"{command.verb} failed {error}"
        ) from error
    counters = connection.message_counters
    counters[command.topic] = counters.get(command.topic, 0) + len(command.bodies)
    connection.owed.append((receipt, command.verb, command.commands))
    connection.server.staged(connection)
