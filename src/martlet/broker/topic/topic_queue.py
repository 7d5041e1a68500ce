"""The topic queue: a topic at one of its queues, as its channels see it.

::

    offsets   0 ....... 40 .... 50 .......... 90 ...... 120
    stored    | backlog  | void  |             |         |
                ^ where the first channel begins         ^ the queue's end
                                               ^ the limit, where the topic was paused

Channels get the offsets below the limit, except the voids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from martlet.broker.journal.entries import ChannelRecord
from martlet.broker.offset_ranges import Offsets, Stretch, apart_from
from martlet.broker.topic.retained import StagedQueue, StagingContext

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from martlet.broker.channel.channel import Channel
    from martlet.broker.queue.cursor import Cursor
    from martlet.broker.queue.queue_log import QueueLog

_NO_OFFSETS = np.empty(0, np.uint64)


class SingleQueueTopic(StagedQueue):
    """The messages of one queue of a topic, and which of them its channels need."""

    def __init__(self, context: StagingContext, queue: QueueLog) -> None:
        super().__init__(context, queue)
        self.number = queue.number
        self.channels: dict[str, Channel] = {}
        self.backlog_offset = queue.start_offset
        """The start of the first channel."""
        self.paused_at: int | None = None
        self.voids: list[tuple[int, int]] = []
        """Offsets that were emptied before any channel read them: no channel gets them. Rising."""

    @property
    def holders(self) -> list[Channel]:
        """The channels for which messages are kept: all except followers without ``retain``."""
        return [channel for channel in self.channels.values() if channel.policy.retain == "on"]

    @property
    def paused(self) -> bool:
        """Whether the topic is paused."""
        return self.paused_at is not None

    @property
    def limit(self) -> int:
        """The offset up to which channels see the topic."""
        end = self.queue.visible_end
        return end if self.paused_at is None else min(end, self.paused_at)

    def limit_of(self, cursor: Cursor) -> int:
        """Return the offset up to which a cursor may move; moves it over a void first."""
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
        """Return the ranges that channels get from `first` up to `end`, or the limit."""
        return apart_from(self.voids, first, self.limit if end is None else end)

    def count_from(self, offset: int) -> int:
        """Count the messages that channels get from an offset on."""
        return sum(end - first for first, end in self.stretches(offset))

    def deferred_from(self, offset: int) -> int:
        """Count the deferred ones of them."""
        index = self.queue.index
        return sum(index.count_deferred(first, end) for first, end in self.stretches(offset))

    def describe_channel(self, channel: Channel) -> ChannelRecord:
        """Describe the channel at this queue for the journal."""
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
        """The size of all visible bodies stored since the start."""
        queue = self.queue
        hidden_bytes = 0 if queue.visible_end == queue.end_offset else queue.hidden_bytes()
        return queue.message_bytes - hidden_bytes

    @property
    def depth(self) -> int:
        """The number of messages waiting for a first channel, or for the topic to be unpaused."""
        waiting = 0 if self.holders else self.count_from(self.backlog_offset)
        hidden = self.stretches(self.limit, self.queue.visible_end)
        return waiting + sum(end - first for first, end in hidden)

    @property
    def lowest_needed(self) -> int:
        """The offset below which no channel needs a message, and no new one will."""
        if not (holders := self.holders):
            return self.backlog_offset
        lowest = min(channel.cursor.lowest_needed for channel in holders)
        return min(lowest, self.limit)

    @property
    def floor(self) -> int:
        """The offset from which on the channels, and new ones, need every message."""
        if not (holders := self.holders):
            return self.backlog_offset
        floors = [channel.cursor.window.floor for channel in holders]
        return min(*floors, self.limit)

    def pending_below(self, floor: int) -> npt.NDArray[np.uint64]:
        """Return the unfinished offsets of any channel below a floor, rising."""
        some = [
            np.fromiter(by_offset, np.uint64, len(by_offset))
            for channel in self.channels.values()
            if (by_offset := channel.cursor.pending.by_offset)
        ]
        if not some:
            return _NO_OFFSETS
        offsets = np.unique(np.concatenate(some))
        return offsets[: np.searchsorted(offsets, floor)]

    @property
    def lowest_unread(self) -> int:
        """The lowest offset that a channel, or the first one, has yet to read."""
        if not (holders := self.holders):
            return self.backlog_offset
        return min(self.limit, *(channel.cursor.next for channel in holders))

    def unfinished(self, gone: Sequence[Stretch]) -> dict[Channel | None, Offsets]:
        """Return each channel's unfinished messages in some ranges, rising; those that wait for a
        first channel under None.
        """
        if holders := self.holders:
            return {channel: channel.unfinished(gone) for channel in holders}
        start = self.backlog_offset
        waiting = [np.empty(0, np.int64)]
        for first, end in gone:
            for begin, stop in self.stretches(max(first, start), max(end, start)):
                waiting.append(np.arange(begin, stop, dtype=np.int64))
        return {None: np.concatenate(waiting)}

    def drop_ranges(self, gone: Sequence[Stretch]) -> None:
        """Drop the messages of some deleted ranges; the channels know of it already."""
        # Sorted with the voids: one that touches a deleted range is skipped with it.
        for first, end in sorted([*gone, *self.voids]):
            if not self.holders and first <= self.backlog_offset < end:
                self.backlog_offset = end
            if self.paused_at is not None and first <= self.paused_at < end:
                for channel in self.channels.values():
                    channel.counted_from += end - self.paused_at
                self.paused_at = end
        assert self.backlog_offset <= self.queue.end_offset
        assert self.paused_at is None or self.paused_at <= self.queue.end_offset

    def resume_delivery(self) -> None:
        """Deliver to consumers that may have capacity since some of their messages were dropped."""
        for channel in list(self.channels.values()):
            channel.resume_delivery()

    def journal_marks(self, *, certain: bool) -> None:
        """Return nothing: its cursors record which messages are done."""

    @property
    def passed(self) -> int:
        """The offset that every channel has reached, and below which none can start or go back."""
        nexts = [channel.cursor.next for channel in self.holders]
        return min([self.queue.start_offset, *(nexts or [self.backlog_offset])])
