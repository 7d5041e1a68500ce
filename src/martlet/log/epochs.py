"""The epochs of a log: which stretch of it was written under which number.

An epoch is a run of a broker, or of a replica as its primary; each record carries its number, and
numbers never fall from record to record. Under one number only one process ever writes, so two
replicas that both have records of an epoch have the same bytes in it, as far as both go::

    ours     | 3      | 4         |           common position: the end of 4 in ours,
    theirs   | 3      | 4              | 6    as 6 is theirs alone

The end of an epoch is behind its last record, which the start of the next does not tell: the next
one begins a segment, and a replica may have a tail between the two that no other has.

This is how RocketMQ (``EpochFileCache.findConsistentPoint``) and Kafka (KIP-101, KIP-279) find the
point to which a replica's log is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class EpochRange:
    """The records of an epoch lie from position `start` up to `end`."""

    epoch: int
    start: int
    end: int


class Epochs:
    """The epochs of one log, oldest first."""

    def __init__(self) -> None:
        self.ranges: list[EpochRange] = []

    @property
    def last(self) -> int:
        """The epoch of the last record; 0 where there is none."""
        return self.ranges[-1].epoch if self.ranges else 0

    def add(self, epoch: int, start: int, end: int) -> EpochRange:
        """Take in the record from `start` up to `end`. Returns its epoch's range."""
        ranges = self.ranges
        assert start < end and (not ranges or ranges[-1].end <= start)
        if not ranges or ranges[-1].epoch != epoch:
            assert not ranges or ranges[-1].epoch < epoch
            ranges.append(EpochRange(epoch, start, end))
        ranges[-1].end = end
        return ranges[-1]

    def cut(self, position: int) -> None:
        """Forget what is behind a position."""
        while self.ranges and self.ranges[-1].start >= position:
            self.ranges.pop()
        if self.ranges:
            self.ranges[-1].end = min(self.ranges[-1].end, position)


def common_position(ours: Sequence[EpochRange], theirs: Sequence[EpochRange]) -> int | None:
    """Return the position up to which two logs are the same; None where no epoch is in both.

    Both are given oldest first. Starts may differ: the first records of an epoch may be damaged in
    one of the logs, or retired if it is the oldest.
    """
    other = {found.epoch: found for found in theirs}
    for mine in reversed(ours):
        found = other.get(mine.epoch)
        if found is None:
            continue
        end = min(mine.end, found.end)
        is_oldest = mine is ours[0] or found is theirs[0]
        if is_oldest or end > max(mine.start, found.start):
            return end
    return None
