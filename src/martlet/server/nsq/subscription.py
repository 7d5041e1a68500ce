"""The subscription of a client: sends it the messages of its channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from martlet.protocol.nsq import v2

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.broker.channel.subscriber import Subscriber
    from martlet.broker.topic.topic import Topic
    from martlet.server.nsq.connection import ClientConnection

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
