"""Gaps: messages missing in a queue although the segments around them are kept.

::

    segments   | gone    | kept                        | kept
    batches      0 - 40    40 - 60   .......   80 - 90   90 - 120
                                     ^ a gap             ^ start_offset

Batches are deleted only with their segment. So if offsets are missing between two consecutive
batches, neither was copied, and all segments between them exist, then the missing messages were
stored: their record was damaged, or lost in a power cut, and a start has skipped it.

A queue's `start_offset` lies behind all gaps, for any reason. A reader of the log starts before
them, to get the stored messages and to report the missing ones.
"""

from __future__ import annotations

import numpy as np

from martlet.broker.offset_ranges import Stretch
from martlet.broker.queue.queue_log import StoredQueue
from martlet.log.index import IndexEntry
from martlet.log.record import RecordFlag
from martlet.log.retention import SegmentLocator
from martlet.log.segmented import SegmentedLog

MAX_HOLES = 1000
"""The maximum number of gaps reported; earlier ones are left out."""
_ROWS_AT_ONCE = 1 << 16
_FLAGS = slice(14, 16)
"""The position of the flags in a record's header."""


def holes(log: SegmentedLog, queue: StoredQueue) -> tuple[int, list[Stretch]]:
    """Return the offset from which on a queue has everything that was not deleted, and its gaps
    from there on, rising.
    """
    index = queue.index
    start, row = queue.start_offset, queue.start_row
    gaps: list[Stretch] = []
    if not start or row >= index.end_row:
        return start, gaps
    locator = SegmentLocator(log.segments)
    breaks = _breaks(log)
    while row > index.first_row:
        first = max(index.first_row, row - _ROWS_AT_ONCE)
        rows = index.array(first, row + 1)
        ends = rows["first_offset"] + rows["count"]
        gone = np.flatnonzero(locator.find(rows["position"]) < 0)
        stop = int(gone[-1]) + 1 if len(gone) else 0
        for at in np.flatnonzero(ends[:-1] != rows["first_offset"][1:])[::-1].tolist():
            if at < stop:
                break
            before, behind = index.row(first + at), index.row(first + at + 1)
            together = _is_one_stretch(log, locator, breaks, before, behind)
            if not together or len(gaps) == MAX_HOLES:
                stop = at + 1
                break
            gaps.append((before.end_offset, behind.first_offset))
        start, row = int(rows["first_offset"][stop]), first + stop
        if stop:
            break
    entry = index.row(row)
    if row == index.first_row and start and _is_from_the_beginning(log, locator, breaks, entry):
        gaps.append((0, start))
        start = 0
    return start, gaps[::-1]


def _breaks(log: SegmentedLog) -> list[int]:
    """Return the number of missing segment ranges before each segment."""
    counts: list[int] = []
    behind = None
    for segment in log.segments:
        missing = behind is not None and segment.base != behind
        counts.append((counts[-1] if counts else 0) + missing)
        behind = segment.base + segment.capacity
    return counts


def _is_one_stretch(
    log: SegmentedLog,
    locator: SegmentLocator,
    breaks: list[int],
    before: IndexEntry,
    behind: IndexEntry,
) -> bool:
    """Whether everything stored between two batches would still exist."""
    if before.position >= behind.position or _was_moved(log, before) or _was_moved(log, behind):
        return False
    positions = np.array([before.position, behind.position], np.uint64)
    first, last = locator.find(positions).tolist()
    return bool(first >= 0 and last >= 0 and breaks[first] == breaks[last])


def _is_from_the_beginning(
    log: SegmentedLog, locator: SegmentLocator, breaks: list[int], entry: IndexEntry
) -> bool:
    """Whether everything stored before a batch, from the log's beginning on, still exists."""
    if not log.segments or log.segments[0].base or _was_moved(log, entry):
        return False
    number = int(locator.find(np.array([entry.position], np.uint64))[0])
    return number >= 0 and not breaks[number]


def _was_moved(log: SegmentedLog, entry: IndexEntry) -> bool:
    record = log.view(entry.position, entry.length)
    return record is None or bool(int.from_bytes(record[_FLAGS], "little") & RecordFlag.RELOCATED)
