"""History: messages that a topic keeps for replay although every channel has finished them.

::

    offsets     0 ....... 40 ......... 90 ........ 150 ..... 180
    stored       | expired | history    | needed     | fresh   |
                           first row    floor

A topic keeps the messages stored within a time, up to a number of bytes, the newest. Unfinished
messages are kept in addition, regardless of the limits. The limits determine which segments history
holds. So older messages stay readable until nothing else holds their segment; batches are deleted
only with their segment.

The first kept row only rises while the limits are unchanged. It is never before a deleted row,
since a channel can be set back only as far as everything is stored. So a gap that a power cut has
left ends the history before it.

History never blocks new messages. The fuller the disk, the more of it is deleted:

====================  ==============================================================================
above `clean` %       what is past its limits goes at once: what is left of the history around it is
                      copied for that, where else it would be waited for (`martlet.log.retention`)
above `force` %       history within its limits goes too, the oldest segment first
no room for a segment the same, at once, before a publisher is refused (`HistoryReclaimer`)
====================  ==============================================================================

Unfinished messages are no history; none of this affects them. Messages that were emptied from a
channel are history for a while, so that it can be undone (`martlet.broker.topic.rewind`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self

from martlet.broker.context import TopicSettings
from martlet.broker.journal.entries import IndexRecord, Stretches
from martlet.broker.policy import TopicPolicy
from martlet.broker.queue.queue_log import KeptHistory, QueueLog
from martlet.broker.topic.retained import Retained
from martlet.broker.topic.topic import TopicRegistry
from martlet.log.checkpoint_file import JournalEntry
from martlet.log.retention import NeedCounter, SegmentLocator
from martlet.log.storage import DiskUsage
from martlet.names import is_system

USUAL_TIME_NS = 72 * 3600 * 10**9
"""The time for which history is kept if only its bytes are limited."""
_MILLISECOND_NS = 1_000_000


class Retention(NamedTuple):
    """The limits of history."""

    time_ns: int = 0
    """The maximum age; 0 for no history."""
    bytes: int = 0
    """The maximum size, of the newest messages; 0 for no limit."""

    @classmethod
    def from_flags(cls, time_ns: int, bytes: int) -> Self:
        """Make the limits from flags: with bytes alone, history is kept for the default time."""
        return cls(time_ns or (USUAL_TIME_NS if bytes else 0), bytes)

    def of(self, policy: TopicPolicy) -> Retention:
        """Return the limits for a topic, as far as its policy sets others."""
        time_ms, max_bytes = policy.retention_ms, policy.retention_bytes
        wanted_bytes = self.bytes if max_bytes is None else max_bytes
        if time_ms is not None:
            return Retention(time_ms * _MILLISECOND_NS, wanted_bytes)
        return Retention(self.time_ns or (USUAL_TIME_NS if max_bytes else 0), wanted_bytes)

    def shared(self, queues: int) -> Retention:
        """Return the limits of each of a topic's queues: an equal share of the bytes."""
        return self if queues == 1 else Retention(self.time_ns, -(-self.bytes // queues))


class Watermarks(NamedTuple):
    """Disk usage, in percent, above which history is deleted earlier; 0 for never."""

    clean: int = 75
    force: int = 85

    def cleans(self, fill: DiskUsage) -> bool:
        """Whether to delete history beyond its limits at once."""
        return self.clean > 0 and fill.percent > self.clean

    def excess_bytes(self, fill: DiskUsage) -> int:
        """Return how many bytes of history to delete before their time; 0 for none."""
        if not self.force or not fill.all:
            return 0
        return max(0, fill.used - fill.all * self.force // 100)


class History:
    """The history of one queue."""

    def __init__(self, queue: QueueLog, retention: Retention) -> None:
        self.retention = retention
        self.counter = NeedCounter(queue.index)
        """Counts the kept messages, and the needed ones among them."""
        self._queue = queue
        self._row = 0

    def count(self, locator: SegmentLocator, now_ns: int) -> Iterator[None]:
        """Drop rows beyond the limits, and count the kept ones, some rows at a time."""
        queue, retention = self._queue, self.retention
        has_time = retention.time_ns > 0
        in_time = queue.index.find_time(now_ns - retention.time_ns) if has_time else sys.maxsize
        is_undoable = now_ns < queue.emptied_until_ns
        if is_undoable:
            in_time = min(in_time, queue.index.find(queue.emptied_from))
        self._row = max(self._row, queue.start_row, min(in_time, queue.index.end_row))
        yield from self.counter.count(locator, self._row)
        if retention.bytes and not is_undoable:
            self._row = max(self._row, self.counter.row_within(retention.bytes))
            yield from self.counter.count(locator, self._row)


def history_of(topic: Retained, usual: Retention, now_ns: int) -> KeptHistory | None:
    """Return the history of a topic's queue by its current policy, None for none. Internal and
    ephemeral topics keep none; others always keep for a while what was emptied from a channel.
    """
    queue = topic.queue
    retention = usual.of(topic.policy).shared(len(topic.at_queues))
    is_kept = retention.time_ns > 0 or now_ns < queue.emptied_until_ns
    if not is_kept or topic.ephemeral or is_system(topic.name):
        queue.history = None
    elif queue.history is None or queue.history.retention != retention:
        queue.history = History(queue, retention)
    return queue.history


@dataclass(kw_only=True, slots=True)
class RetentionSettings(TopicSettings):
    """The operator's settings of retention."""

    retention: Retention = field(default_factory=Retention)
    """The history kept of a topic whose policy does not set it."""
    watermarks: Watermarks = field(default_factory=Watermarks)
    """The disk usage above which history is deleted earlier."""
    keep_emptied_ns: int = 0
    """How long messages stay that were emptied from a channel."""


class RetentionContext(TopicRegistry, Protocol):
    """A broker as seen by checkpoints and the retirement of segments."""

    not_cleanable: set[int]
    """Bases of segments that are not cleaned, since some needed batches there do not verify."""
    history_bases: set[int]
    """Bases of segments that held only history when the last checkpoint was made."""
    shortened_at: int
    """The number of retired segments when the indexes were last shortened."""

    @property
    def settings(self) -> RetentionSettings:
        """The operator's settings."""

    def snapshot(
        self,
        stored: Stretches,
        *,
        position: int | None = None,
        epoch: int | None = None,
        indexes: Mapping[int, IndexRecord] | None = None,
    ) -> list[JournalEntry]:
        """Return the full journal, in its shortest form, with the fields of `SnapshotEntry`."""
