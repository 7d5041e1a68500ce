"""The stored batches of a queue, as readers of the log find them.

A primary appends to them, and a standby takes in those that are confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from martlet.log.index import Index
from martlet.log.retention import SegmentLocator
from martlet.log.segmented import SegmentedLog

_ROWS_AT_ONCE = 1 << 16


class StoredQueue:
    """The batches of a queue that are stored in a log, up to `end_offset`."""

    def __init__(self, log: SegmentedLog, index: Index, end_offset: int) -> None:
        self._log = log
        self.index = index
        self.end_offset = end_offset
        self.visible_end = end_offset
        """The offset behind the last confirmed message. Clients see none from here on, since a
        failover may give its offset to another one.
        """
        self._start_row = index.first_row
        self._start_version = (-1, -1)

    @property
    def start_offset(self) -> int:
        """The offset from which on everything is stored; the end where nothing is. Lower offsets
        are stored only for a channel's pending messages.
        """
        row = self.start_row
        return self.end_offset if row >= self.index.end_row else self.index.row(row).first_offset

    @property
    def start_row(self) -> int:
        """The number of the index row of `start_offset`."""
        version = (self._log.retired_count, self.index.first_row)
        if version != self._start_version:
            self._start_row = self._find_start_row()
            self._start_version = version
        return self._start_row

    def _find_start_row(self) -> int:
        """Return the number of the first row behind all whose batches were deleted, and behind all
        gaps, which a power cut may leave of deleted batches.
        """
        index = self.index
        locator = SegmentLocator(self._log.segments)
        end = index.end_row
        first = max(self._start_row, index.first_row)
        while end > first:
            start = max(first, end - _ROWS_AT_ONCE)
            rows = index.array(start, end)
            missing = locator.find(rows["position"]) < 0
            ends = rows["first_offset"] + rows["count"]
            missing[:-1] |= ends[:-1] != rows["first_offset"][1:]
            if end < index.end_row:
                missing[-1] |= ends[-1] != index.row(end).first_offset
            gone = np.flatnonzero(missing)
            if len(gone):
                return start + int(gone[-1]) + 1
            end = start
        return first

    @property
    def first_stored_offset(self) -> int:
        """The first stored offset, kept for any reason; the end where none is."""
        row = self.first_stored_row
        return self.end_offset if row == self.index.end_row else self.index.row(row).first_offset

    @property
    def first_stored_row(self) -> int:
        """The number of the first row whose batch is stored; that behind the last where none is."""
        index = self.index
        locator = SegmentLocator(self._log.segments)
        for start in range(index.first_row, index.end_row, _ROWS_AT_ONCE):
            rows = index.array(start, start + _ROWS_AT_ONCE)
            stored = np.flatnonzero(locator.find(rows["position"]) >= 0)
            if len(stored):
                return start + int(stored[0])
        return index.end_row


class TopicView(Protocol):
    """A topic at one of its queues."""

    @property
    def id(self) -> int:
        """The number of the topic at this queue."""

    @property
    def name(self) -> str:
        """The topic's name."""

    @property
    def number(self) -> int:
        """The queue's number."""

    @property
    def queue(self) -> StoredQueue:
        """The messages of the queue."""

    @property
    def at_queues(self) -> Sequence[TopicView]:
        """The topic at each of its queues, by number."""

    def at_queue(self, number: int) -> TopicView:
        """Return the topic at the queue of that number. Raises NotFound."""


class LogView(Protocol):
    """The confirmed state of a log, at one moment: use it without awaiting anything."""

    @property
    def log(self) -> SegmentedLog:
        """The log."""

    @property
    def epoch(self) -> int:
        """The number of the run that wrote the newest record."""

    @property
    def visible_position(self) -> int:
        """The position behind the last record that readers of the log may see."""

    def all_topics(self) -> Iterable[TopicView]:
        """Return each topic, at its queue 0."""

    def find_topic(self, name: str) -> TopicView:
        """Return the topic of that name, at its queue 0. Raises NotFound."""
