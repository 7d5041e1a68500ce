"""A topic over all its queues (see `martlet.broker.channel.partitioned`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.partitioned import PartitionedChannel
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

    @property
    def depth(self) -> int:
        """The number of messages waiting for a first channel, or for the topic to be unpaused."""
        return sum(part.depth for part in self.parts)

    @property
    def message_count(self) -> int:
        """Messages stored since the start."""
        return sum(part.message_count for part in self.parts)

    @property
    def message_bytes(self) -> int:
        """The bytes of their bodies."""
        return sum(part.message_bytes for part in self.parts)

    @property
    def dropped_count(self) -> int:
        """Messages dropped to free space before every channel had finished them."""
        return sum(part.dropped_count for part in self.parts)

    @property
    def refused_count(self) -> int:
        """Messages whose publish was refused."""
        return sum(part.refused_count for part in self.parts)
