"""The part: a topic at one of its queues, as its channels see it.

::

    offsets   0 ....... 40 .... 50 .......... 90 ...... 120
    stored    | backlog  | void  |             |         |
                ^ where the first channel begins         ^ the queue's end
                                               ^ the limit, where the topic was paused

What channels get are the offsets below the limit, but for the voids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from martlet.broker.journal.entries import ChannelRecord
from martlet.broker.offset_ranges import apart_from
from martlet.broker.topic.stage import StagedQueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from martlet.broker.channel.channel import Channel
    from martlet.broker.offset_ranges import Offsets, Stretch
    from martlet.broker.queue.cursor import Cursor
    from martlet.broker.queue.queue_log import QueueLog
    from martlet.broker.topic.stage import StagingContext

_NO_OFFSETS = np.empty(0, np.uint64)


class SingleQueueTopic(StagedQueue):
    """What is stored in one queue of a topic, and how much of it concerns the channels there.

    Args:
        context: the broker.
        queue: the messages.
    """

    def __init__(self, context: StagingContext, queue: QueueLog) -> None:
        super().__init__(context, queue)
        self.number = queue.number
        self.channels: dict[str, Channel] = {}
        self.backlog_offset = queue.start_offset
        """Where the first channel will begin."""
        self.paused_at: int | None = None
        self.voids: list[tuple[int, int]] = []
        """Offsets that were emptied before any channel had them: none gets them. By offset."""

    @property
    def holders(self) -> list[Channel]:
        """The channels for which messages are kept: all but a reader's that keeps its own place and
        does not ask for it.
        """
        return [channel for channel in self.channels.values() if channel.policy.retain == "on"]

    @property
    def paused(self) -> bool:
        """Whether messages are kept from the channels."""
        return self.paused_at is not None

    @property
    def limit(self) -> int:
        """The offset up to which channels see the topic."""
        return self.queue.end_offset if self.paused_at is None else self.paused_at

    def limit_of(self, cursor: Cursor) -> int:
        """The offset up to which a cursor may go from where it is; it is taken over a void."""
        voids = self.voids
        number = len(voids)
        while number and cursor.next < voids[number - 1][1]:
            number -= 1
        for first, end in voids[number:]:
            if cursor.next < first:
                return min(first, self.limit)
            cursor.skip_to(end, self.deferred_from(end))
        return self.limit

    def stretches(self, first: int, end: int | None = None) -> Iterator[Stretch]:
        """What the channels get of the offsets from `first` on, up to `end` or the limit."""
        return apart_from(self.voids, first, self.limit if end is None else end)

    def count_from(self, offset: int) -> int:
        """How many messages the channels get of those from an offset on."""
        return sum(end - first for first, end in self.stretches(offset))

    def deferred_from(self, offset: int) -> int:
        """How many of them are deferred ones."""
        index = self.queue.index
        return sum(index.count_deferred(first, end) for first, end in self.stretches(offset))

    def describe_channel(self, channel: Channel) -> ChannelRecord:
        """The channel here as the journal writes it."""
        return ChannelRecord(
            id=channel.id,
            name=channel.name,
            paused=channel.paused,
            start=channel.cursor.lowest_needed,
            voids=tuple(channel.voids),
            limit=self.limit,
            policy=channel.policy.to_json() or None,
        )

    @property
    def message_bytes(self) -> int:
        """The bytes of all bodies stored since the start."""
        return self.queue.message_bytes

    @property
    def depth(self) -> int:
        """How many messages wait for a channel, or for the topic to go on."""
        waiting = 0 if self.holders else self.count_from(self.backlog_offset)
        hidden = self.stretches(self.limit, self.queue.end_offset)
        return waiting + sum(end - first for first, end in hidden)

    @property
    def lowest_needed(self) -> int:
        """Below this offset, no channel needs a message any more, and no new one will."""
        if not (holders := self.holders):
            return self.backlog_offset
        lowest = min(channel.cursor.lowest_needed for channel in holders)
        return min(lowest, self.limit)

    @property
    def floor(self) -> int:
        """From this offset on the channels, and new ones, need every message."""
        if not (holders := self.holders):
            return self.backlog_offset
        floors = [channel.cursor.window.floor for channel in holders]
        return min(*floors, self.limit)

    def stragglers_below(self, floor: int) -> npt.NDArray[np.uint64]:
        """The offsets below a floor that some channel has yet to finish, rising."""
        some = [
            np.fromiter(by_offset, np.uint64, len(by_offset))
            for channel in self.channels.values()
            if (by_offset := channel.cursor.stragglers.by_offset)
        ]
        if not some:
            return _NO_OFFSETS
        offsets = np.unique(np.concatenate(some))
        return offsets[: np.searchsorted(offsets, floor)]

    @property
    def lowest_unread(self) -> int:
        """The lowest offset that a channel, or the first one to be made, has yet to come to."""
        if not (holders := self.holders):
            return self.backlog_offset
        return min(self.limit, *(channel.cursor.next for channel in holders))

    def unfinished(self, gone: Sequence[Stretch]) -> dict[Channel | None, Offsets]:
        """What each channel has not finished of some stretches, rising; what waits for a first
        channel under None.
        """
        if holders := self.holders:
            return {channel: channel.unfinished(gone) for channel in holders}
        start = self.backlog_offset
        waiting = [np.empty(0, np.int64)]
        for first, end in gone:
            for begin, stop in self.stretches(max(first, start), max(end, start)):
                waiting.append(np.arange(begin, stop, dtype=np.int64))
        return {None: np.concatenate(waiting)}

    def give_up(self, gone: Sequence[Stretch]) -> None:
        """Some stretches have gone; the channels know it."""
        # A void behind what has gone goes with it.
        for first, end in sorted([*gone, *self.voids]):
            if not self.holders and first <= self.backlog_offset < end:
                self.backlog_offset = end
            if self.paused_at is not None and first <= self.paused_at < end:
                for channel in self.channels.values():
                    channel.counted_from += end - self.paused_at
                self.paused_at = end
        assert self.backlog_offset <= self.queue.end_offset
        assert self.paused_at is None or self.paused_at <= self.queue.end_offset

    def go_on(self) -> None:
        """Deliver to consumers that may have room since messages of theirs were given up."""
        for channel in list(self.channels.values()):
            channel.go_on()

    def journal_marks(self, *, certain: bool) -> None:
        """Nothing: its cursors say what is done with."""

    @property
    def passed(self) -> int:
        """Every channel has come to this offset, and none can begin, or go back, below it.

        The first one begins where the backlog does: that may be before what has gone since.
        """
        nexts = [channel.cursor.next for channel in self.holders]
        return min([self.queue.start_offset, *(nexts or [self.backlog_offset])])
