"""Hidden topics: internal messages of the broker in the log, invisible to clients.

They have no channels; their subclass determines which messages are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from martlet.broker.journal.entries import TopicRecord
from martlet.broker.policy import TopicPolicy
from martlet.broker.topic.stage import StagedQueue, StagingContext

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.offset_ranges import Stretch
    from martlet.broker.queue.queue_log import QueueLog


class HiddenTopic(StagedQueue):
    """The base of hidden topics; each of them is `Retained`.

    Args:
        context: the broker.
        id: its number in the log.
        name: its name, which no topic of a client can have.
        queue: its messages.
    """

    def __init__(self, context: StagingContext, id: int, name: str, queue: QueueLog) -> None:
        super().__init__(context, queue)
        self.id = id
        self.name = name
        self.ephemeral = False
        self.policy = TopicPolicy()
        self.voids: list[Stretch] = []
        self.dropped_count = 0

    @property
    def parts(self) -> Sequence[Self]:
        """Itself, since it has one queue."""
        return (self,)

    def resume_delivery(self) -> None:
        """Do nothing: no consumer waits for dropped messages."""

    def record(self, backlog_offset: int, channels: Sequence[Channel] | None) -> TopicRecord:
        """Describe it for the journal; in a snapshot with its end, and no channels."""
        return TopicRecord(
            id=self.id,
            name=self.name,
            queue=0,
            of=0,
            id_base=self.queue.id_base,
            paused_at=None,
            backlog_offset=backlog_offset,
            voids=tuple(self.voids),
            policy=None,
            end_offset=None if channels is None else self.queue.end_offset,
            channels=None if channels is None else (),
        )
