"""Fetch: read a queue's messages from any offset on, for readers that keep their own position.

::

    offsets   0 .... 40 ......... 60 ........ 70 ......... 90
    queue     | gone | plain      | deferred   | plain      |
    fetch 20    OFFSET_MOVED: go on at 40
    fetch 40           found ------ skipped ---- found -----> next offset 90
    fetch 90                                                  NO_NEW: waits for new messages
    fetch 95                                                    OFFSET_MOVED: go on at 90

Nothing is in flight and the broker keeps no state: messages may be fetched again at any time.
Messages are returned as the frames stored in the log, with their properties before them, in pieces
of batches. A fetch skips voids, messages that a filter rejects, batches for another single
channel, and deferred batches. The latter are for channels; a group gets them when they are due (see
`martlet.broker.groups.group_queue`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from martlet.broker.offset_ranges import merged
from martlet.broker.queue.channel_state import Source
from martlet.broker.queue.cursor import Cursor, frame_ends
from martlet.broker.queue.queue_log import QueueLog
from martlet.log.commit_log import CommitLog
from martlet.log.index import IndexEntry

if TYPE_CHECKING:
    from martlet.broker.queue.channel_filter import ChannelFilter

MAX_FETCH_BYTES = 8 << 20
MAX_FETCH_MESSAGES = 10_000
"""The maximum size of one fetch."""


class Status(StrEnum):
    """The status of a fetch."""

    FOUND = "FOUND"
    NO_NEW = "NO_NEW"
    """No messages, at the end of the queue."""
    OFFSET_MOVED = "OFFSET_MOVED"
    """The offset is outside of the queue: continue at the next offset."""
    NOT_HELD = "NOT_HELD"
    """The member does not hold the queue."""


@dataclass(slots=True)
class Fetched:
    """The result of a fetch."""

    frames: list[memoryview | bytes]
    """Frames, as slices of the log, which the caller must copy at once."""
    count: int
    next_offset: int
    """The offset of the next fetch."""
    is_end: bool
    """Whether the end of the queue was reached."""
    runs: Sequence[tuple[int, int]] = ()
    """The offsets of the messages, as (first, end)."""


class Fetch(Cursor):
    """A temporary cursor that reads a queue from an offset on.

    `own` is the number of the channel whose single-channel batches are included; 0 for none.
    """

    def __init__(self, log: CommitLog, queue: QueueLog, offset: int, own: int = 0) -> None:
        super().__init__(log, queue, offset)
        self.own_mark = -own

    def read_on(
        self,
        source: Source,
        max_count: int,
        max_bytes: int,
        channel_filter: ChannelFilter | None = None,
    ) -> Fetched:
        """Read up to `max_count` messages and `max_bytes`, but at least one message, however large.

        May return none although there are some, since a filter tests a limited number.
        """
        frames: list[memoryview | bytes] = []
        runs: list[tuple[int, int]] = []
        count = size = 0
        while count < max_count and size < max_bytes and self.may_test_more:
            limit = source.limit_of(self)
            if self.next >= limit:
                return Fetched(frames, count, self.next, True, runs)
            self._tested_count += 1
            entry = self._entry
            if (
                entry is None or not entry.first_offset <= self.next < entry.end_offset
            ) and not self._move(self.next, limit):
                continue
            entry = self._entry
            assert entry is not None
            base = entry.first_offset
            stretches, tested = self._stretches(entry, channel_filter)
            for begin, end in stretches:
                stop = min(end, begin + max_count - count)
                stop = self._fitting(entry, begin, stop, max_bytes - size)
                if stop == begin and count:
                    return Fetched(frames, count, self.next, False, runs)
                stop = max(stop, begin + 1)
                self._append_property_frame(entry, begin, stop, frames)
                frames.append(self._slice(entry, begin, stop))
                size += len(frames[-1])
                count += stop - begin
                runs.append((base + begin, base + stop))
                self._skip(base + stop)
                if stop < end or count >= max_count or size >= max_bytes:
                    return Fetched(frames, count, self.next, False, runs)
            if self.next < base + tested:
                self._skip(base + tested)
        return Fetched(frames, count, self.next, False, runs)

    def _stretches(
        self, entry: IndexEntry, channel_filter: ChannelFilter | None
    ) -> tuple[list[tuple[int, int]], int]:
        """Return the messages of the current batch from the next one on that pass the filter, as
        ranges of numbers, and the number up to which they were tested.
        """
        base = entry.first_offset
        if channel_filter is None:
            return [(self.next - base, entry.count)], entry.count
        offsets, stop = self.matching(entry, channel_filter)
        return merged(offsets - base, offsets - base + 1), stop - base

    def _fitting(self, entry: IndexEntry, begin: int, end: int, room: int) -> int:
        """Return the end of the current batch's messages whose frames fit into `room` bytes."""
        if self._ends is None:
            self._ends = frame_ends(entry, self._payload_end, self._record)
        start = self._ends[begin - 1] if begin else 0
        return bisect_right(self._ends, start + room, begin, end)
