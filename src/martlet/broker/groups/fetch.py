"""Fetching: a queue's messages read from any offset on, by who keeps his place himself.

::

    offsets   0 .... 40 ......... 60 ........ 70 ......... 90
    queue     | gone | plain      | deferred   | plain      |
    fetch 20    OFFSET_MOVED: go on at 40
    fetch 40           found ------ passed over  found -----> next offset 90
    fetch 90                                                  NO_NEW: waits until something arrives
    fetch 95                                                    OFFSET_MOVED: go on at 90

Nothing is in flight and nothing is remembered: what was fetched is fetched again by whoever asks
for it.  Messages come as the frames in which they lie in the log, with their properties before
them, in pieces of batches.  What is passed over: voids, messages that a tag filter does not let
through, batches for a channel alone that is not the one that fetches, and deferred batches.  Those
are for channels; a group gets them at their time (see `martlet.broker.groups.group_queue`).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from martlet.broker.queue.cursor import MAX_LOOKED, Cursor, frame_ends
from martlet.broker.queue.tag_filter import runs
from martlet.log.record import properties_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from martlet.broker.queue.channel_state import Source
    from martlet.broker.queue.queue_log import QueueLog
    from martlet.broker.queue.tag_filter import TagFilter
    from martlet.log.commit_log import CommitLog
    from martlet.log.index import IndexEntry

MAX_FETCH_BYTES = 8 << 20
MAX_FETCH_MESSAGES = 10_000
"""So much may be asked for at once."""


class Status(StrEnum):
    """What a fetch found."""

    FOUND = "FOUND"
    NO_NEW = "NO_NEW"
    """Nothing, at the end of the queue."""
    OFFSET_MOVED = "OFFSET_MOVED"
    """The offset is not one of the queue: go on at the next offset."""
    NOT_HELD = "NOT_HELD"
    """The member does not have the queue."""


@dataclass(slots=True)
class Fetched:
    """What a fetch found.

    Attributes:
        parts: frames, as slices of the log, which are to be copied at once.
        count: how many messages.
        next_offset: where to go on.
        is_end: whether there is no more for now.
        runs: first and end offsets of what was found.
    """

    parts: list[memoryview | bytes]
    count: int
    next_offset: int
    is_end: bool
    runs: Sequence[tuple[int, int]] = ()


class Fetch(Cursor):
    """One look at a queue from an offset on.

    Args:
        log: where the messages are.
        queue: whose messages.
        offset: of the first one.
        own: the number of the channel whose own batches are read too; 0 for none.
    """

    def __init__(self, log: CommitLog, queue: QueueLog, offset: int, own: int = 0) -> None:
        super().__init__(log, queue, offset)
        self.own_mark = -own

    def read_on(
        self, source: Source, max_count: int, max_bytes: int, wanted: TagFilter | None = None
    ) -> Fetched:
        """Read up to so many messages and bytes, but one message at least, however large.

        It may find none though there are some, since it looks at a limited number of batches.
        """
        parts: list[memoryview | bytes] = []
        runs: list[tuple[int, int]] = []
        count = size = looked = 0
        while count < max_count and size < max_bytes and looked < MAX_LOOKED:
            limit = source.limit_of(self)
            if self.next >= limit:
                return Fetched(parts, count, self.next, True, runs)
            looked += 1
            entry = self._entry
            if (
                entry is None or not entry.first_offset <= self.next < entry.end_offset
            ) and not self._move(self.next, limit):
                continue
            entry = self._entry
            assert entry is not None
            base = entry.first_offset
            for begin, end in self._stretches(entry, wanted):
                stop = min(end, begin + max_count - count)
                stop = self._fitting(entry, begin, stop, max_bytes - size)
                if stop == begin and count:
                    return Fetched(parts, count, self.next, False, runs)
                stop = max(stop, begin + 1)
                self._append_property_frame(entry, begin, stop, parts)
                parts.append(self._slice(entry, begin, stop))
                size += len(parts[-1])
                count += stop - begin
                runs.append((base + begin, base + stop))
                self._skip(base + stop)
                if stop < end or count >= max_count or size >= max_bytes:
                    return Fetched(parts, count, self.next, False, runs)
            if self.next < entry.end_offset:
                self._skip(entry.end_offset)
        return Fetched(parts, count, self.next, False, runs)

    def _stretches(self, entry: IndexEntry, wanted: TagFilter | None) -> Iterator[tuple[int, int]]:
        """The current batch's messages that are wanted, by number, from the next one on."""
        begin = self.next - entry.first_offset
        if wanted is None:
            yield begin, entry.count
        else:
            yield from runs(wanted.numbers(properties_of(self._record), begin, entry.count))

    def _fitting(self, entry: IndexEntry, begin: int, end: int, room: int) -> int:
        """Up to which of the current batch's messages the frames fit into some bytes."""
        if self._ends is None:
            self._ends = frame_ends(entry, self._payload_end, self._record)
        start = self._ends[begin - 1] if begin else 0
        return bisect_right(self._ends, start + room, begin, end)
