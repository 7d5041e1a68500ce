"""The commit log: segments that follow each other, a disk that is full, flushes that fail."""

import errno
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from tests.property.log.feed import flushed

from martlet.log import fsync_marker
from martlet.log.commit_log import CommitLog, WritesRefused
from martlet.log.record import Contents, RecordKind, payload, read_record
from martlet.log.recovery import RecoveryReport, scan
from martlet.log.segmented import FlushJob
from martlet.testing import SimulatedStorage

SEGMENT_BYTES = 2048


def new_log(storage: SimulatedStorage, position: int = 0, durable: int = 0) -> CommitLog:
    return CommitLog(storage, storage.segments(), position, 1, SEGMENT_BYTES, durable)


@pytest.fixture
def storage() -> SimulatedStorage:
    return SimulatedStorage(Random(1))


@pytest.fixture
def log(storage: SimulatedStorage) -> CommitLog:
    return new_log(storage)


def append(log: CommitLog, content: bytes = b"x" * 200) -> int:
    return log.append_journal(RecordKind.CURSOR, content, topic=1, stored_at_ns=1)


def many(act: Callable[[], object]) -> None:
    for _ in range(100):
        act()


def test_segments_follow_each_other_and_records_never_cross_their_ends(log: CommitLog) -> None:
    positions = [append(log) for _ in range(60)]
    assert [segment.base for segment in log.segments] == list(
        range(0, len(log.segments) * SEGMENT_BYTES, SEGMENT_BYTES)
    )
    for position in positions:
        record = log.view(position, 280)
        assert record is not None
        assert read_record(record, 0, position)[0].position == position
        assert position // SEGMENT_BYTES == (position + 279) // SEGMENT_BYTES


def test_each_segment_begins_with_the_head_of_its_owner(log: CommitLog) -> None:
    heads: list[int] = []

    log.on_roll = lambda: heads.append(append(log, b"head" * 10))
    for _ in range(30):
        append(log)
    assert heads == [segment.base for segment in log.segments[1:]]


@pytest.mark.parametrize("size", [1500, 1800, 1968, 2048, 4000, 9001])
def test_a_record_that_does_not_fit_behind_a_head_does_not_roll_for_ever(
    log: CommitLog, size: int
) -> None:

    def head() -> None:
        append(log, b"head" * 100)

    log.on_roll = head
    append(log)
    for _ in range(3):
        position = append(log, b"y" * size)
        segment = log.find(position)
        assert segment is not None
        assert position + size < segment.base + segment.capacity
    assert len(log.segments) <= 8


def test_a_head_longer_than_a_segment_goes_on_in_the_next(log: CommitLog) -> None:

    def head() -> None:
        for _ in range(3):
            append(log, b"head" * 300)

    log.on_roll = head
    for _ in range(30):
        append(log)
    assert len(log.segments) < 60


def test_a_full_disk_refuses_messages_and_lets_the_journal_have_the_reserve() -> None:
    storage = SimulatedStorage(Random(1))
    storage.capacity_bytes = 4 * SEGMENT_BYTES
    log = new_log(storage)
    record = memoryview(bytearray(1024))

    def publish() -> None:
        log.append_batch(record, 0, Contents(1, 0, 1, 0, 0, 0, 1024 - 80 - 8))

    with pytest.raises(WritesRefused, match="the disk is full"):
        many(publish)
    assert log.full is not None
    assert len(log.segments) == 3
    append(log, b"z" * 1500)
    assert len(log.segments) == 4
    with pytest.raises(WritesRefused, match="the disk is full"):
        many(lambda: append(log, b"z" * 1500))
    flushed(log)
    log.retire(log.segments[0])
    log.retire(log.segments[0])
    publish()
    assert log.full is None


