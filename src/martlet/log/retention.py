"""Retention: which segments are still needed, and by how much.

One log for all topics means that one forgotten channel of a small topic could pin everybody's
segments.  So a segment of which little is needed is cleaned: the batches that are needed are
appended again under their offsets, the index points to the new place, and the next checkpoint
finds the segment free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from martlet.log.commitlog import CommitLog
from martlet.log.index import Entry, Index, Rows
from martlet.log.storage import Segment

CLEAN_BELOW = 0.25
"""A segment is cleaned when less than this part of it is needed."""
CLEAN_FROM_SEGMENTS = 4
"""With fewer segments than this there is no need to clean."""

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Need:
    """What a queue needs of the log: the batches that reach beyond an offset."""

    index: Index
    lowest_offset: int

    def rows(self) -> Iterator[Rows]:
        """The rows of those batches, some at a time: there may be millions."""
        index = self.index
        for start in range(index.find(self.lowest_offset), index.end_row, _ROWS_AT_ONCE):
            yield index.array(start, start + _ROWS_AT_ONCE)


def needed_bytes(segments: list[Segment], needs: Iterable[Need]) -> list[int]:
    """How many bytes of each segment are needed. `segments` are sorted by base."""
    bases = np.array([segment.base for segment in segments], np.uint64)
    total = np.zeros(len(segments), np.int64)
    for need in needs:
        for rows in need.rows():
            places = np.searchsorted(bases, rows["position"], "right") - 1
            known = places >= 0
            lengths = rows["length"][known].astype(np.float64)
            total += np.bincount(places[known], lengths, len(segments)).astype(np.int64)
    return [int(n) for n in total]


def worth_cleaning(
    log: CommitLog, needed: list[int], left_alone: Collection[int] = ()
) -> Segment | None:
    """The segment that gives most room for least copying, if any is worth it.

    `needed` are the bytes needed of each segment of the log.  Segments whose base is among
    `left_alone` are none of them.
    """
    segments = log.segments
    if len(segments) < CLEAN_FROM_SEGMENTS:
        return None
    candidates = [
        (bytes_needed / segment.capacity, number)
        for number, (segment, bytes_needed) in enumerate(zip(segments, needed, strict=True))
        if bytes_needed
        and segment.base + segment.capacity <= log.position
        and segment.base not in left_alone
    ]
    part, number = min(candidates, default=(1.0, 0))
    return segments[number] if part < CLEAN_BELOW else None


def clean(log: CommitLog, segment: Segment, needs: Iterable[Need]) -> int:
    """Append again what is needed of a segment. Returns how many bytes were copied.

    Raises WritesRefused.
    """
    copied = 0
    end = segment.base + segment.capacity
    for need in needs:
        index = need.index
        for rows in need.rows():
            inside = (rows["position"] >= segment.base) & (rows["position"] < end)
            for row in rows[inside].tolist():
                entry = Entry._make(row)
                at = entry.position - segment.base
                record = bytearray(segment.view[at : at + entry.length])
                position = log.append_again(record)
                index.move(entry.first_offset, position)
                copied += len(record)
    return copied
