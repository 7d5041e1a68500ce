"""Queues whose messages the log keeps: topics, half messages, and delayed messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from martlet.broker.channel.channel import Channel
    from martlet.broker.journal.entries import TopicRecord
    from martlet.broker.offset_ranges import Offsets, Stretch
    from martlet.broker.policy import TopicPolicy
    from martlet.broker.queue.queue_log import QueueLog
    from martlet.broker.topic.topic import Topic


class Retained(Protocol):
    """The messages of one queue of the log, and which of them are needed.

    A topic at one of its queues is one; hidden topics (`martlet.broker.topic.hidden`) are others.
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
    def parts(self) -> Sequence[Retained]:
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
        """Return the unfinished messages of each channel in some ranges, rising; those without a
        channel under None.
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
        """Pack the marks of messages that are done, if not tracked by channels: all, or only those
        that are certain to be durable; None for none.
        """
