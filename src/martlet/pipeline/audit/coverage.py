"""The coverage of a log: the positions that exist, and those that should exist.

::

    positions   0 ...... 100 ...... 200 ...... 300 ...... 400 ...... 500
    files       | removed| file      | missing  | file      | file xx  |
    journal              [100                                      500)

Segments that retention has removed are no loss.  The broker's journal records the ranges of the
log, at the head of each segment and in each checkpoint.  A range that all of these records contain
and that does not exist was not removed by the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from martlet.broker.offset_ranges import Stretch, apart_from, with_stretch


@dataclass(frozen=True)
class LogRange:
    """A damaged or missing range of positions."""

    base: int
    """The segment's first position, which is its file's name; -1 for the checkpoint."""
    start: int
    end: int
    reason: str

    @property
    def file(self) -> str:
        """The path of the file, relative to the data folder."""
        if self.base < 0:
            return "checkpoint"
        return f"log/{self.base:020d}.log"


@dataclass
class Extent:
    """The state of one broker's log."""

    broker: str
    segments: Sequence[Stretch] = ()
    """The segments that were read, as (base, end), by base."""
    missing: Sequence[LogRange] = ()
    damage: Sequence[LogRange] = ()
    torn: Sequence[LogRange] = ()
    """Damaged ranges that a start found behind the last checkpoint, as a power cut leaves them."""
    epochs: dict[int, int] = field(default_factory=dict)
    """The start position of each epoch of the broker."""
    newest_head: int = -1
    """The base of the newest segment that begins with a snapshot of the journal."""
    written_end: int = 0
    gone: bool = False
    """Whether the broker removed a segment while the log was read."""

    @property
    def start(self) -> int:
        """The first position that exists or should exist; -1 if the broker removed all of them."""
        starts = [*(base for base, _ in self.segments), *(gap.start for gap in self.missing)]
        return min(starts, default=-1)

    @property
    def end(self) -> int:
        """The end of the last range that exists or should exist."""
        return max([0, *(end for _, end in self.segments), *(gap.end for gap in self.missing)])

    def was_removed(self, start: int, end: int) -> bool:
        """Return whether the broker has removed any of these positions."""
        there = sorted([*self.segments, *((gap.start, gap.end) for gap in self.missing)])
        return any(True for _ in apart_from(there, start, min(end, self.end)))

    def lost_ranges(self, start: int, end: int) -> list[LogRange]:
        """Return the damaged and missing ranges between two positions."""
        lost = [*self.damage, *self.torn, *self.missing]
        touched = [gap for gap in lost if gap.start < end and start < gap.end]
        return sorted(touched, key=lambda gap: gap.start)

    def is_torn(self, start: int, end: int) -> bool:
        """Return whether all damage between two positions was there when the broker started."""
        lost = self.lost_ranges(start, end)
        return bool(lost) and all(gap in self.torn for gap in lost)

    def gap(self, start: int, end: int) -> list[LogRange]:
        """Return the ranges between two positions that do not exist, removed or missing."""
        holes = apart_from(sorted(self.segments), start, end)
        return [LogRange(first, first, stop, "the segment is not there") for first, stop in holes]

    def base_of(self, position: int) -> int:
        """Return the base of the segment that contains a position, or that precedes it."""
        return max([base for base, _ in self.segments if base <= position], default=position)


def missing_from(
    present: Iterable[Stretch], recorded: Iterable[tuple[int, Iterable[Stretch]]]
) -> list[Stretch]:
    """Return the ranges that should exist and do not.

    Args:
        recorded: the ranges of the log by each record of them, with the end of the log then.
            Records that were written after a removal leave the removed range out.
    """
    snapshots = [(position, list(stretches)) for position, stretches in recorded]
    if not snapshots:
        return []
    there = sorted(present)
    newest_position, newest = max(snapshots, key=lambda snapshot: snapshot[0])
    missing: list[Stretch] = []
    for first, end in newest:
        # Ignore what was not written at that time.
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
            missing = with_stretch(missing, start, stop)
    return missing


def _within(stretches: Iterable[Stretch], start: int, end: int) -> list[Stretch]:
    return [
        (max(first, start), min(stop, end))
        for first, stop in stretches
        if first < end and start < stop
    ]
