"""The index of a queue: finding, moving, dropping, and what its file vouches for."""

from random import Random
from unittest.mock import Mock

import numpy as np
import pytest

from martlet.log import index as index_module
from martlet.log.index import ENTRY, Index, IndexEntry, index_name
from martlet.testing import SimulatedStorage


@pytest.fixture(autouse=True)
def few_rows_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MAX_ROWS_IN_MEMORY", 16)
    monkeypatch.setattr(index_module, "_KEPT_ROWS", 4)


@pytest.fixture
def storage() -> SimulatedStorage:
    return SimulatedStorage(Random(1))


def entry(number: int) -> IndexEntry:
    """Batches of 3 messages, the fourth of each four deferred, with a gap behind offset 149."""
    first = 3 * number if number < 50 else 3 * number + 100
    deferred = 5000 if number % 4 == 3 else 0
    return IndexEntry(first, 100 * number, 3, 96, 1000 + 10 * number, deferred)


def filled(storage: SimulatedStorage, count: int = 100) -> Index:
    index = Index(storage, 1, 0)
    for number in range(count):
        index.add(entry(number))
    return index


def test_rows_are_the_same_from_memory_and_from_the_file(storage: SimulatedStorage) -> None:
    index = filled(storage)
    assert index.end_row == 100
    index.add(entry(100))
    assert 0 < index.stored < 101
    assert [index.row(number) for number in range(101)] == [entry(n) for n in range(101)]
    for start, end in ((0, 101), (0, 5), (3, 99), (97, 101), (95, 200), (40, 40), (90, 20)):
        wanted = [entry(n) for n in range(start, min(end, 101))]
        assert index.rows(start, end) == wanted
        assert [IndexEntry._make(row) for row in index.array(start, end).tolist()] == wanted


def test_finding_by_offset(storage: SimulatedStorage) -> None:
    index = filled(storage)
    for offset in range(600):
        behind = [n for n in range(100) if entry(n).end_offset > offset]
        assert index.find(offset) == (behind[0] if behind else 100), offset
    assert Index(storage, 2, 0).find(0) == 0


def test_finding_by_time(storage: SimulatedStorage) -> None:
    index = filled(storage)
    for time_ns in range(900, 2100, 5):
        later = [n for n in range(100) if entry(n).stored_at_ns >= time_ns]
        assert index.find_time(time_ns) == (later[0] if later else 100), time_ns
    assert index.find_time(-(1 << 62)) == 0
    assert index.find_time(1 << 62) == 100


def test_finding_by_time_where_times_went_back(storage: SimulatedStorage) -> None:
    """Earlier versions went by a clock that was set back."""
    clock = [*range(100, 160), *range(20, 90), *range(150, 180), *range(40, 50)]
    index, later = Index(storage, 1, 0), Index(storage, 2, 0)
    assert later.newest_ns == 0
    rows = [entry(n)._replace(stored_at_ns=at) for n, at in enumerate([*clock, *range(180, 190)])]
    for row in rows:
        index.add(row)
        later.add(row)  # It was asked before, and notes times as they come.
    index.write()
    reopened = Index(storage, 1, 0, 0, index.stored, index.crc)
    for some in (index, later, reopened):
        assert some.newest_ns == 189
        for time_ns in range(10, 200):
            younger = [n for n, row in enumerate(rows) if row.stored_at_ns >= time_ns]
            assert some.find_time(time_ns) == (younger[0] if younger else len(rows)), time_ns
    index.drop_before(70)
    for time_ns in range(10, 200):
        younger = [n for n in range(70, len(rows)) if rows[n].stored_at_ns >= time_ns]
        assert index.find_time(time_ns) == (younger[0] if younger else len(rows)), time_ns


def test_deferred_messages_are_counted(storage: SimulatedStorage) -> None:
    index = filled(storage)
    deferred = {
        offset
        for n in range(100)
        if entry(n).deliver_at_ns
        for offset in range(entry(n).first_offset, entry(n).end_offset)
    }
    random = Random(3)
    for _ in range(200):
        first, end = sorted((random.randrange(500), random.randrange(500)))
        assert index.count_deferred(first, end) == len(deferred & set(range(first, end)))
    assert index.count_deferred(10, 10) == index.count_deferred(1000, 2000) == 0


