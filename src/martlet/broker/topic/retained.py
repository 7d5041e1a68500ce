"""Queues whose messages the log keeps: topics, half messages, and delayed messages.

Hidden topics are internal messages of the broker, invisible to clients. They have no channels;
their subclass determines which messages are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Self, cast

from martlet.broker.journal.entries import TopicRecord
from martlet.broker.policy import TopicPolicy
from martlet.broker.queue.queue_log import MAX_BATCH_BYTES, QueueLog, Receipt

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from martlet.broker.channel.channel import Channel
    from martlet.broker.offset_ranges import Offsets, Stretch
    from martlet.broker.topic.topic import Topic
    from martlet.log.batch import LogBatch
    from martlet.native.raw_bodies import Bodies


class Retained(Protocol):
    """The messages of one queue of the log, and which of them are needed.

    A topic at one of its queues is one; hidden topics are others.
    """

    id: int
    name: str
    ephemeral: bool
    queue: QueueLog
    policy: TopicPolicy
    voids: list[Stretch]
    """Offsets that nothing needs any more, and that may be missing in the log; rising."""
    dropped_count: int
    """Messages dropped to free space before they were finished."""

    @property
    def target(self) -> Topic | None:
        """The topic at the queue that gets its messages; None where each names its own."""

    @property
    def at_queues(self) -> Sequence[Retained]:
        """The topic at each of its queues, by number."""

    @property
    def loss_label(self) -> str:
        """The label of lost messages that no channel had."""

    @property
    def lowest_needed(self) -> int:
        """The offset below which nothing is needed, now or later."""

    @property
    def floor(self) -> int:
        """The offset from which on every message counts as needed."""

    @property
    def passed(self) -> int:
        """The offset below which nothing reads a void any more."""

    @property
    def lowest_unread(self) -> int:
        """The lowest offset that is still to be read."""

    def pending_below(self, floor: int) -> npt.NDArray[np.uint64]:
        """Return the needed offsets below a floor, rising."""

    def unfinished(self, gone: Sequence[Stretch]) -> Mapping[Channel | None, Offsets]:
        """Return each channel's unfinished messages in some ranges, rising; None stands for no
        channel.
        """

    def drop_ranges(self, gone: Sequence[Stretch]) -> None:
        """Drop the messages of some deleted ranges."""

    def resume_delivery(self) -> None:
        """Deliver what may be delivered after that."""

    def stored(self, first: int, end: int, deferred: bool) -> None:
        """Handle a new batch, the offsets from `first` up to `end`."""

    def describe(self, channels: Sequence[Channel] | None = None) -> TopicRecord:
        """Describe it for the journal; in a snapshot with its end and some channels."""

    def journal_marks(self, *, certain: bool) -> bytes | None:
        """Pack the marks of done messages that no channel tracks: all, or those that are certain to
        be durable; None for none.
        """


class StagingContext(Protocol):
    """The broker's services for staging."""

    def staged(self, topic: Retained) -> LogBatch:
        """Return a new batch for a topic's messages; the former one is appended."""

    def commit_topic(self, topic: Retained, deliver_at_ns: int) -> Receipt:
        """Append the staged messages of a topic, for delivery at a time, 0 for at once."""


class StagedQueue:
    """A queue that messages are staged for; the base of implementations of `Retained`."""

    def __init__(self, context: StagingContext, queue: QueueLog) -> None:
        self._staging = context
        self.queue = queue

    def stage(
        self, bodies: Bodies, deliver_at_ns: int = 0, properties: Sequence[tuple[int, bytes]] = ()
    ) -> Receipt:
        """Stage messages, to be appended at the end of this turn; the bodies are copied.

        `properties` has the number, rising, and the packed properties of each message with any.
        """
        queue = self.queue
        batch = queue.batch
        if batch is None or deliver_at_ns or batch.end > MAX_BATCH_BYTES:
            batch = self._staging.staged(cast("Retained", self))
        if properties:
            batch.set_properties(batch.count, properties)
        batch.add_bodies(bodies)
        if deliver_at_ns:
            return self._staging.commit_topic(cast("Retained", self), deliver_at_ns)
        return queue.receipt

    @property
    def next_offset(self) -> int:
        """The offset of the next staged message."""
        batch = self.queue.batch
        return self.queue.end_offset + (0 if batch is None else batch.count)


class HiddenTopic(StagedQueue):
    """The base of hidden topics, each of them `Retained`, with names that no client's topic has."""

    def __init__(self, context: StagingContext, id: int, name: str, queue: QueueLog) -> None:
        super().__init__(context, queue)
        self.id = id
        self.name = name
        self.ephemeral = False
        self.policy = TopicPolicy()
        self.voids: list[Stretch] = []
        self.dropped_count = 0

    @property
    def at_queues(self) -> Sequence[Self]:
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
