"""The segments of a log by position: what a log that is appended to and a copied one share.

::

    positions  0            4096         8192         12288
               | segment 0   | retired    | segment 2   |          |
               | r | r | end |            | head | r | r | written  |
                                          durable ^       ^ position

Positions only rise; each segment holds a range of them. There are gaps where a segment was retired
because nothing in it was needed. A record never crosses the end of a segment.

A failed flush is not just repeated: the kernel may have dropped the pages and would report success
for the second try (https://lwn.net/Articles/752063/). From then on the log refuses all writes.
Where only space was missing, which may pass, the next flush first writes again what is in doubt, if
its records still verify; when that succeeds, the log takes writes again.
"""

from __future__ import annotations

import errno
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from martlet.log import fsync_marker
from martlet.log.record import HEADER_BYTES, BadRecord, RecordKind, read_record
from martlet.log.storage import FULL, Segment, Storage


@dataclass(frozen=True)
class FlushJob:
    """A flush that makes all below `position` durable. `run` may block and raise OSError."""

    position: int
    segments: tuple[Segment, ...]
    cut_count: int = 0
    """How often the log had been cut when the job was made."""
    doubtful_from: int | None = None
    """Where what a flush failed to keep begins; it is written again."""

    def run(self) -> None:
        """Flush each segment that was written to."""
        if self.doubtful_from is not None:
            check_records(self.segments, self.doubtful_from, self.position)
            fsync_marker.settle(self.segments, self.doubtful_from, self.position)
        for segment in self.segments:
            segment.flush()


def spans(segments: Iterable[Segment]) -> list[tuple[int, int]]:
    """Return the ranges of positions that the segments cover, given by base position."""
    ranges: list[tuple[int, int]] = []
    for segment in segments:
        base, end = segment.base, segment.base + segment.capacity
        if ranges and ranges[-1][1] == base:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((base, end))
    return ranges


def check_records(segments: Iterable[Segment], start: int, end: int) -> None:
    """Check that the records between two positions are what was written. Raises OSError."""
    for segment in segments:
        base = segment.base
        at, stop = max(start, base), min(end, base + segment.capacity)
        while at + HEADER_BYTES <= stop:
            try:
                header, _ = read_record(segment.view, at - base, at)
            except BadRecord as error:
                raise OSError(
                    errno.EIO, f"what was written is not there any more: {error}"
                ) from error
            if header.kind == RecordKind.SEGMENT_END:
                break
            at = header.next_position


class SegmentedLog:
    """The segments of a log, what is written to them and what is durable.

    Args:
        segments: the existing segments, by base position; the log changes this list.
        position: behind the last good record.
        durable_position: the log is known to be durable up to here. Records behind it may only be
            written, by a broker that was killed; the first flush makes them durable too.
    """

    def __init__(
        self, storage: Storage, segments: list[Segment], position: int, durable_position: int
    ) -> None:
        assert position % 8 == 0 and durable_position <= position
        self.storage = storage
        self.segments = segments
        self.position = position
        self.durable_position = durable_position
        self.failed: str | None = None
        """The reason why the log takes no writes until the next start, or until a flush succeeds if
        `may_recover`; None while it takes them.
        """
        self.may_recover = False
        """Whether it failed for a lack of space, which may pass."""
        self.cut_count = 0
        """How often an end was cut off, so that other bytes may be there now."""
        self.has_properties = bool(segments)
        """Whether messages in the last segment may have properties."""
        self.retired_count = 0
        """The number of retired segments."""
        self.damaged: list[tuple[int, int]] = []
        """With replicas: the ranges that no replica has undamaged, in order."""
        self._bases = [segment.base for segment in segments]
        self._dirty = [s for s in segments if s.base + s.capacity > durable_position]

    def find(self, position: int) -> Segment | None:
        """Return the segment that holds a position; None where it was retired."""
        number = bisect_right(self._bases, position) - 1
        if number < 0:
            return None
        segment = self.segments[number]
        return segment if position < segment.base + segment.capacity else None

    def view(self, position: int, length: int) -> memoryview | None:
        """Return the bytes of a record, read-only, not copied; None where they were retired."""
        segment = self.find(position)
        if segment is None:
            return None
        at = position - segment.base
        return segment.view[at : at + length]

    def stored_at(self, position: int) -> Segment | None:
        """Return the segment that holds a position, if its file is there."""
        return self.find(position)

    def is_stored(self, segment: Segment) -> bool:
        """Whether a segment's file is there."""
        return self.find(segment.base) is segment

    def following(self, position: int) -> Segment | None:
        """Return the first segment with a file that begins at a position or behind it."""
        number = bisect_left(self._bases, position)
        return self.segments[number] if number < len(self.segments) else None

    def flush_job(self) -> FlushJob:
        """Return a job that makes everything written so far durable."""
        doubtful_from = self.durable_position if self.may_recover else None
        return FlushJob(self.position, tuple(self._dirty), self.cut_count, doubtful_from)

    def flushed(self, job: FlushJob) -> None:
        """Record that a flush job succeeded. Until then later jobs flush its segments too."""
        if job.cut_count != self.cut_count:
            return  # It flushed other bytes than those that are there now.
        assert job.position <= self.position
        # A flush makes durable what was written before it began: a segment that was written to
        # since stays dirty.
        self.durable_position = max(self.durable_position, job.position)
        written_since = self.position > job.position
        self._dirty = [
            segment
            for segment in self._dirty
            if segment not in job.segments
            or (written_since and segment.base + segment.capacity > job.position)
        ]
        if self.may_recover and job.doubtful_from is not None:
            self.failed, self.may_recover = None, False
            fsync_marker.prepare(self.storage)

    def flush_failed(self, error: OSError) -> None:
        """Record that a flush job failed, so that its data may be lost, and refuse all writes."""
        assert self.durable_position <= self.position
        way_out = "check the disk, then start the broker again"
        has_failed = self.failed is not None and not self.may_recover
        self.may_recover = error.errno in FULL and not has_failed
        if self.may_recover:
            way_out = "make room on the disk; it is tried again every second"
        try:
            fsync_marker.leave(self.storage, self.durable_position)
        except OSError as worse:
            way_out = (
                f"check the disk, then start the machine, and with it the broker, again: the note"
                f" for the next start that this has happened could not be written ({worse})"
            )
        if not has_failed:
            self.failed = (
                f"flushing the log failed: {error}; what was not yet flushed may be lost in a power"
                f" cut, and no more messages are taken: {way_out}"
            )

    def _add(self, segment: Segment) -> None:
        """Make a new segment the last one."""
        if self.segments:
            last = self.segments[-1]
            assert last.base + last.capacity <= segment.base, "segments overlap"
            self.storage.sealed(last, has_properties=self.has_properties)
        assert self.position <= segment.base and segment.base % 8 == 0
        self.segments.append(segment)
        self._bases.append(segment.base)
        self.position = segment.base
        self.has_properties = False

    def _written(self, segment: Segment) -> None:
        """Record that a segment was written to."""
        if not self._dirty or self._dirty[-1] is not segment:
            self._dirty.append(segment)

    def _drop(self, segment: Segment) -> None:
        """Forget a segment, whose file the caller removes."""
        number = self._bases.index(segment.base)
        del self._bases[number], self.segments[number]
        self.retired_count += 1
        assert len(self._bases) == len(self.segments)
