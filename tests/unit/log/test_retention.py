"""Which segments are needed, by how much, and what cleaning one leaves."""

from random import Random

import numpy as np
import pytest

from martlet.log import retention
from martlet.log.commit_log import CommitLog
from martlet.log.index import Index, IndexEntry
from martlet.log.record import Contents, RecordFlag, RecordKind, journal_record, read_record
from martlet.log.retention import (
    Need,
    NeedCounter,
    SegmentLocator,
    clean,
    needed_bytes,
    worth_cleaning,
)
from martlet.testing import SimulatedStorage

SEGMENT_BYTES = 4096
RECORD_BYTES = 400


class Log:
    """A log of batches that alternate between a small topic and a big one."""

    def __init__(self) -> None:
        self.storage = SimulatedStorage(Random(1))
        self.log = CommitLog(self.storage, [], 0, 1, SEGMENT_BYTES)
        self.big, self.small = Index(self.storage, 1, 0), Index(self.storage, 2, 0)

    def append(self, index: Index, topic: int) -> None:
        payload = b"x" * (RECORD_BYTES - 80)
        record = journal_record(
            RecordKind.CURSOR, payload, position=0, epoch=0, topic=topic, stored_at_ns=0
        )
        first = index.end_row
        position = self.log.append_batch(
            memoryview(record), 0, Contents(topic, 0, 0, first, 0, 0, len(payload))
        )
        index.add(IndexEntry(first, position, 1, RECORD_BYTES, 0, 0))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(retention, "_ROWS_AT_ONCE", 7)
    made = Log()
    for number in range(100):
        made.append(made.big, 1)
        if number % 40 == 5:
            made.append(made.small, 2)
    return made


def need(made: Log, index: Index, first_row: int, *below: int) -> Need:
    """All from a row on, and some rows below. A row is an offset here."""
    tally = NeedCounter(index)
    for _ in tally.count(SegmentLocator(made.log.segments), first_row):
        pass
    return Need(index, tally, np.array(below, np.uint64))


def bytes_of(made: Log, index: Index, rows: range | list[int]) -> list[int]:
    """How many bytes of each segment some rows take up."""
    wanted = [0] * len(made.log.segments)
    for row in rows:
        wanted[index.row(row).position // SEGMENT_BYTES] += RECORD_BYTES
    return wanted


def test_needed_bytes_are_those_of_batches_beyond_an_offset(made: Log) -> None:
    segments = made.log.segments
    for lowest in (0, 1, 33, 99, 100):
        wanted = bytes_of(made, made.big, range(lowest, 100))
        assert needed_bytes(segments, [need(made, made.big, lowest)]) == wanted
    both = needed_bytes(segments, [need(made, made.big, 0), need(made, made.small, 0)])
    assert sum(both) == 103 * RECORD_BYTES
    assert needed_bytes(segments, []) == [0] * len(segments)


@pytest.mark.parametrize("written", [False, True])
def test_needed_bytes_of_single_batches_are_counted_beside_those_from_the_floor_on(
    made: Log, written: bool
) -> None:
    if written:
        made.big.write()
        made.append(made.big, 1)
    needs = [need(made, made.big, 90, 0, 1, 40, 89, 95)]
    wanted = bytes_of(made, made.big, [0, 1, 40, 89, *range(90, made.big.end_row)])
    assert needed_bytes(made.log.segments, needs) == wanted


def test_a_tally_follows_the_rows_wherever_the_floor_goes(made: Log) -> None:
    places = SegmentLocator(made.log.segments)
    tally = NeedCounter(made.big)
    looked: list[tuple[int, int]] = []
    array = made.big.array

    def noting(start: int, end: int) -> object:
        looked.append((start, end))
        return array(start, end)

    made.big.array = noting  # type: ignore[method-assign, assignment]
    random = Random(4)
    floors = [0, 3, 60, 20, 100, 40, *(random.randrange(100) for _ in range(50))]
    for number, floor in enumerate(floors):
        if number % 4 == 0:
            made.append(made.big, 1)
        steps = tally.count(places, floor)
        for _ in range(random.randrange(4)):
            next(steps, None)
        for _ in tally.count(places, floor):
            pass
        wanted = bytes_of(made, made.big, range(floor, made.big.end_row))
        assert [tally.bytes_by_base.get(s.base, 0) for s in made.log.segments] == wanted
    assert max(end - start for start, end in looked) == 7
    looked.clear()
    assert list(tally.count(places, floors[-1])) == []
    assert looked == [], "nothing has changed, so nothing is looked at"


def test_a_count_ends_although_each_step_finds_new_rows(made: Log) -> None:
    """A checkpoint never began while a broker took messages without a pause."""
    places, tally = SegmentLocator(made.log.segments), NeedCounter(made.big)
    for step, _ in enumerate(tally.count(places, 0)):
        made.append(made.big, 1)
        assert step < 15
    assert tally.end_row == 100
    assert list(tally.count(places, 0))
    wanted = bytes_of(made, made.big, range(115))
    assert [tally.bytes_by_base.get(s.base, 0) for s in made.log.segments] == wanted


def segment_base(position: int) -> int:
    return position // SEGMENT_BYTES * SEGMENT_BYTES


def test_segments_that_have_gone_have_no_places(made: Log) -> None:
    places = SegmentLocator(made.log.segments)
    places.find(np.empty(0, np.uint64))
    positions = np.array([made.big.row(row).position for row in range(100)], np.uint64)
    before = [segment_base(int(position)) for position in positions]
    assert places.bases[places.find(positions)].tolist() == before
    gone = made.log.segments[3]
    made.log.flushed(made.log.flush_job())
    made.log.retire(gone)
    numbers = places.find(positions)
    assert [n < 0 for n in numbers] == [base == gone.base for base in before]


def test_cleaning_moves_needed_records_and_frees_the_segment(made: Log) -> None:
    log = made.log
    needs = [need(made, made.big, 99, 4), need(made, made.small, 0)]
    needed = needed_bytes(log.segments, needs)
    segment = log.segments[0]
    assert needed[0] == 2 * RECORD_BYTES, "one row of either"
    assert worth_cleaning(log, needed, [s.base for s in log.segments[1:]]) is segment
    for _ in clean(log, segment, needs):
        pass
    assert needed_bytes(log.segments, needs)[0] == 0
    assert sum(needed_bytes(log.segments, needs)) == sum(needed)
    for row in range(made.small.end_row):
        entry = made.small.row(row)
        record = log.view(entry.position, entry.length)
        assert record is not None
        header, _ = read_record(record, 0, entry.position)
        assert (header.topic, header.first_offset) == (2, row)
    assert any(
        read_record(log.view(e.position, e.length) or b"", 0, e.position)[0].flags
        & RecordFlag.RELOCATED
        for e in made.small.rows(0, 10)
    )


def test_full_segments_and_few_of_them_are_left_alone(made: Log) -> None:
    log = made.log
    everything = [need(made, made.big, 0), need(made, made.small, 0)]
    assert worth_cleaning(log, needed_bytes(log.segments, everything)) is None
    nothing = needed_bytes(log.segments, [])
    assert worth_cleaning(log, nothing) is None
    needed = needed_bytes(log.segments, [need(made, made.small, 0)])
    assert worth_cleaning(log, needed) is log.segments[0]
    assert worth_cleaning(log, needed, [log.segments[0].base]) not in (None, log.segments[0])
    del log.segments[3:]
    assert worth_cleaning(log, needed_bytes(log.segments, [need(made, made.small, 0)])) is None
