"""What keeps messages in the log: topics, half messages, and delayed messages until their time."""

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
    """Messages in one queue of the log, and how much of them is needed.

    A topic at one of its queues is one; others are hidden, as no client can name them
    (`martlet.broker.topic.hidden`).
    """

    id: int
    name: str
    ephemeral: bool
    queue: QueueLog
    policy: TopicPolicy
    voids: list[Stretch]
    """Offsets that nothing needs any more, and that may be missing in the log. By offset."""
    dropped_count: int
    """Messages that were given up, to make room, before they were finished."""

    @property
    def target(self) -> Topic | None:
        """The topic at the queue that its messages are for; None where each says that itself."""

    @property
    def parts(self) -> Sequence[Retained]:
        """It at each of its queues, by number."""

    @property
    def loss_label(self) -> str:
        """What lost messages are called that no channel had."""

    @property
    def lowest_needed(self) -> int:
        """Below this offset nothing is needed, nor will be."""

    @property
    def floor(self) -> int:
        """From this offset on, every message counts as needed."""

    @property
    def passed(self) -> int:
        """Nothing comes to a void below this offset any more."""

    @property
    def lowest_unread(self) -> int:
        """The lowest offset that something has yet to come to."""

    def stragglers_below(self, floor: int) -> npt.NDArray[np.uint64]:
        """The offsets below a floor that are needed, rising."""

    def unfinished(self, gone: Sequence[Stretch]) -> Mapping[Channel | None, Offsets]:
        """What each channel has not finished of some stretches, rising; what no channel has under
        None.
        """

    def give_up(self, gone: Sequence[Stretch]) -> None:
        """Some stretches have gone: need nothing of them."""

    def go_on(self) -> None:
        """Deliver what may be delivered after that."""

    def stored(self, first: int, deferred: bool) -> None:
        """A batch was appended that begins at offset `first`."""

    def describe(self, channels: Sequence[Channel] | None = None) -> TopicRecord:
        """It as the journal writes it; in a snapshot with its end and some channels."""

    def journal_marks(self, *, certain: bool) -> bytes | None:
        """What a journal entry says of messages that are done with, which are no channel's: all, or
        what is certain to be; None for nothing.
        """
