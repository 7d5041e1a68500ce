"""All topics of a broker, as the parts that stand above topics see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from martlet.broker.topic.topic import TopicContext

if TYPE_CHECKING:
    from martlet.broker.topic.retained import Retained
    from martlet.broker.topic.topic import Topic
    from martlet.log.batch import LogBatch


class TopicRegistry(TopicContext, Protocol):
    """What is needed of a broker to find topics and to store messages in them."""

    by_id: dict[int, Retained]
    """By number in the log: all topics at all their queues, and the hidden ones."""
    queues: dict[int, Topic]
    """By number in the log: all topics at all their queues."""
    dropped_names: list[str]
    """Files that are not needed once the next checkpoint is durable."""
    moved_to: int
    """The log's position behind what was lately appended in place of older messages."""
    stored_count: int
    """Messages stored since the start."""

    def topic(self, name: str) -> Topic:
        """The topic of that name, made if it is new. Raises BrokerError and WritesRefused."""

    def find_topic(self, name: str) -> Topic:
        """The topic of that name. Raises NotFound."""

    def adopt(self, topic: Topic) -> None:
        """Put a topic in place, at one of its queues."""

    def commit(self) -> None:
        """Append everything that is staged and hand it to the channels."""

    def lend_scratch(self) -> LogBatch:
        """A batch to lay something out in; it is to be given back."""

    def take_scratch(self, batch: LogBatch) -> None:
        """Take a batch back."""

    def stored_at_ns(self) -> int:
        """When what is stored now is stored, which is never before anything earlier."""
