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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

MAX_EPOCHS = 64
"""The oldest epochs of a log are forgotten: a replica that lags by more copies the whole log."""


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

    def remember(self, ranges: Iterable[EpochRange]) -> None:
        """Add what was known of the epochs before the last one: their segments may be retired."""
        if not self.ranges:
            return
        by_epoch = {other.epoch: other for other in self.ranges}
        scanned = list(self.ranges)
        for other in ranges:
            if other.epoch >= self.last:
                continue  # What there is of the last epoch was found; later ones were cut off.
            others = [mine for mine in scanned if mine.epoch != other.epoch]
            if any(mine.start < other.end and other.start < mine.end for mine in others):
                continue  # It was cut off, and another one has its positions.
            mine = by_epoch.setdefault(other.epoch, EpochRange(other.epoch, other.start, other.end))
            mine.start, mine.end = min(mine.start, other.start), max(mine.end, other.end)
        self.ranges = [by_epoch[epoch] for epoch in sorted(by_epoch)][-MAX_EPOCHS:]
        for mine, following in pairwise(self.ranges):
            mine.end = min(mine.end, following.start)

    def adopt(self, ranges: Iterable[EpochRange], end: int) -> None:
        """Add what another replica knows of the epochs before a position, up to which this log is
        a copy of that one's.
        """
        by_epoch = {other.epoch: other for other in self.ranges}
        for other in ranges:
            if other.start < end:
                mine = by_epoch.setdefault(
                    other.epoch, EpochRange(other.epoch, other.start, other.start)
                )
                mine.start = min(mine.start, other.start)
                mine.end = max(mine.end, min(other.end, end))
        self.ranges = [by_epoch[epoch] for epoch in sorted(by_epoch)][-MAX_EPOCHS:]

    def cut(self, position: int) -> None:
        """Forget what is behind a position."""
        while self.ranges and self.ranges[-1].start >= position:
            self.ranges.pop()
        if self.ranges:
            self.ranges[-1].end = min(self.ranges[-1].end, position)


def common_position(ours: Sequence[EpochRange], theirs: Sequence[EpochRange]) -> int | None:
    """Return the position up to which two logs are the same; None where no epoch is in both.

    Both are given oldest first. A replica with a record of an epoch has its primary's log up to
    there. So only the ends matter: the first records of an epoch may be retired, or damaged.
    """
    ends = {other.epoch: other.end for other in theirs}
    for mine in reversed(ours):
        if mine.epoch in ends:
            return min(mine.end, ends[mine.epoch])
    return None