def test_moved_rows_are_seen_at_once_and_written_with_the_next_checkpoint(
    storage: SimulatedStorage,
) -> None:
    index = filled(storage)
    index.write()
    crc = index.crc
    for number in (0, 50, 99):
        assert index.move(entry(number).first_offset, 7_000 + number)
        assert index.row(number).position == 7_000 + number
        assert index.rows(0, 100)[number].position == 7_000 + number
        assert index.array(number, number + 1)["position"] == [7_000 + number]
    assert not index.move(1, 8_000)
    assert not index.move(160, 8_000)
    reopened = Index(storage, 1, 0, 0, 100, crc)
    assert reopened.verify(), "the file is what the last checkpoint vouches for"
    index.write()
    assert not Index(storage, 1, 0, 0, 100, crc).verify()
    reopened = Index(storage, 1, 0, 0, 100, index.crc)
    assert reopened.verify()
    assert [reopened.row(n).position for n in (0, 50, 99)] == [7_000, 7_050, 7_099]


def test_moved_rows_that_follow_each_other_are_written_together(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that was cleaned may have held a hundred thousand of a topic's batches."""
    index = filled(storage)
    index.write()
    moved = [*range(40, 10, -1), 45, *range(60, 80)]
    for number in moved:
        assert index.move(entry(number).first_offset, 7_000 + number)
    write_at = Mock(wraps=storage.write_at)
    monkeypatch.setattr(storage, "write_at", write_at)
    index.write()
    assert [call.args[2] // ENTRY.itemsize for call in write_at.call_args_list] == [11, 45, 60]
    again = Index(storage, 1, 0, 0, 100, index.crc)
    assert again.verify()
    wanted = [entry(n)._replace(position=7_000 + n) if n in moved else entry(n) for n in range(100)]
    assert again.rows(0, 100) == wanted


def test_rows_below_are_dropped_and_the_rest_keep_their_numbers(
    storage: SimulatedStorage,
) -> None:
    index = filled(storage)
    index.move(0, 9)
    old = index.name
    index.drop_before(60)
    assert index.name == index_name(1, 0, 60) != old
    assert storage.read(old) is not None, "the last checkpoint still needs it"
    assert (index.first_row, index.end_row) == (60, 100)
    assert index.rows(0, 100) == [entry(n) for n in range(60, 100)]
    assert index.find(0) == 60
    assert index.find_time(0) == 60
    with pytest.raises(IndexError, match="row 59 has gone, the first is 60"):
        index.row(59)
    for number in range(100, 140):
        index.add(entry(number))
    index.write()
    reopened = Index(storage, 1, 0, 60, index.stored, index.crc)
    assert reopened.verify()
    assert reopened.rows(0, 200) == [entry(n) for n in range(60, 140)]


def test_all_rows_may_be_dropped(storage: SimulatedStorage) -> None:
    index = filled(storage)
    index.drop_before(100)
    assert index.first_row == index.end_row == 100
    assert index.rows(0, 200) == []
    assert index.find(5) == index.find_time(5) == 100
    index.add(entry(100))
    assert index.row(100) == entry(100)


def test_rows_are_filled_in_from_the_log(storage: SimulatedStorage) -> None:
    index = filled(storage, 30)
    rows = np.array([entry(n) for n in range(10, 20)], ENTRY)
    index.fill(rows)
    assert index.rows(0, 100) == [entry(n) for n in range(10, 20)]
    index.add(entry(20))
    assert index.row(10) == entry(20)
    assert Index(storage, 1, 0, 0, 10, index.crc).verify()


def test_a_changed_file_does_not_verify(storage: SimulatedStorage) -> None:
    index = filled(storage)
    index.write()
    name = index.name

    def verifies() -> bool:
        return Index(storage, 1, 0, 0, 100, index.crc).verify()

    assert verifies()
    storage.write_at(name, np.array([entry(100)], ENTRY).tobytes(), 4000)
    assert verifies(), "rows behind those that count do not matter"
    storage.write_at(name, b"\xff", 17)
    assert not verifies()
    storage.truncate(name, 3960)
    assert not verifies()
    storage.remove(name)
    assert not verifies()
    assert Index(storage, 1, 0).verify()


def test_a_full_disk_leaves_rows_in_memory(storage: SimulatedStorage) -> None:
    storage.capacity_bytes = 0
    index = filled(storage)
    assert index.stored == 0
    assert index.rows(0, 100) == [entry(n) for n in range(100)]
    with pytest.raises(OSError, match="No space left"):
        index.write()
    storage.capacity_bytes = None
    index.write()
    assert index.stored == 100
    assert index.rows(0, 100) == [entry(n) for n in range(100)]
