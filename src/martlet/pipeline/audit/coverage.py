"""The extent of a log: which of its positions are there, and which should be.

::

    positions   0 ...... 100 ...... 200 ...... 300 ...... 400 ...... 500
    files       |  gone  | file      | missing  | file      | file xx  |
    told                 [100                                      500)

What the broker has let go is no loss.  Its journal tells, at the head of each segment and in each
checkpoint, which stretches are there; one that was told to be there each time, and is not, was
taken away by somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from martlet.broker.offset_ranges import Stretch, apart_from, with_stretch


@dataclass(frozen=True)
class LogRange:
    """Where something is lost: a stretch of positions of a segment's file.

    Attributes:
        base: the segment's first position, which its file is named after; -1 for the checkpoint.
        start, end: the positions.
        reason: why.
    """

    base: int
    start: int
    end: int
    reason: str

    @property
    def file(self) -> str:
        """The file, below the data folder."""
        if self.base < 0:
            return "checkpoint"
        return f"log/{self.base:020d}.log"


@dataclass
class Extent:
    """What is there of one broker's log.

    Attributes:
        broker: whose.
        segments: those that were read, as (base, end), by base.
        missing: what should be there, and is not.
        damage: what is damaged in those that were read.
        torn: the same where a start of the broker has found it so behind the last checkpoint, which
            is what a power cut leaves.
        epochs: by the number of the broker's run, where that begins.
        newest_head: the base of the newest segment that begins with the whole journal.
        written_end: behind the last good record.
        gone: whether a segment was let go while the log was read.
    """

    broker: str
    segments: Sequence[Stretch] = ()
    missing: Sequence[LogRange] = ()
    damage: Sequence[LogRange] = ()
    torn: Sequence[LogRange] = ()
    epochs: dict[int, int] = field(default_factory=dict)
    newest_head: int = -1
    written_end: int = 0
    gone: bool = False

    @property
    def start(self) -> int:
        """The first position that is, or should be, there."""
        return min([*(base for base, _ in self.segments), *(each.start for each in self.missing)])

    @property
    def end(self) -> int:
        """Behind the last one."""
        return max([0, *(end for _, end in self.segments), *(each.end for each in self.missing)])

    def was_let_go(self, start: int, end: int) -> bool:
        """Whether the broker has let go of any of these positions."""
        there = sorted([*self.segments, *((each.start, each.end) for each in self.missing)])
        return any(True for _ in apart_from(there, start, min(end, self.end)))

    def places(self, start: int, end: int) -> list[LogRange]:
        """What is lost between two positions."""
        lost = [*self.damage, *self.torn, *self.missing]
        found = [each for each in lost if each.start < end and start < each.end]
        return sorted(found, key=lambda place: place.start)

    def is_torn(self, start: int, end: int) -> bool:
        """Whether what is lost between two positions was already when the broker was started."""
        places = self.places(start, end)
        return bool(places) and all(place in self.torn for place in places)

    def gap(self, start: int, end: int) -> list[LogRange]:
        """The stretches between two positions that are not there, let go or not."""
        holes = apart_from(sorted(self.segments), start, end)
        return [LogRange(first, first, stop, "the segment is not there") for first, stop in holes]

    def base_of(self, position: int) -> int:
        """The first position of the segment that holds a position, or that comes before it."""
        return max([base for base, _ in self.segments if base <= position], default=position)


def missing_from(
    present: Iterable[Stretch], told: Iterable[tuple[int, Iterable[Stretch]]]
) -> list[Stretch]:
    """The stretches that should be there and are not.

    Args:
        present: what is there, by base.
        told: by whoever told it: up to which position that was, and what was there then.  One that
            was let go is left out by whoever told it after that.
    """
    snapshots = [(position, list(stretches)) for position, stretches in told]
    if not snapshots:
        return []
    there = sorted(present)
    newest_position, newest = max(snapshots, key=lambda snapshot: snapshot[0])
    found: list[Stretch] = []
    for first, end in newest:
        # What was not written by then need not be there.
        left: list[Stretch] = list(apart_from(there, first, min(end, newest_position)))
        for position, stretches in snapshots:
            left = [
                kept
                for start, stop in left
                for kept in (
                    *_within(stretches, start, min(stop, position)),
                    *apart_from([(0, position)], start, stop),
                )
            ]
        for start, stop in left:
            found = with_stretch(found, start, stop)
    return found


def _within(stretches: Iterable[Stretch], start: int, end: int) -> list[Stretch]:
    return [
        (max(first, start), min(stop, end))
        for first, stop in stretches
        if first < end and start < stop
    ]
