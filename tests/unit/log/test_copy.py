"""A log that is copied, on a real disk; `tests/property/log/test_log_copy.py` does the rest."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from random import Random

import pytest
from tests.property.log.feed import feed, flushed

from martlet.log.commit_log import CommitLog
from martlet.log.copy import CopiedLog, CopyRefused, open_copy
from martlet.log.record import HEADER_BYTES, RecordKind, payload
from martlet.log.storage import DiskStorage
from martlet.testing import SimulatedStorage

SEGMENT_BYTES = 4096


@pytest.fixture
def primary() -> CommitLog:
    return make_primary()


def make_primary() -> CommitLog:
    log = CommitLog(SimulatedStorage(Random(1)), [], 0, 1, SEGMENT_BYTES)
    for number in range(9):
        log.append_journal(RecordKind.TOPOLOGY, b"%d" % number * 560, topic=1, stored_at_ns=1)
    return log


def test_bytes_in_any_pieces_are_records_when_they_are_whole(
    tmp_path: Path, primary: CommitLog
) -> None:
    storage = DiskStorage(tmp_path)
    copy, _ = open_copy(storage)
    feed(primary, copy, Random(3))
    assert copy.position == copy.end_position == primary.position
    assert firsts(copy) == [b"%d" % number for number in range(9)]
    flushed(copy)
    assert copy.durable_position == copy.position
    storage.close()
    again, report = open_copy(DiskStorage(tmp_path))
    assert again.position == primary.position
    assert not report.damaged
    again.storage.close()


def storage_of(copy: CopiedLog) -> SimulatedStorage:
    assert isinstance(copy.storage, SimulatedStorage)
    return copy.storage


def firsts(copy: CopiedLog) -> list[bytes]:
    """The number of each record that the copy has undamaged."""
    return [bytes(payload(*record))[:1] for record in copy.records(0, copy.position)]


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
    copy.write(1000, source[1000:1300])
    assert copy.position == 1280


def test_a_lower_epoch_is_refused(primary: CommitLog) -> None:
    copy = begun(primary, 640)
    copy.epochs.ranges[0].epoch = 2
    with pytest.raises(CopyRefused, match="epoch 1 behind epoch 2"):
        copy.write(640, primary.segments[0].view[640:1280])
    assert copy.position == 640


def test_bytes_damaged_everywhere_are_copied_and_passed_over(primary: CommitLog) -> None:
    copy = begun(primary, 640)
    source = bytearray(primary.segments[0].view)
    source[1000] ^= 1
    copy.write_damaged(640, source[640:1280])
    copy.write(1280, source[1280:1920])
    assert firsts(copy) == [b"0", b"2"]


def test_a_copy_whose_disk_has_failed_takes_nothing_more(primary: CommitLog) -> None:
    copy = begun(primary, 640)
    storage = storage_of(copy)
    storage.write_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(CopyRefused, match="writing to the log failed"):
        copy.write(640, primary.segments[0].view[640:1280])
    storage.write_error = None
    with pytest.raises(CopyRefused, match="writing to the log failed"):
        copy.write(640, primary.segments[0].view[640:1280])


def test_a_copy_goes_on_once_a_full_disk_has_space(primary: CommitLog) -> None:
    copy = begun(primary, 640)
    storage = storage_of(copy)
    storage.write_error = OSError(errno.ENOSPC, "no space")
    writes = partial(copy.write, 640, primary.segments[0].view[640:1920])
    for act in (writes, copy.restart):
        with pytest.raises(CopyRefused, match=r"writing to the log failed: .*no space; it is"):
            act()
    storage.write_error = None
    copy.restart()
    assert not any(copy.segments[0].view[640:1920]), "no part of what was refused is left"
    copy.write(640, primary.segments[0].view[640:1280])
    assert (copy.failed, copy.position) == (None, 1280)


def test_a_cut_that_a_full_disk_breaks_off_is_left_to_the_next_start(
    primary: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = begun(primary, 1280)

    def refuse(name: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(copy.storage, "replace", refuse)
    with pytest.raises(OSError, match="no space"):
        copy.cut(640, 2)
    assert copy.failed is not None
    assert not copy.may_recover


def test_the_end_of_a_segment_is_flushed_though_it_moves_no_position(primary: CommitLog) -> None:
    """A flush under way took the segment for flushed, and a power cut left a hole."""
    for seed in range(20):
        copy = begun(primary, 3840)
        storage = storage_of(copy)
        storage.random.seed(seed)
        primary_end = primary.segments[0].view[copy.received_position : SEGMENT_BYTES]
        job = copy.flush_job()
        job.run()
        copy.write(copy.received_position, primary_end[:HEADER_BYTES])
        copy.flushed(job)
        second = primary.segments[1]
        copy.begin_segment(second.base, second.capacity)
        copy.write(second.base, second.view[: primary.position - second.base])
        flushed(copy)
        again, report = open_copy(storage.crash(power=True))
        assert not report.damaged
        assert again.position == copy.durable_position == primary.position


def test_a_segment_without_durable_records_is_not_acknowledged(primary: CommitLog) -> None:
    """Its beginning was, and a power cut left less: the primary took that for a lost record."""
    copy = begun(primary, 3840 + HEADER_BYTES)
    end = copy.end_position
    second = primary.segments[1]
    copy.begin_segment(second.base, second.capacity)
    job = copy.flush_job()
    job.run()
    copy.write(second.base, second.view[: primary.position - second.base])
    copy.flushed(job)
    assert (copy.durable_position, copy.durable_end_position) == (second.base, end)
    storage = storage_of(copy)
    flushed(copy)
    assert copy.durable_end_position == copy.end_position
    again, _ = open_copy(storage.crash(power=True))
    assert again.end_position == copy.end_position


def test_what_is_damaged_is_kept_apart_and_repaired(primary: CommitLog) -> None:
    copy = begun(primary, 3200)
    storage = storage_of(copy)
    good = bytes(primary.segments[0].view[640:1280])
    storage.segment_bytes_of(0)[1000] ^= 1
    found, _ = open_copy(storage.crash())
    assert (found.position, found.damaged) == (3200, [(640, 1280)])
    assert firsts(found) == [b"0", b"2", b"3", b"4"]
    with pytest.raises(CopyRefused, match="nothing is to be repaired"):
        found.repair(0, good)
    with pytest.raises(CopyRefused, match="a bad record was received"):
        found.repair(640, good[:-8])
    assert found.segments[0].view[640:1280] != good
    found.repair(640, good)
    again, _ = open_copy(storage_of(found).crash(power=True))
    assert again.damaged == []
    assert len(list(again.records(0, 3200))) == 5


def test_damage_at_a_cut_is_still_damage(primary: CommitLog) -> None:
    copy = begun(primary, 3200)
    storage = storage_of(copy)
    storage.segment_bytes_of(0)[1000] ^= 1
    storage.segment_bytes_of(0)[1400] ^= 1
    found, _ = open_copy(storage.crash())
    assert found.damaged == [(640, 1920)]
    found.cut(1280, 2)
    assert (found.position, found.damaged) == (1280, [(640, 1280)])


def test_a_segment_that_is_cut_off_is_not_used_again() -> None:
    """In the same place its records would be good again."""
    primary = make_primary()
    copy = begun(primary, 3840 + HEADER_BYTES)
    storage = storage_of(copy)
    second = primary.segments[1]
    copy.begin_segment(second.base, second.capacity)
    spares = storage.spare_count
    copy.cut(640, 2)
    assert [segment.base for segment in copy.segments] == [0]
    assert storage.spare_count == spares


def test_a_flush_does_not_count_for_what_replaced_a_cut(primary: CommitLog) -> None:
    copy = begun(primary, 3200)
    job = copy.flush_job()
    job.run()
    copy.cut(640, 2)
    copy.write(640, primary.segments[0].view[640:3200])
    copy.flushed(job)
    assert copy.durable_position == 0


def test_a_record_is_not_waited_for_beyond_its_segment(primary: CommitLog) -> None:
    copy = begun(primary, 640)
    record = bytearray(primary.segments[0].view[640:1280])
    record[8:12] = (1 << 20).to_bytes(4, "little")
    with pytest.raises(CopyRefused, match="a bad record was received"):
        copy.write(640, record)


def test_nothing_follows_the_end_of_a_segment(primary: CommitLog) -> None:
    primary.distrust_heads()
    copy = begun(primary, 0)
    last = primary.segments[-2]
    copy.retire(copy.segments[0])
    copy.begin_segment(last.base, last.capacity)
    end = next(
        at + HEADER_BYTES
        for at in range(0, last.capacity, 8)
        if bytes(last.view[at : at + 4]) == b"MTLG" and last.view[at + 13] == RecordKind.SEGMENT_END
    )
    copy.write(last.base, last.view[:end])
    with pytest.raises(CopyRefused, match="behind the segment's end"):
        copy.write(last.base + end, bytes(8))


def test_a_copy_can_be_read_after_a_cut_has_failed(primary: CommitLog) -> None:
    copy = begun(primary, 3200)
    storage = storage_of(copy)
    storage.flush_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="Input/output"):
        copy.cut(0, 2)
    assert copy.failed is not None
    assert copy.find(0) in {None, *copy.segments}
    with pytest.raises(CopyRefused):
        copy.write(3200, b"")
