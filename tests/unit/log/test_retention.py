"""Which segments are needed, by how much, and what cleaning one leaves."""

from random import Random

import pytest

from martlet.log import retention
from martlet.log.commitlog import CommitLog
from martlet.log.index import Entry, Index
from martlet.log.record import Flag, Kind, journal_record, read_record
from martlet.log.retention import Need, clean, needed_bytes, worth_cleaning
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
            Kind.CURSOR, payload, position=0, epoch=0, topic=topic, stored_at_ns=0
        )
        first = index.end_row
        position = self.log.append_batch(
            memoryview(record), len(payload), 0, topic, 0, 0, first, 0, 0
        )
        index.add(Entry(first, position, 1, RECORD_BYTES, 0, 0))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(retention, "_ROWS_AT_ONCE", 7)
    made = Log()
    for number in range(100):
        made.append(made.big, 1)
        if number % 40 == 5:
            made.append(made.small, 2)
    return made


def test_needed_bytes_are_those_of_batches_beyond_an_offset(made: Log) -> None:
    segments = made.log.segments
    for lowest in (0, 1, 33, 99, 100):
        wanted = [0] * len(segments)
        for row in range(lowest, 100):
            wanted[made.big.row(row).position // SEGMENT_BYTES] += RECORD_BYTES
        assert needed_bytes(segments, [Need(made.big, lowest)]) == wanted
    both = needed_bytes(segments, [Need(made.big, 0), Need(made.small, 0)])
    assert sum(both) == 103 * RECORD_BYTES
    assert needed_bytes(segments, []) == [0] * len(segments)


def test_cleaning_moves_what_is_needed_and_frees_the_segment(made: Log) -> None:
    log = made.log
    needs = [Need(made.big, 100), Need(made.small, 0)]
    needed = needed_bytes(log.segments, needs)
    segment = worth_cleaning(log, needed)
    assert segment is not None
    number = log.segments.index(segment)
    assert 0 < needed[number] < SEGMENT_BYTES / 4
    assert clean(log, segment, needs) == needed[number]
    assert needed_bytes(log.segments, needs)[number] == 0
    assert sum(needed_bytes(log.segments, needs)) == sum(needed)
    for row in range(made.small.end_row):
        entry = made.small.row(row)
        record = log.view(entry.position, entry.length)
        assert record is not None
        header, _ = read_record(record, 0, entry.position)
        assert (header.topic, header.first_offset) == (2, row)
    assert any(
        read_record(log.view(e.position, e.length) or b"", 0, e.position)[0].flags & Flag.RELOCATED
        for e in made.small.rows(0, 10)
    )


def test_full_segments_and_few_of_them_are_left_alone(made: Log) -> None:
    log = made.log
    everything = [Need(made.big, 0), Need(made.small, 0)]
    assert worth_cleaning(log, needed_bytes(log.segments, everything)) is None
    nothing = needed_bytes(log.segments, [])
    assert worth_cleaning(log, nothing) is None
    needed = needed_bytes(log.segments, [Need(made.small, 0)])
    assert worth_cleaning(log, needed) is log.segments[0]
    assert worth_cleaning(log, needed, [log.segments[0].base]) not in (None, log.segments[0])
    del log.segments[3:]
    assert worth_cleaning(log, needed_bytes(log.segments, [Need(made.small, 0)])) is None
