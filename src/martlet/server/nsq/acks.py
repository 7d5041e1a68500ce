"""The acknowledgement commands of a consumer: FIN, REQ, TOUCH and STARTED.

An id minus the first queue's base is an offset or, in a topic of several queues, a position (see
`martlet.broker.channel.partitioned`).

A failed command is answered with an error that names the message and does not end the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from martlet.broker.errors import NotInFlight
from martlet.broker.retry import Cause
from martlet.protocol.nsq import v2
from martlet.text import MILLISECOND_NS

if TYPE_CHECKING:
    from martlet.server.nsq.connection import ClientConnection
    from martlet.server.observability.event_log import EventLog


class AckCommands:
    """FIN, REQ, TOUCH and STARTED."""

    def __init__(self, max_requeue_ns: int, events: EventLog) -> None:
        self._max_requeue_ns = max_requeue_ns
        self._events = events

    def finish_run(self, connection: ClientConnection, command: v2.FinishRun) -> None:
        """Finish many messages."""
        subscription = connection.subscription
        assert subscription is not None
        channel, consumer = subscription.channel, subscription.consumer
        base = np.uint64(channel.queue.id_base)
        subscription.cork()
        try:
            left = channel.finish_run(consumer, (command.ids - base).view(np.int64))
        finally:
            subscription.uncork()
        if not len(left):
            return
        errors: list[bytes] = []
        for offset in left.tolist():
            try:
                channel.finish(consumer, offset)
            except NotInFlight as error:
                refusal = _failed("FIN", channel.queue.message_id(offset), error)
                self._events.refused(connection.remote_address, refusal)
                errors.append(refusal.frame())
        if errors:
            connection.replies.reply(b"".join(errors))

    def finish(self, connection: ClientConnection, command: v2.Finish) -> None:
        """FIN."""
        channel, consumer = connection.subscribed()
        try:
            channel.finish(consumer, channel.queue.offset_of(command.id))
        except (NotInFlight, ValueError) as error:
            connection.refuse(_failed("FIN", command.id, error))

    def requeue(self, connection: ClientConnection, command: v2.RequeueCommand) -> None:
        """REQ."""
        channel, consumer = connection.subscribed()
        delay_ns = command.delay_ms * MILLISECOND_NS
        max_ns = self._max_requeue_ns
        if delay_ns > max_ns:
            self._events.shortened(connection.remote_address, delay_ns, max_ns)
            delay_ns = max_ns
        # A closing client that requeues without delay returns messages that it has prefetched.
        closing = connection.state == v2.ParserState.CLOSING and not delay_ns
        cause = Cause.GIVEN_BACK if closing else Cause.REQUEUED
        try:
            offset = channel.queue.offset_of(command.id)
            channel.requeue(consumer, offset, delay_ns, cause=cause)
        except (NotInFlight, ValueError) as error:
            connection.refuse(_failed("REQ", command.id, error))

    def touch(self, connection: ClientConnection, command: v2.Touch) -> None:
        """TOUCH."""
        channel, consumer = connection.subscribed()
        try:
            channel.touch(consumer, channel.queue.offset_of(command.id))
        except (NotInFlight, ValueError) as error:
            connection.refuse(_failed("TOUCH", command.id, error))

    def started(self, connection: ClientConnection, command: v2.StartedCommand) -> None:
        """STARTED."""
        channel, consumer = connection.subscribed()
        try:
            channel.started(consumer, channel.queue.offset_of(command.id))
        except (NotInFlight, ValueError):
            return  # its lease is over, and so are those of all before it


def _failed(verb: str, message_id: bytes, error: Exception) -> v2.ProtocolError:
    """Return the refusal of a message's command; a malformed id is not in flight either."""
    text = str(error) if isinstance(error, NotInFlight) else "ID not in flight"
    shown = message_id.decode("utf-8", "surrogateescape")
    return v2.ProtocolError(f"E_{verb}_FAILED", f"{verb} {shown} failed {text}", fatal=False)