def test_a_segment_that_cannot_be_made_refuses_and_is_tried_again(
    storage: SimulatedStorage,
    log: CommitLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create = storage.create

    def fails(base: int, capacity: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(storage, "create", fails)
    with pytest.raises(WritesRefused, match=r"no segment could be begun: .*Too many open files"):
        many(lambda: append(log))
    monkeypatch.setattr(storage, "create", create)
    append(log)
    assert (log.full, log.failed) == (None, None)


def test_a_write_that_fails_is_the_last(storage: SimulatedStorage, log: CommitLog) -> None:
    append(log)
    storage.write_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(WritesRefused, match="writing to the log failed"):
        append(log)
    storage.write_error = None
    with pytest.raises(WritesRefused, match="no more messages are taken"):
        append(log)


def test_a_flush_that_fails_is_not_tried_again(storage: SimulatedStorage, log: CommitLog) -> None:
    append(log)
    storage.flush_error = OSError(errno.EIO, "Input/output error")
    job = log.flush_job()
    with pytest.raises(OSError, match="Input/output error") as raised:
        job.run()
    log.flush_failed(raised.value)
    assert log.durable_position == 0
    with pytest.raises(WritesRefused, match="check the disk, then start the broker again"):
        append(log)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_that_a_full_disk_fails_is_tried_again(
    storage: SimulatedStorage, log: CommitLog, number: int
) -> None:
    append(log)
    position = log.position
    storage.write_error = OSError(number, "no space")
    for _ in range(3):
        with pytest.raises(WritesRefused, match="the disk is full: writing to the log failed"):
            append(log)
    assert (log.failed, log.position) == (None, position)
    assert str(log.full).startswith("the disk is full")
    storage.write_error = None
    assert append(log) == position
    assert (log.full, log.failed) == (None, None)
    many(lambda: append(log))
    assert len(log.segments) > 2


def test_of_entries_that_a_full_disk_refused_none_comes_back() -> None:
    """The disk may have taken some of them whole, and the next record ends where one begins."""
    for seed in range(50):
        storage = SimulatedStorage(Random(seed))
        log = new_log(storage)
        append(log, b"first")
        storage.write_error = OSError(errno.ENOSPC, "no space")
        with pytest.raises(WritesRefused):
            log.append_entries(RecordKind.CURSOR, [(1, b"refused %d" % n) for n in range(9)], 1)
        storage.write_error = None
        append(log, b"stored  0")
        report = RecoveryReport()
        records = list(scan(storage.crash().segments(), 0, report))
        assert [bytes(payload(*record)) for record in records] == [b"first", b"stored  0"]
        assert report.end_position == log.position
        assert not report.damaged


@pytest.mark.parametrize("whole_entries", [0, 1])
def test_a_segment_whose_head_a_full_disk_cut_short_releases_no_other(
    storage: SimulatedStorage, log: CommitLog, whole_entries: int
) -> None:

    def head() -> None:
        for _ in range(whole_entries):
            append(log, b"begun")
        storage.write_error = OSError(errno.ENOSPC, "no space")
        append(log, b"not written")

    log.on_roll = head
    with pytest.raises(WritesRefused):
        many(lambda: append(log))
    storage.write_error = None
    jobs: list[FlushJob] = []

    def next_head() -> None:
        jobs.append(log.flush_job())
        append(log, b"head")

    log.on_roll = next_head
    while len(log.segments) < 3:
        append(log)
    first, cut_short, last = log.segments
    jobs[0].run()
    log.flushed(jobs[0])
    assert cut_short.base + cut_short.capacity == last.base == log.durable_position
    assert not log.is_releasable(first)
    flushed(log)
    assert log.is_releasable(first), "the next head is whole"


def test_a_flush_that_a_full_disk_fails_is_tried_again_with_what_is_in_doubt() -> None:
    for seed in range(20):
        storage = SimulatedStorage(Random(seed))
        log = new_log(storage)
        many(partial(append, log))
        storage.flush_error = OSError(errno.ENOSPC, "no space")
        for _ in range(2):
            with pytest.raises(OSError, match="no space") as raised:
                log.flush_job().run()
            log.flush_failed(raised.value)
        with pytest.raises(WritesRefused, match="make room on the disk; it is tried again"):
            append(log)
        storage.flush_error = None
        flushed(log)
        assert (log.failed, log.durable_position) == (None, log.position)
        many(partial(append, log))
        flushed(log)
        assert fsync_marker.doubtful_from(storage) is None
        report = RecoveryReport()
        after = storage.crash(power=True)
        assert len(list(scan(after.segments(), 0, report))) == 200


def test_a_flush_is_not_tried_again_if_what_is_in_doubt_is_gone(
    storage: SimulatedStorage, log: CommitLog
) -> None:
    append(log)
    storage.flush_error = OSError(errno.ENOSPC, "no space")
    with pytest.raises(OSError, match="no space") as raised:
        log.flush_job().run()
    log.flush_failed(raised.value)
    storage.flush_error = None
    storage.segment_bytes_of(0)[100] ^= 1  # The kernel has dropped the page.
    with pytest.raises(OSError, match="what was written is not there any more") as gone:
        log.flush_job().run()
    log.flush_failed(gone.value)
    assert not log.may_recover
    with pytest.raises(WritesRefused, match="check the disk, then start the broker again"):
        append(log)


def test_only_flushed_records_must_survive_a_power_cut() -> None:
    kept = 0
    for seed in range(60):
        storage = SimulatedStorage(Random(seed))
        log = new_log(storage)
        for _ in range(10):
            append(log)
        durable = flushed(log).position
        assert log.durable_position == log.position
        for _ in range(10):
            append(log)
        after = storage.crash(power=True)
        there = [
            bytes(a.view) == bytes(b.view)
            for a, b in zip(after.segments(), log.segments, strict=True)
        ]
        kept += all(there)
        for segment in after.segments():
            flushed_bytes = max(0, min(segment.capacity, durable - segment.base))
            original = log.find(segment.base)
            assert original is not None
            assert segment.view[:flushed_bytes] == original.view[:flushed_bytes]
    assert 0 < kept < 30, "some power cuts lose something, and not all lose everything"


def test_a_flush_covers_an_unfinished_one(log: CommitLog) -> None:
    for _ in range(20):
        append(log)
    first, second = log.flush_job(), log.flush_job()
    assert first.segments == second.segments == tuple(log.segments)
    log.flushed(second)
    assert log.flush_job().segments == ()
    append(log)
    assert log.flush_job().segments == (log.segments[-1],)
    log.flushed(first)
    assert log.flush_job().segments == (log.segments[-1],)


def test_the_first_flush_covers_records_from_before_the_start() -> None:
    storage = SimulatedStorage(Random(1))
    log = new_log(storage)
    for _ in range(30):
        append(log)
    storage = storage.crash()
    again = new_log(storage, log.position, 2 * SEGMENT_BYTES)
    assert [s.base for s in again.flush_job().segments] == [
        s.base for s in again.segments if s.base >= 2 * SEGMENT_BYTES
    ]


def test_positions_go_on_behind_a_hole() -> None:
    storage = SimulatedStorage(Random(1))
    log = new_log(storage)
    append(log)
    flushed(log)
    storage = storage.crash()
    log = new_log(storage, 10 * SEGMENT_BYTES)
    assert append(log) == 10 * SEGMENT_BYTES
    assert log.find(5 * SEGMENT_BYTES) is None
    assert log.view(5 * SEGMENT_BYTES, 8) is None
    assert log.view(0, 280) is not None
