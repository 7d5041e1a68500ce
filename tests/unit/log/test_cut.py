"""The end of a log is cut off, on a real disk."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from tests.property.log.feed import flushed

from martlet.log import cut
from martlet.log.commit_log import CommitLog
from martlet.log.cut import cut_off, finish_cut
from martlet.log.folder import Folder
from martlet.log.record import RecordKind
from martlet.log.recovery import RecoveryReport, scan
from martlet.log.storage import DiskStorage, Segment, Storage
from martlet.testing import SimulatedStorage

SEGMENT_BYTES = 4096


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[DiskStorage]:
    with closing(DiskStorage(tmp_path)) as storage:
        yield storage


def written(storage: Storage, entries: int, body_bytes: int = 600) -> tuple[CommitLog, list[int]]:
    """Write a log of some entries. Returns it and their positions."""
    log = CommitLog(storage, [], 0, 1, SEGMENT_BYTES)
    positions = [
        log.append_journal(
            RecordKind.TOPOLOGY, bytes([65 + n]) * body_bytes, topic=1, stored_at_ns=n
        )
        for n in range(entries)
    ]
    return log, positions


def entries_in(segments: list[Segment]) -> int:
    report = RecoveryReport()
    count = sum(1 for _ in scan(segments, 0, report))
    assert report.cut is None
    assert not report.damaged
    return count


def test_what_is_cut_off_is_kept_beside_the_log_and_never_found_again(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    log, positions = written(storage, 20)
    assert len(log.segments) == 4
    records = scan(log.segments, positions[3], RecoveryReport())
    tail = b"".join(bytes(record) for _, record in records)
    segments = log.segments
    gone = cut_off(storage, segments, positions[3], log.position, epoch=7)
    assert (gone.start, gone.end) == (positions[3], log.position)
    assert gone.kept_bytes == gone.written_bytes == len(tail)
    assert b"".join((storage.folder / name).read_bytes() for name in gone.kept) == tail
    assert gone.kept[0] == f"cut/0000000007-{positions[3]:020d}.log"
    assert entries_in(segments) == 3
    assert not any(segments[0].view[positions[3] :])
    # Not even as a spare: with the same base its records would be good ones.
    assert storage.spare_sizes() == []
    storage.close()
    with closing(DiskStorage(storage.folder)) as again:
        segments = again.segments()
        assert finish_cut(again, segments) is None
        assert entries_in(segments) == 3


def test_the_empty_rest_of_a_segment_is_not_kept(storage: DiskStorage) -> None:
    """A standby that had only what ends a segment kept 100 MB of zeros, and said so as a loss."""
    log, _ = written(storage, 20, body_bytes=700)
    segments = log.segments
    first, second = segments[:2]
    last, record = list(scan([first], 0, RecoveryReport()))[-1]
    end = last.position + len(record)
    assert any(first.view[end : second.base]), "what ends the segment is there"
    gone = cut_off(storage, segments, end, second.base, epoch=7)
    assert (gone.written_bytes, gone.kept, gone.kept_bytes) == (0, [], 0)
    assert storage.names("cut") == []


def test_what_is_no_record_is_kept_up_to_its_last_byte(storage: DiskStorage) -> None:
    """A record of which only a part has come, with bytes that are zero at its end or within it."""
    log, positions = written(storage, 2)
    (segment,) = log.segments
    data = b"\0\0part\0of a record" + bytes(500)
    segment.write(data, log.position)
    gone = cut_off(storage, log.segments, positions[1], SEGMENT_BYTES, epoch=7)
    (name,) = gone.kept
    kept = (storage.folder / name).read_bytes()
    assert kept.endswith(b"\0\0part\0of a record")
    assert gone.written_bytes == gone.kept_bytes == len(kept)
    assert len(kept) == log.position - positions[1] + len(data) - 500


def test_a_last_record_is_kept_with_the_zeros_in_it(storage: DiskStorage) -> None:
    log = CommitLog(storage, [], 0, 1, SEGMENT_BYTES)
    at = log.append_journal(RecordKind.TOPOLOGY, bytes(700), topic=1, stored_at_ns=1)
    end = log.position
    gone = cut_off(storage, log.segments, at, SEGMENT_BYTES, epoch=7)
    assert gone.written_bytes == end - at > 700


def test_a_cut_that_was_begun_is_made_whole_by_the_next_start(storage: DiskStorage) -> None:
    log, positions = written(storage, 12)
    storage.replace(cut.NAME, b"%d %d" % (positions[8], log.position))
    # Until then a reader of the folder sees what will be left.
    assert entries_in(Folder(storage.folder).segments()) == 8
    segments = log.segments
    assert finish_cut(storage, segments) == positions[8]
    assert entries_in(segments) == 8
    assert finish_cut(storage, segments) is None


def test_zeros_that_a_failed_flush_left_in_memory_are_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next start read zeros, wrote none, and its flush succeeded: the disk had the records."""
    for seed in range(20):
        storage = SimulatedStorage(Random(seed))
        log, positions = written(storage, 4)
        flushed(log)
        storage.flush_error = OSError(errno.EIO, "Input/output error")
        monkeypatch.setattr(storage, "replace", fails_later(storage))
        with pytest.raises(OSError, match="Input/output"):
            cut_off(storage, log.segments, positions[1], log.position, 7)
        storage = storage.crash()
        segments = storage.segments()
        assert finish_cut(storage, segments) == positions[1]
        storage = storage.crash(power=True)
        assert entries_in(storage.segments()) == 1


def fails_later(storage: SimulatedStorage) -> Callable[[str, bytes], None]:
    """Small files are written although segments are not flushed."""
    replace = storage.replace

    def replace_all_the_same(name: str, data: bytes) -> None:
        error, storage.flush_error = storage.flush_error, None
        replace(name, data)
        storage.flush_error = error

    return replace_all_the_same


def test_a_full_disk_keeps_what_fits_of_a_tail_and_cuts_it_all() -> None:
    storage = SimulatedStorage(Random(1))
    log, positions = written(storage, 20)
    storage.capacity_bytes = storage.used_bytes + 5000
    tail = cut_off(storage, log.segments, positions[3], log.position, 7)
    assert 0 < tail.kept_bytes < tail.written_bytes
    assert sum(len(storage.read(name) or b"") for name in tail.kept) == tail.kept_bytes
    assert entries_in(log.segments) == 3


def test_the_tails_of_old_cuts_go(storage: DiskStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "MAX_KEPT_FILES", 3)
    log, positions = written(storage, 6)
    (segment,) = log.segments
    record = bytes(segment.view[positions[1] : positions[2]])
    for epoch in range(2, 8):
        segment.write(record, positions[1])
        cut_off(storage, log.segments, positions[1], positions[2], epoch)
    assert [name[:10] for name in storage.names("cut")] == [f"{n:010}" for n in (5, 6, 7)]
