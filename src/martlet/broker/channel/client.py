"""The client of a channel, as the core sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from martlet.broker.queue.consumer import MessageReceiver

if TYPE_CHECKING:
    from martlet.broker.channel.partitioned import PartitionedChannel
    from martlet.broker.channel.subscriber import Subscriber


class Client(MessageReceiver, Protocol):
    """The client behind a subscription, over a socket or in a test."""

    def channel_grown(self, channel: PartitionedChannel, consumer: Subscriber) -> None:
        """Handle that the channel has several queues from now on: acknowledge to `channel`, as
        `consumer`.
        """
