"""Pages that a failed flush left in memory: noted, found by the next start, and written again."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from martlet.log import fsync_marker as doubt
from martlet.log.storage import DiskStorage
from martlet.testing import SimulatedStorage


def test_a_note_is_found_until_the_next_one_is_prepared() -> None:
    storage = SimulatedStorage(Random(1))
    assert doubt.doubtful_from(storage) is None
    doubt.prepare(storage)
    assert doubt.doubtful_from(storage) is None
    doubt.leave(storage, 4096)
    storage = storage.crash()
    assert doubt.doubtful_from(storage) == 4096
    doubt.leave(storage, 8)
    assert doubt.doubtful_from(storage) == 8
    doubt.prepare(storage)
    assert doubt.doubtful_from(storage) is None


def test_the_stretch_is_written_as_it_is_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubt, "_PIECE_BYTES", 1000)
    storage = DiskStorage(tmp_path)
    written: list[tuple[int, int]] = []
    before = []
    for base in (0, 4096, 8192):
        segment = storage.create(base, 4096)
        segment.write(Random(base).randbytes(4096), 0)
        before.append(bytes(segment.view))
    segments = storage.segments()
    for segment in segments:
        write = segment.write

        def note(data: bytes, at: int, base: int = segment.base, write: object = write) -> None:
            written.append((base + at, base + at + len(data)))
            write(data, at)  # type: ignore[operator]

        monkeypatch.setattr(segment, "write", note)
    doubt.settle(segments, 3000, 8200)
    assert [bytes(segment.view) for segment in segments] == before
    assert written[0][0] == 3000
    assert all(end == begin for (_, end), (begin, _) in pairwise(written))
    assert written[-1][1] == 8200
    written.clear()
    doubt.settle(segments, 9000, 9000)
    assert written == []
    storage.close()
