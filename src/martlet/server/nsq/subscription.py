"""The subscription of a client: the way of messages to it, and its FIN, REQ, TOUCH and STARTED.

An id minus the first queue's base is an offset or, in a topic of several queues, a position (see
`martlet.broker.channel.partitioned`).

A failed acknowledgement is answered with an error that names the message and does not end the
connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from martlet.broker.errors import NotInFlight
from martlet.broker.retry import Cause
from martlet.protocol.nsq import v2
from martlet.text import MILLISECOND_NS

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.broker.channel.subscriber import Subscriber
    from martlet.broker.topic.topic import Topic
    from martlet.server.nsq.connection import ClientConnection
    from martlet.server.observability.event_log import EventLog

_MAX_CORKED_BYTES = 1 << 16


class ClientSubscription:
    """A client as the core sees it: the client of a channel."""

    consumer: Any
    """The channel's consumer, or a subscriber if the channel has several queues."""

    def __init__(
        self, connection: ClientConnection, topic: Topic, channel: Channel | PartitionedChannel
    ) -> None:
        self.connection = connection
        self.output = connection.output
        """Takes the messages."""
        self.topic = topic
        self.channel = channel
        self._corked: list[memoryview | bytes | bytearray] | None = None
        """Messages that are sent together, at the end of a run of FINs."""
        self._corked_bytes = 0

    @property
    def trace_name(self) -> str:
        """The client's name in traces."""
        return f"{self.connection.identity.client_id} {self.connection.remote_address}"

    def end(self, broker: BrokerCore) -> None:
        """Requeue the messages in flight of a client that has disconnected."""
        self.channel.remove_consumer(self.consumer)
        broker.left(self.topic, self.channel)

    # messages

    def send_messages(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        """Send messages to the client."""
        if self._corked is not None:
            self._corked += frames
            self._corked_bytes += sum(map(len, frames))
            if self._corked_bytes > _MAX_CORKED_BYTES:
                self.uncork()
                self.cork()
        elif len(frames) == 1:
            self.output.transport.write(frames[0])
        else:
            self.output.transport.writelines(frames)

    def cork(self) -> None:
        """Collect messages until `uncork`: each queue of a topic delivers by itself, and a write
        for each costs more than the rest.
        """
        assert self._corked is None
        self._corked, self._corked_bytes = [], 0

    def uncork(self) -> None:
        """Send what was collected."""
        corked, self._corked = self._corked, None
        assert corked is not None
        if corked:
            self.output.transport.writelines(corked)

    # what the core notifies of

    def channel_closed(self) -> None:
        """Close after the channel was deleted."""
        self.output.transport.close()

    def channel_grown(self, channel: PartitionedChannel, consumer: Subscriber) -> None:
        """Consume all queues of a channel that now has several."""
        self.channel, self.consumer = channel, consumer

    def failures_counted(self, max_attempts: int) -> None:
        """Notify the client whether the channel now counts failures."""
        self.connection.replies.reply(v2.channel_frame(max_attempts=max_attempts))

    def recalled(self, queue: int) -> None:
        """Notify the client that all messages of a queue sent until now are redelivered."""
        self.send_messages((v2.channel_frame(recalled=queue),))


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
