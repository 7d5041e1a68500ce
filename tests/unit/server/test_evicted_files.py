"""Where dead letters are written, and what happens where they cannot be."""

import errno
import json
from binascii import a2b_base64
from pathlib import Path
from random import Random

import pytest
from tests.unit.broker.core import SECOND_NS, Core
from tests.unit.broker.transactions.test_manager import Producer

from martlet.broker.recovery.restore import restore
from martlet.broker.retention.eviction import Evicted, Eviction
from martlet.properties.model import Properties
from martlet.server.evicted_files import DeadLetters
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


def test_what_waits_for_its_time_or_a_commit_is_kept_under_the_name_of_its_topic(
    tmp_path: Path,
) -> None:
    core = Core()
    letters = DeadLetters(tmp_path, 0, lambda *what: None)
    told: list[Evicted] = []

    def flush() -> bool:
        core.flush()
        return True

    Eviction(core.broker, flush, told.append, letters.keep)
    topic = core.broker.set_queues("orders", 2)
    for part in topic.parts:
        for delay_ns in (SECOND_NS, 7200 * SECOND_NS):
            bodies = [b"%d in %d" % (part.number, delay_ns)]
            carried = [(0, Properties(tag="eu", keys=("k",)).pack())]
            core.broker.delays.publish(part, bodies, core.clock.now_ns + delay_ns, carried)
    core.broker.transactions.begin("t")
    Producer(core).add("t", "orders", b"half", b"other")
    core.storage.capacity_bytes = core.storage.used_bytes + 4 * core.segment_bytes
    core.fill("filling", 12)

    kept = {
        path.name: list(map(json.loads, path.read_bytes().splitlines()))
        for path in tmp_path.iterdir()
        if "filling" not in path.name
    }
    ids = sorted(bucket.id for bucket in core.broker.delays.buckets_of(topic))
    delayed = {f"{0:020d}-{id}@orders.jsonl" for id in ids[:2]}
    delayed |= {f"{0:020d}.1-{id}@orders.jsonl" for id in ids[2:]}
    assert kept.keys() == delayed | {f"{0:020d}@%half.jsonl"}
    half = kept.pop(f"{0:020d}@%half.jsonl")
    bodies = [a2b_base64(line["body_base64"]) for line in half]
    assert bodies == [b"half", b"other"]
    assert {(line["transaction"], line["topic"]) for line in half} == {("t", "orders")}
    delayed_ones = [line for lines in kept.values() for line in lines]
    assert [line["properties"] for line in delayed_ones] == [{"tag": "eu", "keys": ["k"]}] * 4
    assert [line for line in half if "properties" in line] == []
    of_first = [
        loss.name_of(channel)
        for loss in told[0].losses
        for channel, offsets in loss.unfinished.items()
        if len(offsets)
    ]
    assert set(of_first) >= {"orders/(delayed)", "(half messages)"}
    assert core.broker.delays.pending_count == 0
