"""A data folder on a real disk."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from martlet.log.storage import DiskStorage, FolderInUse, StorageFull
from martlet.text import readable_size

SEGMENT_BYTES = 1 << 16


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "log").iterdir())


def test_a_second_broker_is_refused_with_the_process_that_has_the_folder(tmp_path: Path) -> None:
    first = DiskStorage(tmp_path)
    said = rf"^the folder {tmp_path} is in use by another broker \(process {os.getpid()}\): stop"
    with pytest.raises(FolderInUse, match=said):
        DiskStorage(tmp_path)
    first.close()
    DiskStorage(tmp_path).close()


def test_segments_are_there_again_after_a_restart(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    for base in (0, SEGMENT_BYTES):
        segment = storage.create(base, SEGMENT_BYTES)
        segment.write(b"at %d" % base, 100)
        assert segment.view[100:].tobytes().startswith(b"at %d" % base)
        segment.flush()
    storage.close()
    again = DiskStorage(tmp_path)
    found = again.segments()
    assert [(s.base, s.capacity) for s in found] == [(0, SEGMENT_BYTES), (SEGMENT_BYTES,) * 2]
    assert bytes(found[1].view[100:108]) == b"at 65536"
    again.close()


def test_a_view_shows_later_writes(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    segment = storage.create(0, SEGMENT_BYTES)
    view = segment.view[8:16]
    segment.write(b"12345678", 8)
    assert bytes(view) == b"12345678"
    with pytest.raises(TypeError):
        view[0] = 1
    storage.close()


def test_retired_segments_are_used_again_under_another_base(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path, spares=1)
    first = storage.create(0, SEGMENT_BYTES)
    second = storage.create(SEGMENT_BYTES, SEGMENT_BYTES)
    first.write(b"stale", 0)
    storage.retire(first)
    storage.retire(second)
    assert [name.endswith(".spare") for name in names(tmp_path)] == [True]
    again = storage.create(7 * SEGMENT_BYTES, SEGMENT_BYTES)
    assert bytes(again.view[:5]) == b"stale"
    assert names(tmp_path) == [f"{7 * SEGMENT_BYTES:020d}.log"]
    storage.close()


def test_a_busy_log_may_keep_more_spares_until_it_is_idle(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path, spares=1)
    segments = [storage.create(number * SEGMENT_BYTES, SEGMENT_BYTES) for number in range(5)]
    for number, segment in enumerate(segments):
        segment.write(b"%d" % number, 0)
    storage.allow_spares(2)
    for segment in segments:
        storage.retire(segment)
    assert [name.endswith(".spare") for name in names(tmp_path)] == [True] * 3
    storage.allow_spares(0)
    assert [name.endswith(".spare") for name in names(tmp_path)] == [True]
    assert bytes(storage.create(0, SEGMENT_BYTES).view[:1]) == b"2", "the last that was retired"
    storage.close()


def test_a_segment_that_is_being_read_is_not_written_over(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    segment = storage.create(0, SEGMENT_BYTES)
    segment.write(b"being sent", 0)
    sent = segment.view[:10]
    storage.retire(segment)
    for base in (1, 2, 3):
        storage.create(base * SEGMENT_BYTES, SEGMENT_BYTES).write(b"x" * 100, 0)
    assert bytes(sent) == b"being sent"
    storage.close()


def test_spare_segments_are_made_in_advance_and_those_of_another_size_given_back(
    tmp_path: Path,
) -> None:
    storage = DiskStorage(tmp_path)
    storage.reserve(SEGMENT_BYTES, 2)
    assert [name.endswith(".spare") for name in names(tmp_path)] == [True, True]
    storage.close()
    half = tmp_path / "log" / "99.spare"
    half.write_bytes(b"half of one")
    again = DiskStorage(tmp_path)
    again.reserve(SEGMENT_BYTES, 2)
    assert not half.exists()
    assert len(names(tmp_path)) == 2
    again.reserve(2 * SEGMENT_BYTES, 1)
    (spare,) = (tmp_path / "log").iterdir()
    assert spare.stat().st_size == 2 * SEGMENT_BYTES
    again.close()


def test_reserved_space_stays_free(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    everything = disk.f_blocks * disk.f_frsize
    storage = DiskStorage(tmp_path, keep_free_bytes=everything)
    for make in (
        lambda: storage.create(0, SEGMENT_BYTES),
        lambda: storage.reserve(SEGMENT_BYTES, 1),
    ):
        with pytest.raises(
            StorageFull, match=rf"no room for a segment.*{readable_size(everything)} must stay"
        ):
            make()
    assert names(tmp_path) == []
    storage.close()


@pytest.mark.parametrize("free_bytes", [0, 1 << 30])
def test_the_last_spare_of_a_full_disk_is_kept_for_the_next_checkpoint(
    tmp_path: Path, free_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal could use it; but only a checkpoint frees segments."""
    storage = DiskStorage(tmp_path)
    storage.reserve(SEGMENT_BYTES, 2)
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(f_bavail=free_bytes // 4096, f_frsize=4096)
    )
    storage.create(0, SEGMENT_BYTES)
    if free_bytes:
        storage.create(SEGMENT_BYTES, SEGMENT_BYTES)
    else:
        with pytest.raises(StorageFull, match="is kept for the next checkpoint"):
            storage.create(SEGMENT_BYTES, SEGMENT_BYTES)
        assert len(list((tmp_path / "log").glob("*.spare"))) == 1
    storage.close()


def test_a_file_too_large_for_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    with pytest.raises((StorageFull, OSError)):
        storage.create(0, 1 << 62)
    assert names(tmp_path) == []
    storage.close()


def test_an_empty_file_left_by_a_crash_is_removed(tmp_path: Path) -> None:
    DiskStorage(tmp_path).close()
    (tmp_path / "log" / f"{0:020d}.log").touch()
    storage = DiskStorage(tmp_path)
    assert storage.segments() == []
    assert names(tmp_path) == []
    storage.close()


def test_small_files_are_replaced_whole(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    assert storage.read("checkpoint") is None
    storage.replace("checkpoint", b"one")
    storage.replace("checkpoint", b"second")
    assert storage.read("checkpoint") == b"second"
    assert not (tmp_path / "checkpoint.new").exists()
    storage.remove("checkpoint")
    storage.remove("checkpoint")
    assert storage.read("checkpoint") is None
    storage.close()


def test_index_files_are_written_cut_and_mapped(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    assert storage.map("index/1-0.idx") is None
    storage.write_at("index/1-0.idx", b"0123456789", 0)
    storage.write_at("index/1-0.idx", b"abc", 4)
    storage.sync("index/1-0.idx")
    storage.truncate("index/1-0.idx", 8)
    mapped = storage.map("index/1-0.idx")
    assert mapped is not None
    assert bytes(mapped) == b"0123abc7"
    assert storage.names("index") == ["1-0.idx"]
    storage.truncate("index/1-0.idx", 0)
    empty = storage.map("index/1-0.idx")
    assert empty is not None
    assert len(empty) == 0
    storage.close()


def test_a_discarded_segment_is_no_spare(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    segment = storage.create(0, SEGMENT_BYTES)
    segment.write(b"x" * 100, 0)
    storage.discard(segment)
    assert storage.spare_sizes() == []
    assert not any(storage.create(0, SEGMENT_BYTES).view)
    storage.close()
