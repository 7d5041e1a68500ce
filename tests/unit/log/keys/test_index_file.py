"""An index of keys is right, or is recognised as none: damaged, cut, of other bytes or version."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from tests.property.log.feed import flushed
from tests.unit.log.keys.keyed_log import SEGMENT_BYTES, KeyedLog, Stored

from martlet.log import cut
from martlet.log.copy import open_copy
from martlet.log.keys import index_file
from martlet.log.keys.entries import SegmentFile
from martlet.log.keys.index_file import (
    BadIndex,
    DamagedSegment,
    KeyIndex,
    NotIndexed,
    build_index,
    index_path,
)
from martlet.log.record import RecordKind, journal_record, read_header
from martlet.log.storage import DiskStorage
from martlet.properties.model import NONE, Properties


@pytest.fixture
def log(tmp_path: Path) -> Iterator[KeyedLog]:
    log = KeyedLog(tmp_path)
    log.fill(segments=3)
    yield log
    log.close()


def last_in(log: KeyedLog, path: Path) -> Stored:
    """The last message in a segment."""
    end = int(path.stem) + path.stat().st_size
    return [message for message in log.stored if message.at.position < end][-1]


def overwrite(path: Path, at: int, data: bytes | bytearray) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def indexes(log: KeyedLog) -> list[Path]:
    return sorted(log.folder.glob("log/*.keys*"))


def test_a_damaged_index_does_not_count_and_is_built_again(log: KeyedLog) -> None:
    log.build()
    path = log.full[0]
    good = index_path(path).read_bytes()
    keys = [f"k-{number}" for number in range(20)]
    expected = {key: log.search(key)[0] for key in keys}
    assert all(expected.values())
    missed = 0
    for at in [*range(80), *Random(1).sample(range(80, len(good)), 40)]:
        damaged = bytearray(good)
        damaged[at] ^= 0xFF
        index_path(path).write_bytes(damaged)
        for key in keys:
            bodies, read = log.search(key)
            assert bodies == expected[key]
            missed += read == [path]
    assert missed > 100 * len(keys) // 2
    for length in (0, 20, 60, len(good) - 1):
        index_path(path).write_bytes(good[:length])
        for key in keys:
            assert log.search(key)[0] == expected[key]
    build_index(path)
    assert index_path(path).read_bytes() == good
    assert log.search("k-0") == (expected["k-0"], [])


def test_an_index_of_another_version_or_segment_is_none(
    log: KeyedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = log.full
    monkeypatch.setattr(index_file, "VERSION", 2)
    build_index(first)
    monkeypatch.undo()
    with SegmentFile(first) as segment, pytest.raises(BadIndex, match="version 1"):
        KeyIndex(segment)
    build_index(first)
    index_path(first).rename(index_path(second))
    with SegmentFile(second) as segment, pytest.raises(BadIndex, match="this segment"):
        KeyIndex(segment)


def test_an_index_of_records_that_were_cut_off_does_not_count(log: KeyedLog) -> None:
    log.build()
    path = log.full[0]
    gone = last_in(log, path).properties.keys[0]
    kept = index_path(path).read_bytes()
    position = log.stored[len(log.stored) // 4].at.position
    end = log.log.position
    log.close()
    with closing(DiskStorage(log.folder)) as storage:
        copy, _ = open_copy(storage)
        assert copy.position == end
        copy.cut(position, 2)
        assert copy.has_properties
    # As if it had been written just then.
    index_path(path).write_bytes(kept)
    with SegmentFile(path) as segment, pytest.raises(BadIndex, match="gone"):
        KeyIndex(segment)
    assert log.search(gone)[0] == []
    assert not (log.folder / cut.NAME).read_bytes()


def test_an_index_of_a_segment_that_goes_on_does_not_count(log: KeyedLog) -> None:
    path = log.full[-1]
    build_index(path)
    last = last_in(log, path).at.position
    with SegmentFile(path) as segment:
        KeyIndex(segment).close()
        behind = segment.header(last).next_position
        assert segment.header(behind).kind == RecordKind.SEGMENT_END
        # A broker that lost the next segment goes on over the end of this one.
        entry = journal_record(
            RecordKind.CURSOR, b"", position=behind, epoch=2, topic=1, stored_at_ns=1
        )
        overwrite(path, behind - segment.base, entry)
        with pytest.raises(BadIndex, match="lacks the records"):
            KeyIndex(segment)


def test_an_index_has_as_many_chunks_as_its_messages_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_file, "CHUNK_ENTRIES", 100)
    monkeypatch.setattr("martlet.log.keys.entries.PIECE_BYTES", 1 << 12)
    log = KeyedLog(tmp_path, 1 << 16)
    log.fill(segments=2)
    sizes: list[int] = []
    count = build_index(log.full[0], check_room=sizes.append)
    assert sum(sizes) == 12 * count
    assert len(sizes) > 3
    assert log.search("k-0") == ([log.stored[0].body], [])
    log.close()


def test_a_segment_without_keys_gets_an_empty_index_only_if_that_is_wanted(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path)
    while len(log.log.segments) < 3:
        log.publish(1, [NONE] * 5)
    path = log.full[0]
    assert build_index(path, keeps_empty=False) == 0
    assert indexes(log) == []
    assert build_index(path) == 0
    assert index_path(path).stat().st_size == 40
    assert log.search("k")[1] == log.full[1:]
    log.close()


def test_a_damaged_segment_gets_no_index_and_is_read(log: KeyedLog) -> None:
    path = log.full[0]
    at = log.stored[20].at.position
    overwrite(path, at, b"\xff" * 40)
    with pytest.raises(DamagedSegment, match="is damaged"):
        build_index(path)
    build_index(log.full[1])
    assert indexes(log) == [index_path(log.full[1])]
    assert log.search("k-10") == ([log.stored[10].body], [path])
    assert log.search("k-20")[0] == []
    behind = next(message for message in log.stored if message.at.position > at)
    assert log.search(behind.properties.keys[0])[0] == [behind.body]


def test_a_batch_whose_checksum_is_wrong_is_not_found(log: KeyedLog) -> None:
    log.build()
    overwrite(log.full[0], log.stored[0].at.position + 119, b"!")
    assert log.search("k-0") == ([], [])


def test_a_build_leaves_no_index_of_a_segment_that_changes_meanwhile(log: KeyedLog) -> None:
    path = log.full[0]
    os.utime(path, (0, 0))

    with pytest.raises(NotIndexed, match="was changed or removed"):
        build_index(path, check_room=lambda _: overwrite(path, 0, b"MTLG"))
    assert not index_path(path).exists()
    with pytest.raises(NotIndexed, match="was changed or removed"):
        build_index(path, check_room=lambda _: path.unlink())
    assert indexes(log) == []


def test_a_build_on_a_full_disk_leaves_nothing(log: KeyedLog) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with pytest.raises(OSError, match="no room"):
        build_index(log.full[0], check_room=full)
    with pytest.raises(NotIndexed, match="given up"):
        build_index(log.full[0], is_over=lambda: True)
    assert indexes(log) == []


def test_a_start_removes_incomplete_indexes_and_those_without_a_segment(log: KeyedLog) -> None:
    log.build()
    path, other = log.full
    index_path(path).with_suffix(".keys.new").write_bytes(b"begun")
    lost = log.folder / "log" / f"{7 << 40:020d}.keys"
    lost.write_bytes(index_path(path).read_bytes())
    log.close()
    with closing(DiskStorage(log.folder)):
        assert indexes(log) == [index_path(path), index_path(other)]


def test_opening_the_segments_again_leaves_an_index_that_is_being_built(log: KeyedLog) -> None:
    # As a standby does, which has an indexer at work.
    path = log.full[0]
    build_index(path, check_room=lambda _: log.storage.segments())
    assert index_path(path).exists()


def test_an_index_goes_with_its_segment(log: KeyedLog) -> None:
    log.build()
    _, second = log.full
    flushed(log.log)
    log.log.retire(log.log.segments[0])
    assert indexes(log) == [index_path(second)]
    log.storage.discard(log.log.segments[0])
    assert indexes(log) == []


def test_a_repaired_segment_loses_its_index(log: KeyedLog) -> None:
    log.build()
    path = log.full[0]
    log.close()
    good = path.read_bytes()
    overwrite(path, log.stored[10].at.position, b"\xff" * 40)
    with closing(DiskStorage(log.folder)) as storage:
        copy, report = open_copy(storage)
        (damage,) = report.damaged
        copy.repair(damage.start, good[damage.start : damage.end])
        assert indexes(log) == [index_path(log.full[1])]


def test_properties_are_noted_as_they_are_appended(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path)
    noted: list[tuple[str, bool]] = []
    log.storage.on_sealed = lambda path, has: noted.append((path.stem, has))
    keyed = [Properties(keys=("k",))]

    def fill(segments: int) -> None:
        while len(log.log.segments) < segments:
            log.publish(1, [NONE] * 5)

    fill(2)
    log.publish(1, keyed)
    fill(3)
    log.bundle([(1, keyed)])
    fill(4)
    stored = next(message for message in log.stored if message.properties)
    record = log.log.view(stored.at.position, SEGMENT_BYTES)
    assert record is not None
    log.log.append_again(bytearray(record[: read_header(record, 0, stored.at.position).length]))
    fill(6)
    assert [has for _, has in noted] == [False, True, True, True, False]
    assert [int(stem) for stem, _ in noted] == [s.base for s in log.log.segments[:-1]]
    log.close()
