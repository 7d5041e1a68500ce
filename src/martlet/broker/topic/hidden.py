"""Hidden topics: messages of the broker's own in the log, of which clients see nothing.

They have no channels; whoever keeps them says how much of them is needed.
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
    """What all hidden topics have in common; each of them is `Retained`.

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
        """It has one queue."""
        return (self,)

    def go_on(self) -> None:
        """Nobody waits for what was given up."""

    def record(self, backlog_offset: int, channels: Sequence[Channel] | None) -> TopicRecord:
        """It as the journal writes it; in a snapshot with its end, and no channels."""
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
