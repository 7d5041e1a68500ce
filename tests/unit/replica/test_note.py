"""What a replica never forgets."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from martlet.replica.note import NAME, BadNote, ReplicaNote
from martlet.testing import SimulatedStorage


def test_a_note_outlives_a_power_cut() -> None:
    storage = SimulatedStorage(Random(1))
    assert ReplicaNote.load(storage) == ReplicaNote(0, False, ()), "it may be a new disk"
    note = replace(
        ReplicaNote(), pledged=7, is_whole=False, epochs=((6, 0, 80), (7, 80, 160)), replica="b"
    )
    note.save(storage)
    assert ReplicaNote.load(storage.crash(power=True)) == note


@pytest.mark.parametrize("data", [b"", b"{}", b'{"pledged": 1, "is_whole": true, "epochs": [1]}'])
def test_a_note_that_cannot_be_read_is_no_new_one(data: bytes) -> None:
    """Without its pledges a replica could follow two primaries."""
    storage = SimulatedStorage(Random(1))
    storage.replace(NAME, data)
    with pytest.raises(BadNote, match="replace this replica by an empty one"):
        ReplicaNote.load(storage)
