"""Where dead letters are written, and what happens where they cannot be."""

import errno
from pathlib import Path
from random import Random

import pytest

from martlet.broker.eviction import Eviction
from martlet.broker.restore import restore
from martlet.server.dead_letters import DeadLetters
from martlet.testing import SimulatedClock, SimulatedStorage

SEGMENT_BYTES = 4096


def full_until(letters: DeadLetters) -> tuple[str, int]:
    """Publish to a small disk until that is refused, and what for; or until a segment went."""
    storage = SimulatedStorage(Random(1), capacity_bytes=8 * SEGMENT_BYTES)
    broker, _ = restore(storage, SimulatedClock(), Random(1), segment_bytes=SEGMENT_BYTES)

    def flush() -> bool:
        job = broker.log.flush_job()
        job.run()
        broker.log.flushed(job)
        return True

    eviction = Eviction(broker, flush, keep=letters.keep)
    topic = broker.topic("..")
    topic.channel("a")
    topic.channel("b#ephemeral")
    while not eviction.evicted_count:
        receipt = topic.stage([bytes(300)])
        broker.commit()
        if receipt.error is not None:
            return str(receipt.error), topic.channels["a"].depth
    return "", topic.dropped_count


def test_a_file_for_each_channel(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path / "x" / "y", 0, lambda *what: None)
    _, count = full_until(letters)
    names = sorted(path.name for path in letters.folder.iterdir())
    assert names == [f"{0:020d}@..@{name}.jsonl" for name in ("a", "b#ephemeral")]
    for path in letters.folder.iterdir():
        assert len(path.read_bytes().splitlines()) == count > 0


def test_a_disk_with_too_little_room_keeps_nothing(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path, 1 << 62, lambda *what: None)
    error, depth = full_until(letters)
    assert "bytes must stay free (--min-free-bytes)" in error
    assert str(tmp_path) in error
    assert depth > 20
    assert not list(tmp_path.iterdir())


def test_a_folder_that_went(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path / "x", 0, lambda *what: None)
    letters.folder.rmdir()
    error, _ = full_until(letters)
    assert f"[Errno {errno.ENOENT}]" in error


def test_a_folder_that_can_not_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="--dead-letter-path"):
        DeadLetters(tmp_path / "file" / "x", 0, lambda *what: None)
