"""The messages that are done: counted, written to the journal, and read back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from martlet.broker.delayed import done_bitmap as marks_module
from martlet.broker.delayed.done_bitmap import DoneBitmap, pack_offsets


def marked(marks: DoneBitmap, end: int = 80) -> set[int]:
    return {offset for offset in range(end) if marks.has(offset)}


steps = st.lists(st.sets(st.integers(0, 60), max_size=9), max_size=8)


@settings(max_examples=60)
@given(steps, st.sets(st.integers(0, 70), max_size=6))
def test_the_bitmap_is_a_set_of_offsets(added: list[set[int]], doubtful: set[int]) -> None:
    small = pytest.MonkeyPatch()
    small.setattr(marks_module, "_PIECE", 3)
    small.setattr(marks_module, "OLDEST", 4)
    marks, expected, entries = DoneBitmap(), set[int](), []
    for some in added:
        offsets = np.array(sorted(some), np.int64)
        assert set(marks.add(offsets).tolist()) == some - expected
        expected |= some
        entries.append(pack_offsets(offsets))
    assert marked(marks) == expected
    assert marks.count == len(expected)
    left = sorted(set(range(80)) - expected)
    assert marks.front == left[0]
    assert marks.unmarked(0, 80).tolist() == left
    assert marks.unmarked(5, 80, 3).tolist() == [o for o in left if o >= 5][:3]
    floor, below = marks.kept(80)
    assert [*below, *(o for o in left if o >= floor)] == left
    assert len(below) <= 4
    every = np.arange(80, dtype=np.uint64)
    assert set(np.flatnonzero(marks.has_each(every)).tolist()) == expected
    uncertain = np.array(sorted(doubtful & expected), np.int64)
    copy = DoneBitmap()
    copy.apply(marks.pack(uncertain))
    assert (marked(copy), copy.count) == (expected - doubtful, len(expected - doubtful))
    for entry in [*reversed(entries), marks.pack()]:
        copy.apply(entry)
    assert (marked(copy), copy.count, copy.front) == (expected, len(expected), marks.front)
    small.undo()
