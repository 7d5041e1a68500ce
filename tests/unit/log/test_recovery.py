"""Reading a log forward: its end, its damage, and the remains of an earlier life."""

from random import Random

import pytest
from tests.property.log.feed import flushed

from martlet.log.commit_log import CommitLog
from martlet.log.record import HEADER_BYTES, RecordKind, journal_record
from martlet.log.recovery import RecoveryReport, scan
from martlet.log.storage import Storage
from martlet.testing import SimulatedStorage

SEGMENT_BYTES = 1024


def new_log(storage: Storage, position: int = 0) -> CommitLog:
    return CommitLog(storage, storage.segments(), position, 1, SEGMENT_BYTES)


@pytest.fixture
def log() -> CommitLog:
    return new_log(SimulatedStorage(Random(1)))


def append(log: CommitLog, *contents: bytes) -> list[int]:
    return [log.append_journal(RecordKind.CURSOR, c, topic=1, stored_at_ns=1) for c in contents]


def bytes_of(log: CommitLog, base: int) -> bytearray:
    """The bytes of a segment, to be damaged."""
    assert isinstance(log.storage, SimulatedStorage)
    return log.storage.segment_bytes_of(base)


def read(log: CommitLog, start: int = 0) -> tuple[list[bytes], RecoveryReport]:
    report = RecoveryReport()
    found = [
        bytes(record[HEADER_BYTES : HEADER_BYTES + header.payload_length])
        for header, record in scan(log.storage.segments(), start, report)
    ]
    return found, report


def test_a_whole_log_over_segments(log: CommitLog) -> None:
    contents = [b"%d" % n * 60 for n in range(40)]
    positions = append(log, *contents)
    found, report = read(log)
    assert found == contents
    assert report.end_position == log.position
    assert (report.cut, report.damaged, report.last_epoch) == (None, [], 1)
    found, report = read(log, positions[7])
    assert found == contents[7:]
    found, report = read(log, log.position)
    assert found == []
    assert report.end_position == log.position


def test_an_empty_log(log: CommitLog) -> None:
    found, report = read(log)
    assert (found, report.end_position, report.cut, report.damaged) == ([], 0, None, [])
    assert next(scan([], 0, report), None) is None
    assert report.end_position == 0


def test_a_torn_tail_is_cut_and_reported(log: CommitLog) -> None:
    *_, last = append(log, b"one", b"two", b"three" * 20)
    content = bytes_of(log, 0)
    content[last + 100 : log.position] = bytes(log.position - last - 100)
    found, report = read(log)
    assert found == [b"one", b"two"]
    assert report.end_position == last
    assert report.cut is not None
    assert report.cut.start == last
    assert "checksum" in str(report.cut)
    assert report.damaged == []


def test_a_flipped_bit_in_the_middle_is_skipped_and_reported(log: CommitLog) -> None:
    positions = append(log, b"one", b"two", b"three", b"four")
    bytes_of(log, 0)[positions[1] + HEADER_BYTES] ^= 4
    found, report = read(log)
    assert found == [b"one", b"three", b"four"]
    (damage,) = report.damaged
    assert (damage.start, damage.end) == (positions[1], positions[2])
    assert f"{damage.end - damage.start} bytes from position {damage.start} are lost" in str(damage)
    assert report.cut is None
    assert report.end_position == log.position


def test_damage_up_to_the_end_of_a_segment(log: CommitLog) -> None:
    contents = [b"%02d" % n * 50 for n in range(20)]
    positions = append(log, *contents)
    in_first = [n for n, position in enumerate(positions) if position < SEGMENT_BYTES]
    content = bytes_of(log, 0)
    content[positions[in_first[-1]] :] = bytes(SEGMENT_BYTES - positions[in_first[-1]])
    found, report = read(log)
    assert found == contents[: in_first[-1]] + contents[in_first[-1] + 1 :]
    (damage,) = report.damaged
    assert (damage.start, damage.end) == (positions[in_first[-1]], SEGMENT_BYTES)


