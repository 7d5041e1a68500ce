"""The checkpoint file: it reads back, or says why it cannot be used."""

from random import Random

import pytest

from martlet.log import checkpoint_file as checkpoint
from martlet.log.checkpoint_file import Checkpoint, JournalEntry, load, pack
from martlet.log.record import RecordKind
from martlet.testing import SimulatedStorage

ENTRIES: list[JournalEntry] = [
    (RecordKind.TOPOLOGY, 0, b'{"op":"snapshot"}'),
    (RecordKind.CURSOR, 3, b"a cursor"),
    (RecordKind.CURSOR, 4, b""),
]


@pytest.fixture
def storage() -> SimulatedStorage:
    storage = SimulatedStorage(Random(1))
    storage.replace(checkpoint.NAME, pack(ENTRIES, epoch=4, stored_at_ns=5))
    return storage


def test_a_checkpoint_is_read_back(storage: SimulatedStorage) -> None:
    assert load(storage) == Checkpoint(ENTRIES, 5)


def test_every_flipped_byte_is_noticed(storage: SimulatedStorage) -> None:
    good = storage.read(checkpoint.NAME)
    assert good is not None
    for place in range(len(good)):
        broken = bytearray(good)
        broken[place] ^= 32
        storage.replace(checkpoint.NAME, bytes(broken))
        trouble = load(storage)
        assert isinstance(trouble, str)
        assert trouble.startswith("the checkpoint is damaged: position ")


def test_a_cut_or_empty_or_missing_one_is_not_used(storage: SimulatedStorage) -> None:
    good = storage.read(checkpoint.NAME)
    assert good is not None
    storage.replace(checkpoint.NAME, good[:-8])
    assert str(load(storage)).startswith("the checkpoint is damaged")
    storage.replace(checkpoint.NAME, b"")
    assert load(storage) == "the checkpoint is empty"
    storage.remove(checkpoint.NAME)
    assert load(storage) == "there is no checkpoint"
