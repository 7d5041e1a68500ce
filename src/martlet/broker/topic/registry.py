"""All topics of a broker, for the packages above topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from martlet.broker.topic.topic import TopicContext

if TYPE_CHECKING:
    from martlet.broker.topic.retained import Retained
    from martlet.broker.topic.topic import Topic
    from martlet.log.batch import LogBatch


class TopicRegistry(TopicContext, Protocol):
    """The broker's services to find topics and to store messages in them."""

    by_id: dict[int, Retained]
    """By number in the log: all topics at all their queues, and the hidden ones."""
    queues: dict[int, Topic]
    """By number in the log: all topics at all their queues."""
    dropped_names: list[str]
    """Files to delete once the next checkpoint is durable."""
    relocated_position: int
    """The log position behind the last message that was moved or appended again."""
    stored_count: int
    """Messages stored since the start."""

    def topic(self, name: str) -> Topic:
        """Return the topic of that name, created if it is new. Raises BrokerError and
        WritesRefused.
        """

    def find_topic(self, name: str) -> Topic:
        """Return the topic of that name. Raises NotFound."""

    def adopt(self, topic: Topic) -> None:
        """Add a topic at one of its queues."""

    def stored(self, topic: Retained, first: int, deferred: bool) -> None:
        """Deliver a batch from offset `first` on, the last of its queue, once it is confirmed."""

    def commit(self) -> None:
        """Append everything staged and deliver it to the channels."""

    def lend_scratch(self) -> LogBatch:
        """Lend a scratch batch; return it by `take_scratch`."""

    def take_scratch(self, batch: LogBatch) -> None:
        """Take back a batch that was lent."""

    def stored_at_ns(self) -> int:
        """Return the timestamp of messages stored now, never before that of an earlier one."""
