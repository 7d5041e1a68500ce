"""Eviction: on a full disk delete the oldest segment, even if channels need it, if so configured.

With ``--disk-full-policy=drop-oldest`` a full log frees space by itself: when a batch needs another
segment, the broker deletes one. It is one that no channel needs, if there is one; otherwise the
oldest, and its unfinished messages are dropped from all channels at once::

    segments    | 1: deleted  | 2         | 3       | 4: written |
    channel a          next -->|  next                              skips the deleted ones
    channel b                             | next                    had passed it: loses nothing
    pending        x    x          x                                the first two are dropped

Unlike other retirements this cannot wait for a checkpoint. So a segment is deleted only if a later
one is durable that begins with the full journal (`CommitLog.is_releasable`), and dropped messages
have no journal entry: their absence says it. A start drops in the same way all needed messages that
are in no segment (`settle`). So a crash at any moment finds both the segment and its messages, or
neither.

History is deleted first: a segment that no channel needs before one that some channel does. As a
rule a checkpoint deletes history, by its limits and the disk usage, but publishers may be faster.
So under each policy a segment that held only history when the last checkpoint was made durable, and
still does, may be deleted before a publish is refused (`HistoryReclaimer`): the checkpoint does not
need it, and later journal entries are behind it.

A gap among the messages that a channel has yet to read is possible, since cleaning moves old
batches to newer segments. Such a gap becomes one of the topic's voids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from martlet.broker.channel.channel import Channel
from martlet.broker.offset_ranges import Offsets, Stretch, distinct, inside, merged, with_stretch
from martlet.broker.retention.checkpoint import count_needs, forget, needs, with_history
from martlet.broker.retention.history import RetentionContext
from martlet.broker.topic.retained import Retained
from martlet.log.commit_log import CommitLog
from martlet.log.index import Rows
from martlet.log.retention import Need, SegmentLocator, needed_bytes
from martlet.log.storage import Segment, StorageFull

_ROWS_AT_ONCE = 1 << 14


class HistoryReclaimer:
    """Frees space in a broker's log by deleting history only; sets the log's `on_full`."""

    def __init__(self, broker: RetentionContext) -> None:
        self._broker = broker
        self.evicted_count = 0
        """The number of segments deleted although channels needed them."""
        broker.log.on_full = self.make_room

    def make_room(self) -> bool:
        """Delete the oldest segment that holds only history. Returns False where there is none."""
        broker = self._broker
        log = broker.log
        if not broker.history_bases:
            return False
        needed = needed_bytes(log.segments, needs(broker))
        for segment, bytes_needed in zip(log.segments, needed, strict=True):
            is_history = segment.base in broker.history_bases and not bytes_needed
            if is_history and log.is_releasable(segment):
                log.retire(segment)
                forget(broker, segment)
                return True
        return False

    def reclaim(self) -> None:
        """Free space when a journal write was refused: no publish may come to trigger it."""
        log = self._broker.log
        log.refresh_full()
        with suppress(StorageFull):
            while log.full is not None and log.failed is None and self.make_room():
                log.refresh_full()


@dataclass
class EvictionLoss:
    """The messages that one topic loses."""

    topic: Retained
    gone: Sequence[Stretch]
    """The deleted ranges of offsets, finished ones included."""
    unfinished: Mapping[Channel | None, Offsets] = field(init=False)
    """What each channel had not finished of them, rising; None has what waited for a first one."""

    def __post_init__(self) -> None:
        self.unfinished = self.topic.unfinished(self.gone)

    @cached_property
    def offsets(self) -> Offsets:
        """The offsets of all messages lost to any channel."""
        return distinct(list(self.unfinished.values()))

    def name_of(self, channel: Channel | None) -> str:
        """Return the label of messages lost to a channel, or to none."""
        topic = self.topic
        return topic.loss_label if channel is None else f"{topic.name}/{channel.name}"

    def drop_unfinished(self) -> None:
        """Drop the messages from all channels."""
        topic = self.topic
        topic.dropped_count += len(self.offsets)
        for channel, offsets in self.unfinished.items():
            if channel is not None:
                channel.dropped_count += len(offsets)
                channel.drop_ranges(self.gone)
        topic.drop_ranges(self.gone)

    def add_voids(self) -> None:
        """Make voids of the deleted messages that channels would still read: channels before them
        and, if the index no longer has them, channels that are set back.
        """
        topic = self.topic
        start, lowest = topic.queue.start_offset, topic.lowest_unread
        for first, end in self.gone:
            if lowest < first or start < end:
                topic.voids = with_stretch(topic.voids, first, end)


@dataclass
class Evicted:
    """A segment that was deleted although it was needed, and the losses."""

    segment_bytes: int
    losses: list[EvictionLoss]


class Eviction(HistoryReclaimer):
    """Frees space in a broker's log, if necessary of messages that channels need.

    Args:
        flush: makes the log durable at once and reports it to the log; returns False on failure.
        on_evicted: called with each segment deleted with unfinished messages.
    """

    def __init__(
        self,
        broker: RetentionContext,
        flush: Callable[[], bool],
        on_evicted: Callable[[Evicted], None] = lambda evicted: None,
    ) -> None:
        super().__init__(broker)
        self._flush = flush
        self._on_evicted = on_evicted

    def make_room(self) -> bool:
        """Delete the segment that costs least. Returns False where none may be deleted: after
        damage by a power cut perhaps until the next checkpoint.
        """
        broker = self._broker
        log = broker.log
        for _ in count_needs(broker):
            pass
        needed_by = needs(broker)
        if len(log.segments) == 1 and log.is_spent:
            log.leave_segment()
        closed = log.closed_segments
        unneeded = [s for s in _without(log, needed_by) if s in closed]
        unkept = [s for s in _without(log, with_history(needed_by)) if s in closed]
        victim = next(iter(unkept or unneeded or closed), None)
        if victim is None or not (self._may_go(victim) or (self._flush() and self._may_go(victim))):
            return False
        losses = [] if unneeded else self._losses(victim, needed_by)
        for loss in losses:
            loss.drop_unfinished()
        log.retire(victim)
        broker.not_cleanable.discard(victim.base)
        for loss in losses:
            loss.add_voids()
        forget(broker, victim)
        if any(len(loss.offsets) for loss in losses):
            self.evicted_count += 1
            self._on_evicted(Evicted(victim.capacity, losses))
        for loss in losses:
            loss.topic.resume_delivery()
        return True

    def _may_go(self, victim: Segment) -> bool:
        """Whether, after a power cut, everything that the segment journaled, and all messages moved
        from it to another topic, would be found elsewhere.
        """
        log = self._broker.log
        return log.durable_position >= self._broker.relocated_position and log.is_releasable(victim)

    def _losses(self, segment: Segment, needed_by: list[Need]) -> list[EvictionLoss]:
        losses = []
        for topic, need in zip(self._broker.by_id.values(), needed_by, strict=True):
            rows = need.rows_in(segment)
            if len(rows):
                losses.append(EvictionLoss(topic, _stretches(rows)))
        return losses


def _without(log: CommitLog, needed_by: list[Need]) -> list[Segment]:
    """Return the segments of which nothing is needed."""
    needed = needed_bytes(log.segments, needed_by)
    return [segment for segment, count in zip(log.segments, needed, strict=True) if not count]


def _stretches(rows: Rows) -> list[Stretch]:
    firsts = rows["first_offset"].astype(np.int64)
    return merged(firsts, firsts + rows["count"])


def settle(broker: RetentionContext) -> list[EvictionLoss]:
    """Drop needed messages that are stored nowhere, after a start. Returns the losses."""
    locator = SegmentLocator(broker.log.segments)
    losses = []
    for topic in broker.by_id.values():
        gone = _gone(topic, locator)
        if gone:
            loss = EvictionLoss(topic, gone)
            loss.drop_unfinished()
            loss.add_voids()
            topic.dropped_count = 0
            if topic.target is not None:
                topic.target.dropped_count = 0
            for channel in loss.unfinished:
                if channel is not None:
                    channel.dropped_count = 0
            if len(loss.offsets):
                losses.append(loss)
    return losses


def _gone(topic: Retained, locator: SegmentLocator) -> list[Stretch]:
    """Return the needed messages of a topic that are stored nowhere."""
    index, floor = topic.queue.index, topic.floor
    unfinished_below = topic.pending_below(floor)
    held = inside(
        _stored(index.holding(unfinished_below)[1], locator), unfinished_below.astype(np.int64)
    )
    missing = np.setdiff1d(unfinished_below.astype(np.int64), held)
    gone = merged(missing, missing + 1)
    for number in range(index.find(floor), index.end_row, _ROWS_AT_ONCE):
        for first, end in _stored(index.array(number, number + _ROWS_AT_ONCE), locator):
            if floor < first:
                gone.append((floor, first))
            floor = end
    if floor < topic.queue.end_offset:
        gone.append((floor, topic.queue.end_offset))
    return gone


def _stored(rows: Rows, locator: SegmentLocator) -> list[Stretch]:
    return _stretches(rows[locator.find(rows["position"]) >= 0])
