"""Messages that go and that stay when the oldest segment has to make space."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from tests.unit.broker.core import SECOND_NS, SEGMENT_BYTES, Client, Core

from martlet.broker.recovery.restore import restore
from martlet.broker.retention.checkpoint import begin_checkpoint, end_checkpoint
from martlet.broker.retention.eviction import Evicted, Eviction
from martlet.broker.topic.offset_reset import follow
from martlet.log.record import HEADER_BYTES
from martlet.log.storage import DiskStorage
from martlet.testing import SimulatedClock

SEGMENTS = 6


class SmallCore(Core):
    """A core whose disk holds a few segments, and which drops the oldest."""

    def _open(self) -> None:
        super()._open()
        self.storage.capacity_bytes = (SEGMENTS + 4) * SEGMENT_BYTES
        self.storage.keep_free_bytes = 4 * SEGMENT_BYTES
        self.evicted: list[Evicted] = []
        self.eviction = Eviction(self.broker, self.flush_now, self.evicted.append)

    def overflow(self, topic: str) -> list[bytes]:
        """Publish until a first segment goes with unfinished messages; the bodies."""
        bodies: list[bytes] = []
        before = len(self.evicted)
        while len(self.evicted) == before:
            body = b"%d " % len(bodies) * 40
            bodies.append(body)
            assert self.publish(topic, body).error is None
        return bodies

    def dropped(self) -> int:
        return sum(len(loss.offsets) for evicted in self.evicted for loss in evicted.losses)


def consumed(core: Core, topic: str, channel: str = "c") -> list[bytes]:
    """All that a channel still gets."""
    client = core.client(topic, channel).ready(1 << 20)
    return client.bodies


@pytest.fixture
def core() -> SmallCore:
    return SmallCore()


def test_publishing_goes_on_and_the_newest_are_kept(core: SmallCore) -> None:
    core.channel("t")
    bodies = core.overflow("t")
    for number in range(500):
        bodies.append(b"more %d " % number * 40)
        assert core.publish("t", bodies[-1]).error is None
    lost = core.dropped()
    channel, topic = core.channel("t"), core.topic()
    assert 0 < lost < len(bodies)
    assert channel.dropped_count == topic.dropped_count == lost
    assert channel.depth == len(bodies) - lost
    assert consumed(core, "t") == bodies[lost:]
    assert core.broker.health == "OK"
    assert core.storage.used_bytes <= SEGMENTS * SEGMENT_BYTES


def test_deferred_messages_that_a_follower_has_yet_to_read_may_be_dropped(core: SmallCore) -> None:
    topic = core.broker.topic("t")
    core.publish("t", b"at once", b"later")
    follow(topic, "spark", {0: 1}, retain=True)
    core.publish("t", b"later", delay_ns=3600 * SECOND_NS)
    bodies = core.overflow("t")
    assert topic.channels["spark"].depth == topic.message_count - 1 - core.dropped()
    assert core.publish("t", bodies[-1]).error is None


def test_an_unneeded_segment_goes_first_and_nothing_is_lost(core: SmallCore) -> None:
    kept = core.fill("kept", 1)
    core.channel("kept")
    client = core.client("read").ready(1 << 20)
    for number in range(300):
        assert core.publish("read", b"%d " % number * 40).error is None
        client.finish(len(client.got) - 1)
    assert not core.evicted
    assert consumed(core, "kept") == kept


def test_a_gap_in_the_middle_is_passed_over(core: SmallCore) -> None:
    """Cleaning has moved older messages to a newer segment."""
    core.channel("old")
    first = [b"first %d" % number for number in range(3)]
    core.publish("old", *first)
    fast = core.client("t").ready(1 << 20)
    core.fill("t", 1)
    second = core.fill("old", 1)
    core.fill("t", 1)
    fast.finish()
    segments = [segment.base for segment in core.broker.log.segments]
    core.checkpoint(2)
    assert core.broker.log.segments[0].base != segments[0], "it was cleaned, and has gone"
    while not core.evicted:
        core.publish("more", b"more" * 30)
    assert core.topic("old").voids
    lost = core.topic("old").dropped_count
    assert 0 < lost <= len(second)
    channel = core.channel("old")
    assert channel.depth == len(first) + len(second) - lost
    core.kill()
    channel = core.channel("old")
    assert channel.depth == len(first) + len(second) - lost
    assert consumed(core, "old") == [*first, *second[lost:]]
    assert not core.restored.notes


def test_a_checkpoint_that_would_let_it_go_too(core: SmallCore) -> None:
    client = core.client("t").ready(1 << 20)
    core.fill("t", 2)
    client.finish()
    job = begin_checkpoint(core.broker)
    assert job.free
    while job.free[0] in core.broker.log.segments:
        core.publish("more", b"more" * 30)
    core.complete(job)
    assert not set(map(id, job.free)) & set(map(id, core.broker.log.segments))


def test_nothing_goes_before_the_journal_is_durable_behind_it(core: SmallCore) -> None:
    """Or a power cut would find neither the segment nor what stood in it."""
    core.channel("t")
    flushed = []

    def flush_now() -> bool:
        flushed.append(core.broker.log.durable_position)
        return core.flush_now()

    core.eviction = Eviction(core.broker, flush_now, core.evicted.append)
    core.overflow("t")
    assert flushed == [0]


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_keeps_durable_entries_of_a_dropped_segment(core: SmallCore, seed: int) -> None:
    core.storage.random.seed(seed)
    core.channel("early")
    core.flush()
    core.overflow("t")
    core.kill(power=True)
    assert list(core.topic("early").channels) == ["c"]


@pytest.mark.parametrize("seed", range(8))
def test_committed_messages_are_durable_before_their_half_messages_go(
    core: SmallCore, seed: int
) -> None:
    """They were no longer needed, but the batch that they had become was in memory only."""
    core.storage.random.seed(seed)
    core.broker.transactions.begin("one")
    core.broker.transactions.add("one", "p", 0, "t", [b"half"])
    core.broker.transactions.prepare("one")
    first = core.broker.log.segments[0]
    channel = core.channel("other")
    core.fill("other", SEGMENTS - 3)
    channel.empty()
    core.flush()
    core.broker.transactions.commit("one")
    while first in core.broker.log.segments:
        assert core.publish("other", b"more" * 40).error is None
    core.kill(power=True)
    core.broker.transactions.commit("one")
    assert core.stored() == [b"half"]
    assert not core.evicted


def test_a_segment_with_a_damaged_head_does_not_release_the_one_before_it(core: SmallCore) -> None:
    core.checkpoint()
    core.channel("early")
    core.publish("early", b"precious")
    core.fill("t", 2)
    core.flush()
    log = core.broker.log
    first, second = log.segments[:2]
    assert log.is_releasable(first)
    core.storage.segment_bytes_of(second.base)[HEADER_BYTES] ^= 1
    core.kill()
    log = core.broker.log
    assert core.restored.report.damaged
    assert log.durable_position < first.base + first.capacity
    job = log.flush_job()
    core.storage.capacity_bytes = core.storage.used_bytes + SEGMENT_BYTES // 2
    log.flushed(job)
    assert log.is_releasable(log.segments[0]), "the start has written all anew"
    while log.full is None:  # until there is no space for a segment that holds all anew
        log.distrust_heads()
    assert not log.is_releasable(log.segments[0])
    core.checkpoint()
    core.flush()  # what was copied
    assert log.is_releasable(log.segments[0])


def test_a_flush_that_fails_lets_nothing_go(core: SmallCore) -> None:
    core.channel("t")
    core.storage.flush_error = OSError(errno.EIO, "Input/output error")

    def flush_now() -> bool:
        job = core.broker.log.flush_job()
        with pytest.raises(OSError, match="Input/output"):
            job.run()
        core.broker.log.flush_failed(core.storage.flush_error or OSError())
        return False

    core.eviction = Eviction(core.broker, flush_now, core.evicted.append)
    bodies = 0
    while (error := core.publish("t", b"body" * 30).error) is None:
        bodies += 1
    assert "flushing the log failed" in str(error)
    assert not core.evicted
    assert core.channel("t").depth == bodies


def test_with_nothing_to_drop_publishing_is_refused(core: SmallCore) -> None:
    core.publish("t", b"x")
    core.storage.allow_spares(-2)
    assert core.storage.spare_count == 0
    core.storage.capacity_bytes = core.storage.used_bytes
    core.storage.keep_free_bytes = SEGMENT_BYTES
    error = None
    while error is None:
        error = core.publish("t", b"body" * 30).error
    assert "the disk is full" in str(error)


def test_the_only_segment_goes_where_another_is_in_reserve(core: SmallCore) -> None:
    client = core.client("t")
    core.storage.capacity_bytes = core.storage.used_bytes
    core.storage.keep_free_bytes = SEGMENT_BYTES
    for number in range(200):
        assert core.publish("t", b"%d " % number * 40).error is None
    assert len(core.evicted) > 3
    client.ready(1 << 20)
    assert client.bodies == [b"%d " % n * 40 for n in range(200 - len(client.got), 200)]
    error = core.publish("t", b"x" * 2 * SEGMENT_BYTES).error
    assert "the disk is full" in str(error), "it fits into no segment"


@pytest.mark.parametrize("ready", [0, 1 << 20])
def test_a_real_folder_stays_within_its_limit(tmp_path: Path, ready: int) -> None:
    """Bytes that are still on their way to a client keep no other segment from going."""
    segment_bytes = 1 << 16
    max_bytes = 8 * segment_bytes
    storage = DiskStorage(tmp_path, max_bytes=max_bytes)
    broker, _ = restore(storage, SimulatedClock(), Random(1), segment_bytes=segment_bytes)

    def flush() -> bool:
        job = broker.log.flush_job()
        job.run()
        broker.log.flushed(job)
        return True

    eviction = Eviction(broker, flush)
    topic = broker.topic("t")
    holding: list[object] = []

    class Slow(Client):
        def send_messages(self, frames: object) -> None:
            holding.append(frames)

    Slow(topic.channel("c"), SECOND_NS).ready(ready)
    for _ in range(40):
        receipt = topic.stage([bytes(30_000)])
        broker.commit()
        assert receipt.error is None
    assert eviction.evicted_count > 8
    used = sum(path.stat().st_size for path in tmp_path.glob("*/*"))
    assert used <= max_bytes
    job = begin_checkpoint(broker)
    job.flush.run()
    job.save()
    end_checkpoint(broker, job)
    holding.clear()
    storage.close()
    again, restored = restore(
        DiskStorage(tmp_path), SimulatedClock(), Random(1), segment_bytes=segment_bytes
    )
    assert not restored.notes
    assert again.topics["t"].channels["c"].depth == topic.channels["c"].depth + (
        topic.channels["c"].in_flight_count
    )


def test_indexes_are_shortened_though_no_checkpoint_let_a_segment_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("martlet.broker.retention.checkpoint._DROP_ROWS", 8)
    core = SmallCore()
    core.channel("t")
    for _ in range(6):
        core.overflow("t")
        core.checkpoint()
    assert core.topic().queue.index.first_row > 0


def test_a_journal_that_found_no_space_is_relieved(core: SmallCore) -> None:
    core.channel("t")
    core.fill("t", SEGMENTS - 2)
    while core.broker.log.full is None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(core.broker.log, "on_full", lambda: False)
            core.publish("t", b"body" * 30)
    core.eviction.reclaim()
    assert core.broker.health == "OK"
    assert core.publish("t", b"body").error is None
