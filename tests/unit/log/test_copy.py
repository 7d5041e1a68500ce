"""A log that is copied, on a real disk; `tests/property/test_log_copy.py` does the rest."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from martlet.log.commit_log import CommitLog
from martlet.log.copy import CopiedLog, CopyRefused, open_copy
from martlet.log.record import RecordKind, payload
from martlet.log.storage import DiskStorage
from martlet.testing import SimulatedStorage

SEGMENT_BYTES = 4096


@pytest.fixture
def primary() -> CommitLog:
    log = CommitLog(SimulatedStorage(Random(1)), [], 0, 1, SEGMENT_BYTES)
    for number in range(9):
        log.append_journal(RecordKind.TOPOLOGY, b"%d" % number * 600, topic=1, stored_at_ns=1)
    return log


def test_bytes_in_any_pieces_are_records_when_they_are_whole(
    tmp_path: Path, primary: CommitLog
) -> None:
    storage = DiskStorage(tmp_path)
    copy, _ = open_copy(storage)
    for segment in primary.segments:
        copy.begin_segment(segment.base, segment.capacity)
        end = min(segment.base + segment.capacity, primary.position)
        for start in range(segment.base, end, 100):
            at = start - segment.base
            piece = segment.view[at : min(at + 100, end - segment.base)]
            if any(piece):
                copy.write(start, piece)
            assert copy.position <= copy.received_position
    assert copy.position == copy.end_position == primary.position
    assert [bytes(payload(*each))[:1] for each in copy.records(0, copy.position)] == [
        b"%d" % number for number in range(9)
    ]
    job = copy.flush_job()
    job.run()
    copy.flushed(job)
    assert copy.durable_position == copy.position
    storage.close()
    again, report = open_copy(DiskStorage(tmp_path))
    assert again.position == primary.position
    assert not report.damaged
    again.storage.close()


def begun(primary: CommitLog, length: int) -> CopiedLog:
    copy, _ = open_copy(SimulatedStorage(Random(2)))
    copy.begin_segment(0, SEGMENT_BYTES)
    copy.write(0, primary.segments[0].view[:length])
    return copy


def test_what_does_not_continue_the_copy_is_refused(primary: CommitLog) -> None:
    copy = begun(primary, 1000)
    source = primary.segments[0].view
    wrong: list[tuple[int, bytes, str]] = [
        (0, bytes(source[:8]), "bytes at 0 where 1000 comes next"),
        (2000, bytes(source[:8]), "bytes at 2000 where 1000 comes next"),
        (1000, bytes(5000), "bytes up to 6000 behind 4096"),
    ]
    for position, data, text in wrong:
        with pytest.raises(CopyRefused, match=text):
            copy.write(position, data)
    with pytest.raises(CopyRefused, match="the one before it goes on"):
        copy.begin_segment(4096, SEGMENT_BYTES)
    with pytest.raises(CopyRefused, match="a segment at 2048 where the last one ends at 4096"):
        copy.begin_segment(2048, SEGMENT_BYTES)
    with pytest.raises(CopyRefused, match="damaged bytes at 1000"):
        copy.write_damaged(1000, source[:8])
    assert copy.received_position == 1000
    copy.write(1000, source[1000:1400])
    assert copy.position == 1360


def test_a_lower_epoch_is_refused(primary: CommitLog) -> None:
    copy = begun(primary, 680)
    copy.epochs.ranges[0].epoch = 2
    with pytest.raises(CopyRefused, match="epoch 1 behind 2"):
        copy.write(680, primary.segments[0].view[680:1360])
    assert copy.position == 680


def test_bytes_damaged_everywhere_are_copied_and_passed_over(primary: CommitLog) -> None:
    copy = begun(primary, 680)
    source = bytearray(primary.segments[0].view)
    source[1000] ^= 1
    copy.write_damaged(680, source[680:1360])
    copy.write(1360, source[1360:2040])
    assert [bytes(payload(*each))[:1] for each in copy.records(0, copy.position)] == [b"0", b"2"]


def test_a_copy_whose_disk_has_failed_takes_nothing_more(primary: CommitLog) -> None:
    copy = begun(primary, 680)
    storage = copy.storage
    assert isinstance(storage, SimulatedStorage)
    storage.write_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(CopyRefused, match="writing to the log failed"):
        copy.write(680, primary.segments[0].view[680:1360])
    storage.write_error = None
    with pytest.raises(CopyRefused, match="writing to the log failed"):
        copy.write(680, primary.segments[0].view[680:1360])