def test_a_missing_segment_is_a_hole(log: CommitLog) -> None:
    contents = [b"%02d" % n * 50 for n in range(20)]
    positions = append(log, *contents)
    log.storage.retire(log.storage.segments()[1])
    found, report = read(log)
    assert found == [
        content
        for content, position in zip(contents, positions, strict=True)
        if not SEGMENT_BYTES <= position < 2 * SEGMENT_BYTES
    ]
    assert report.end_position == log.position


def test_stale_records_of_a_recycled_segment_are_nothing(log: CommitLog) -> None:
    append(log, *[b"%02d" % n * 50 for n in range(20)])
    for segment in log.storage.segments()[:-1]:
        flushed(log)
        log.retire(segment)
    for _ in range(12):
        append(log, b"new" * 100)
        _, report = read(log)
        assert report.end_position == log.position
        assert (report.cut, report.damaged) == (None, [])
    assert b"040404" in b"".join(bytes(s.view) for s in log.segments), "nothing stale is there"


def test_a_misplaced_record_is_nothing(log: CommitLog) -> None:
    append(log, b"one")
    content = bytes_of(log, 0)
    content[log.position : 2 * log.position] = content[: log.position]
    found, report = read(log)
    assert found == [b"one"]
    assert report.end_position == log.position


def test_the_last_segment_exactly_full(log: CommitLog) -> None:
    (first,) = append(log, b"x" * (SEGMENT_BYTES - HEADER_BYTES))
    assert (first, log.position) == (0, SEGMENT_BYTES)
    for _ in range(2):
        found, report = read(log)
        assert len(found) == 1
        assert report.end_position == SEGMENT_BYTES
        log = new_log(log.storage, report.end_position)
    assert append(log, b"next") == [SEGMENT_BYTES]
    assert len(read(log)[0]) == 2


def test_the_rest_of_a_segment_may_be_too_short_for_a_header(log: CommitLog) -> None:
    append(log, b"x" * (SEGMENT_BYTES - HEADER_BYTES - 40))
    append(log, b"next")
    found, report = read(log)
    assert (len(found), report.damaged, report.cut) == (2, [], None)
    assert report.end_position == log.position


def test_a_segment_was_begun_and_nothing_written(log: CommitLog) -> None:
    append(log, b"x" * 700, b"y" * 700)
    segment = log.segments[-1]
    bytes_of(log, segment.base)[:] = bytes(SEGMENT_BYTES)
    found, report = read(log)
    assert len(found) == 1
    assert report.end_position < segment.base
    assert report.damaged == []


def test_a_record_that_looks_good_in_the_body_of_another_is_not_read(log: CommitLog) -> None:
    inner = journal_record(
        RecordKind.CURSOR, b"forged", position=HEADER_BYTES, epoch=1, topic=1, stored_at_ns=1
    )
    append(log, bytes(inner), b"last")
    assert read(log)[0] == [bytes(inner), b"last"]


def test_the_end_of_a_segment_that_went_on_is_not_the_end_of_the_log(log: CommitLog) -> None:
    """The next segment found no room, so this one went on; then a power cut took what stood over
    the record that had ended it.
    """
    _, second, third = append(log, b"one", b"two", b"three")
    end = journal_record(
        RecordKind.SEGMENT_END, b"", position=second, epoch=1, topic=0, stored_at_ns=0
    )
    bytes_of(log, 0)[second : second + len(end)] = end
    found, report = read(log)
    assert found == [b"one", b"three"]
    assert [(damage.start, damage.end) for damage in report.damaged] == [(second, third)]
    assert report.end_position == log.position


def test_a_record_of_a_lower_epoch_was_cut_off_and_does_not_count(log: CommitLog) -> None:
    """A power cut can bring it back: its position and its checksum are right."""
    append(log, b"one")
    log.epoch = 3
    position, _ = append(log, b"two", b"three")
    stale = journal_record(
        RecordKind.CURSOR, b"old", position=log.position, epoch=2, topic=1, stored_at_ns=1
    )
    bytes_of(log, 0)[log.position : log.position + len(stale)] = stale
    found, report = read(log)
    assert found == [b"one", b"two", b"three"]
    assert (report.end_position, report.last_epoch, report.damaged) == (log.position, 3, [])
    assert [(r.epoch, r.start, r.end) for r in report.epochs.ranges] == [
        (1, 0, position),
        (3, position, log.position),
    ]
