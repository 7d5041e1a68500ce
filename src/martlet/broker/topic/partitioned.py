"""A topic over all its queues (see `martlet.broker.channel.partitioned`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.channel.partitioned import OverQueues, PartitionedChannel

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.topic.topic import Topic


class PartitionedTopic:
    """A topic over all its queues, for statistics.

    Args:
        parts: the topic at each queue, by number.
    """

    def __init__(self, parts: list[Topic]) -> None:
        self.parts = parts
        self.id = parts[0].id
        self.name = parts[0].name

    @property
    def channels(self) -> dict[str, Channel | PartitionedChannel]:
        """Its channels."""
        return {name: channel.all_queues for name, channel in self.parts[0].channels.items()}

    @property
    def paused(self) -> bool:
        """Whether the topic is paused."""
        return self.parts[0].paused

    channel_count = OverQueues(max)
    depth = OverQueues()
    message_count = OverQueues()
    message_bytes = OverQueues()
    dropped_count = OverQueues()
    refused_count = OverQueues()
