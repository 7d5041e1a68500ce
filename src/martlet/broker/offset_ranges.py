"""Ranges of offsets, from a first one up to an end.

Ranges that belong together rise and do not touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
Stretch = tuple[int, int]
"""A range, (first, end)."""


def apart_from(voids: Iterable[Stretch], first: int, end: int) -> Iterator[Stretch]:
    """Yield the offsets from `first` up to `end` that no void contains, as ranges."""
    for void, stop in voids:
        if void >= end:
            break
        if first < void:
            yield first, void
        first = max(first, stop)
    if first < end:
        yield first, end


def with_stretch(stretches: Iterable[Stretch], first: int, end: int) -> list[Stretch]:
    """Return ranges with one more added, which may touch or cover others, or be empty."""
    if first == end:
        return list(stretches)
    before: list[Stretch] = []
    behind: list[Stretch] = []
    for begin, stop in stretches:
        if stop < first:
            before.append((begin, stop))
        elif begin > end:
            behind.append((begin, stop))
        else:
            first, end = min(first, begin), max(end, stop)
    return [*before, (first, end), *behind]


def inside(stretches: Sequence[Stretch], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return those of some offsets that lie in any of the ranges."""
    if not len(stretches) or not len(offsets):
        return offsets[:0]
    edges = np.array(stretches, np.int64)
    numbers = np.searchsorted(edges[:, 0], offsets, "right") - 1
    within: npt.NDArray[np.bool_] = (numbers >= 0) & (offsets < edges[numbers, 1])
    return offsets[within]


def merged(firsts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[Stretch]:
    """Merge rising ranges that touch."""
    if not len(firsts):
        return []
    breaks = np.flatnonzero(firsts[1:] > ends[:-1])
    begins = firsts[np.concatenate(([0], breaks + 1))]
    stops = ends[np.concatenate((breaks, [len(ends) - 1]))]
    return list(zip(begins.tolist(), stops.tolist(), strict=True))


def distinct(arrays: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return the offsets of several arrays, rising, each once.

    `np.unique` does the same with a hash table, which takes twenty times as long for nearly sorted
    input.
    """
    offsets = np.concatenate(arrays)
    offsets.sort(kind="stable")
    fresh = np.ones(len(offsets), np.bool_)
    np.not_equal(offsets[1:], offsets[:-1], out=fresh[1:])
    return offsets[fresh]
