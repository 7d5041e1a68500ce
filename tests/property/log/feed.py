"""Feeds the log of a primary to a copy, in pieces, as the wire between replicas does."""

from __future__ import annotations

from random import Random
from typing import TypeVar

from martlet.log.commit_log import CommitLog
from martlet.log.copy import CopiedLog, open_copy
from martlet.log.epochs import Epochs, common_position
from martlet.log.record import BadRecord, RecordKind, read_header
from martlet.log.storage import Segment
from martlet.replica.frames import Frame, FrameKind
from martlet.replica.shipping import piece

LogT = TypeVar("LogT", CommitLog, CopiedLog)


def end_in(segment: Segment, start: int, position: int) -> int:
    """Return behind which position a primary's segment has nothing, from a record at `start` on.

    Args:
        position: where the primary appends.
    """
    at = start
    while at < min(segment.base + segment.capacity, position):
        try:
            header = read_header(segment.view, at - segment.base, at)
        except BadRecord:
            return at  # Less was left than a header.
        at = header.next_position
        if header.kind == RecordKind.SEGMENT_END:
            break
    return at


def flushed(log: LogT) -> LogT:
    """Flush a log. Returns it."""
    job = log.flush_job()
    job.run()
    log.flushed(job)
    return log


def feed(primary: CommitLog, copy: CopiedLog, random: Random, max_bytes: int = 1 << 40) -> None:
    """Bring a copy up to the primary's end, or `max_bytes` nearer."""
    # Those of which the log has not said that they may go, too; not one that could not be begun.
    last_base = primary.segments[-1].base
    segments = [segment for segment in primary.storage.segments() if segment.base <= last_base]
    sources = {segment.base: segment for segment in segments}
    for segment in [s for s in copy.segments if s.base not in sources]:
        copy.retire(segment)
    left = max_bytes
    while left > 0:
        last = copy.segments[-1] if copy.segments else None
        source = sources.get(last.base) if last is not None else None
        if source is not None:
            end = end_in(source, copy.position, primary.position)
            while copy.received_position < end and left > 0:
                most = min(end - copy.received_position, left)
                length = random.choice([1, 7, 80, random.randint(1, most), most])
                at = copy.received_position - source.base
                copy.write(copy.received_position, source.view[at : at + min(length, most)])
                left -= length
            if copy.received_position < end:
                return
        last_base = -1 if last is None else last.base
        following = min((base for base in sources if base > last_base), default=None)
        if following is None:
            return
        copy.begin_segment(following, sources[following].capacity)


def join(primary: CommitLog, epochs: Epochs, copy: CopiedLog, epoch: int) -> CopiedLog:
    """Cut a copy to what it shares with the log of the primary of an epoch, and repair it. Returns
    the copy, opened again where it was repaired.
    """
    copy.restart()
    common = common_position(copy.epochs.ranges, epochs.ranges)
    if common is None:
        common = copy.segments[0].base if copy.segments else 0
    if common < copy.position:
        copy.cut(common, epoch)
    return mend(primary, copy)


def mend(primary: CommitLog, copy: CopiedLog) -> CopiedLog:
    """Repair what a power cut damaged. Returns the copy, opened again."""
    while copy.damaged:
        start, end = copy.damaged[0]
        damaged = copy.find(start)
        if damaged is not None and primary.stored_at(start) is None:
            copy.retire(damaged)
            continue
        copy.repair(start, bytes(piece(primary, Frame(FrameKind.REPAIR, 1, start, end)).body))
        copy, _ = open_copy(copy.storage, epochs=copy.epochs.ranges)
    return copy
