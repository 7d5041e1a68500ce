"""The in-flight window: the consumer that holds each of the recently delivered offsets.

::

    origin          floor                    next
      | finished ... | 7 7 7 0 7 9 9 0 0 9 ... |        the number of the consumer that holds it,
                                                        0 for one that is finished or has left

An array over a range of offsets, so that a grant is one slice assignment and a run of FINs one
gather, one compare and one scatter. No offset below `floor` is held. The range starts small and
grows; if a few slow messages would make it grow without need, delivery moves them to the pending
messages (see `crowd`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from martlet.broker.offset_ranges import Offsets

FIRST_CAPACITY = 64
COMFORTABLE_SPAN = 1 << 17
"""Up to this many offsets a window just grows."""
_NEAR = 4
"""Up to this many elements are examined one by one, before numpy searches in bulk."""
_SCAN = 1024
_NO_RANGES = np.empty((0, 2), np.uint64)


class InFlightWindow:
    """The offsets from `floor` up to `next`."""

    __slots__ = ("_holders", "_origin", "floor", "next")

    def __init__(self, start: int) -> None:
        self.floor = start
        self.next = start
        self._origin = start
        self._holders: npt.NDArray[np.int32] = np.zeros(FIRST_CAPACITY, np.int32)

    def grant(self, holder: int, end: int) -> None:
        """Give a holder the offsets from `next` up to `end`; 0 for none, which skips them."""
        assert self.floor <= self.next <= end
        if holder == 0 and self.floor == self.next:  # Nothing is held: no array is needed.
            self.floor = self.next = self._origin = end
            return
        if end - self._origin > len(self._holders):
            self._make_room(end)
        self._holders[self.next - self._origin : end - self._origin] = holder
        self.next = end

    def grant_one(self, holder: int) -> None:
        """Give a holder the offset `next`."""
        at = self.next - self._origin
        if at >= len(self._holders):
            self._make_room(self.next + 1)
            at = self.next - self._origin
        self._holders[at] = holder
        self.next += 1

    def _make_room(self, end: int) -> None:
        span = end - self.floor
        assert span > 0
        capacity = len(self._holders)
        while capacity < 2 * span:
            capacity *= 2
        if capacity > 4 * span and capacity > COMFORTABLE_SPAN:
            capacity //= 2
        held = self._holders[self.floor - self._origin : self.next - self._origin]
        fresh = np.zeros(capacity, np.int32)
        fresh[: len(held)] = held
        assert len(held) <= span <= capacity
        self._holders = fresh
        self._origin = self.floor

    def holds(self, holder: int, offset: int) -> bool:
        """Whether the offset is held by that holder."""
        return (
            self.floor <= offset < self.next and self._holders.item(offset - self._origin) == holder
        )

    def is_held(self, offset: int) -> bool:
        """Whether any consumer holds the offset."""
        if not self.floor <= offset < self.next:
            return False
        return self._holders.item(offset - self._origin) != 0

    def release(self, offset: int) -> None:
        """Release an offset, of any holder."""
        self._holders[offset - self._origin] = 0
        if offset == self.floor:
            self.advance()

    def release_one(self, holder: int, offset: int) -> bool:
        """Release an offset that a holder holds; False, and nothing done, where it does not."""
        if not self.floor <= offset < self.next:
            return False
        at = offset - self._origin
        if self._holders.item(at) != holder:
            return False
        self._holders[at] = 0
        if offset == self.floor:
            self.advance()
        return True

    def release_run(self, holder: int, offsets: Offsets) -> bool:
        """Release strictly rising offsets that a holder holds; False, and nothing done, where it
        does not hold all of them.
        """
        if int(offsets[0]) < self.floor or int(offsets[-1]) >= self.next:
            return False
        indexes = offsets - self._origin
        holders = self._holders
        if not (holders[indexes] == holder).all():
            return False
        holders[indexes] = 0
        if holders.item(self.floor - self._origin) == 0:
            self.advance()
        return True

    def held_of(self, holder: int, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Return which of some offsets, in any order, a holder holds."""
        inside = (offsets >= self.floor) & (offsets < self.next)
        inside[inside] = self._holders[offsets[inside] - self._origin] == holder
        return inside

    def release_range(self, holder: int, first: int, end: int) -> Offsets:
        """Release and return the offsets from `first` up to `end` that a holder holds."""
        first = max(first, self.floor)
        end = min(end, self.next)
        if first >= end:
            return np.empty(0, np.int64)
        slots = self._holders[first - self._origin : end - self._origin]
        indexes = np.flatnonzero(slots == holder)
        slots[indexes] = 0
        self.advance()
        return indexes + first

    def held_by(self, holder: int, first: int, end: int) -> list[int]:
        """Return the offsets from `first` up to `end` that a holder holds."""
        first = max(first, self.floor)
        end = min(end, self.next)
        if first >= end:
            return []
        slots = self._holders[first - self._origin : end - self._origin]
        offsets: list[int] = (np.flatnonzero(slots == holder) + first).tolist()
        return offsets

    def release_all(self, first: int, end: int) -> dict[int, int]:
        """Release the offsets from `first` up to `end`. Returns how many each holder had."""
        first = max(first, self.floor)
        end = min(end, self.next)
        if first >= end:
            return {}
        slots = self._holders[first - self._origin : end - self._origin]
        holders, counts = np.unique(slots[slots != 0], return_counts=True)
        slots[:] = 0
        self.advance()
        return dict(zip(holders.tolist(), counts.tolist(), strict=True))

    def advance(self) -> None:
        """Move the floor up to the first offset that is held."""
        at = self.floor - self._origin
        end = self.next - self._origin
        near = min(at + _NEAR, end)
        while at < near and not self._holders.item(at):
            at += 1
        if at == near:
            at = self._first_held(at, end)
        self.floor = self._origin + at
        assert self._origin <= self.floor <= self.next
        if at == end:
            self._origin = self.floor

    def _first_held(self, at: int, end: int) -> int:
        while at < end:
            held = self._holders[at : min(at + _SCAN, end)] != 0
            first = int(held.argmax())
            if held[first]:
                return at + first
            at += len(held)
        return end

    def crowd(self) -> int:
        """Return how many of the oldest offsets to move out, as few of very many are held."""
        span = self.next - self.floor
        if span <= COMFORTABLE_SPAN:
            return 0
        half = span // 2
        at = self.floor - self._origin
        held = int(np.count_nonzero(self._holders[at : at + half]))
        return half if held < half // 8 else 0

    def held(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the held offsets from `first` up to `end`, and their holders."""
        slots = self._holders[first - self._origin : end - self._origin]
        indexes = np.flatnonzero(slots)
        return list(zip((indexes + first).tolist(), slots[indexes].tolist(), strict=True))

    def held_offsets(self, first: int, end: int) -> Offsets:
        """Return the held offsets from `first` up to `end`, of any holder."""
        first = max(first, self.floor)
        end = min(end, self.next)
        if first >= end:
            return np.empty(0, np.int64)
        slots = self._holders[first - self._origin : end - self._origin]
        return np.flatnonzero(slots) + first

    def held_ranges(self) -> npt.NDArray[np.uint64]:
        """Return the held offsets, of any holder, as rows of (first offset, end offset)."""
        if self.floor == self.next:
            return _NO_RANGES
        slots = self._holders[self.floor - self._origin : self.next - self._origin]
        if np.count_nonzero(slots) == len(slots):  # The usual case, and faster.
            return np.array([[self.floor, self.next]], np.uint64)
        slots = slots != 0
        edges = np.flatnonzero(np.diff(np.concatenate(([False], slots, [False]))))
        return (edges + self.floor).astype(np.uint64).reshape(-1, 2)

    def go_back(self, offset: int) -> None:
        """Move `next` back to an offset from which on nothing is held."""
        assert offset <= self.next and not len(self.held_offsets(offset, self.next))
        if offset <= self.floor:
            self.reset(offset)
        else:
            self.next = offset

    def reset(self, offset: int) -> None:
        """Empty the window and move `next` to an offset."""
        self.floor = self.next = self._origin = offset
        self._holders = np.zeros(FIRST_CAPACITY, np.int32)
