"""An index of batches that stand in no log."""

from __future__ import annotations

from random import Random

from martlet.log.index import Index, IndexEntry
from martlet.testing import SimulatedStorage


def filled(counts: list[int], stored_at_ns: list[int]) -> Index:
    """Make an index of batches with the given message counts and times."""
    index = Index(SimulatedStorage(Random(0)), 1, 0)
    first = 0
    for count, stored_at in zip(counts, stored_at_ns, strict=True):
        index.add(IndexEntry(first, first * 100, count, count * 100, stored_at, 0))
        first += count
    return index
