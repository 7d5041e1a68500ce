"""Messages that go and that stay when the oldest segment has to make space."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from tests.unit.broker.core import SECOND_NS, SEGMENT_BYTES, Client, Core, bodies_of

from martlet.broker.errors import NotInFlight
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

    def flush_now(self) -> bool:
        self.flush()
        return True

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


def test_publishing_goes_on_and_the_newest_are_kept() -> None:
    core = SmallCore()
    core.channel("t")
    bodies = core.overflow("t")
    for number in range(500):
        bodies.append(b"more %d " % number * 40)
        assert core.publish("t", bodies[-1]).error is None
    lost = core.dropped()
    channel, topic = core.channel("t"), core.broker.topics["t"]
    assert 0 < lost < len(bodies)
    assert channel.dropped_count == topic.dropped_count == lost
    assert channel.depth == len(bodies) - lost
    assert consumed(core, "t") == bodies[lost:]
    assert core.broker.health == "OK"
    assert core.storage.used_bytes <= SEGMENTS * SEGMENT_BYTES


def test_deferred_messages_that_a_follower_has_yet_to_read_may_be_dropped() -> None:
    core = SmallCore()
    topic = core.broker.topic("t")
    core.publish("t", b"at once", b"later")
    follow(topic, "spark", {0: 1}, retain=True)
    core.publish("t", b"later", delay_ns=3600 * SECOND_NS)
    bodies = core.overflow("t")
    assert topic.channels["spark"].depth == topic.message_count - 1 - core.dropped()
    assert core.publish("t", bodies[-1]).error is None


def test_an_unneeded_segment_goes_first_and_nothing_is_lost() -> None:
    core = SmallCore()
    kept = core.fill("kept", 1)
    core.channel("kept")
    client = core.client("read").ready(1 << 20)
    for number in range(300):
        assert core.publish("read", b"%d " % number * 40).error is None
        client.finish(len(client.got) - 1)
    assert not core.evicted
    assert consumed(core, "kept") == kept


def test_a_channel_that_is_ahead_loses_nothing() -> None:
    core = SmallCore()
    core.channel("t", "slow")
    fast = core.client("t", "fast").ready(1 << 20)
    bodies: list[bytes] = []
    while not core.evicted:
        bodies += core.fill("t", 1)
        fast.finish(*range(fast.consumer.finish_count, len(fast.got)))
    assert core.channel("t", "fast").dropped_count == 0
    assert core.channel("t", "slow").dropped_count == core.broker.topics["t"].dropped_count > 0
    assert fast.bodies == bodies


def test_dropped_messages_in_flight_are_taken_back_and_their_fin_is_late() -> None:
    core = SmallCore()
    holder = core.client("t").ready(3)
    core.overflow("t")
    assert holder.bodies[:3] == [b"0 " * 40, b"1 " * 40, b"2 " * 40]
    assert len(holder.got) == 6, "its room was taken by the next ones"
    assert holder.consumer.in_flight_count == 3
    for number in range(3):
        with pytest.raises(NotInFlight, match="ID not in flight"):
            holder.finish(number)
        with pytest.raises(NotInFlight):
            holder.touch(number)
    holder.finish(3, 4, 5)
    assert holder.consumer.in_flight_count == 3


def test_pending_and_deferred_messages_of_it_are_dropped() -> None:
    core = SmallCore()
    client = core.client("t").ready(1)
    core.publish("t", b"requeued")
    client.requeue(0, 50 * SECOND_NS)
    core.publish("t", b"deferred", delay_ns=60 * SECOND_NS)
    core.publish("t", b"touched")
    client.touch(1)
    channel = core.channel("t")
    assert channel.deferred_count == 2
    client.ready(0)
    bodies = core.overflow("t")
    assert channel.deferred_count == 0
    assert client.consumer.in_flight_count == 0
    assert channel.depth == len(bodies) + 3 - core.dropped()
    client.ready(1 << 20)
    core.wait(120 * SECOND_NS)
    assert client.bodies == [b"requeued", b"touched", *bodies[core.dropped() - 3 :] * 2], (
        "timed out"
    )


def test_a_topic_without_channels_and_one_that_is_paused() -> None:
    core = SmallCore()
    core.channel("paused")
    core.broker.topics["paused"].set_paused(True)
    hidden = core.fill("paused", 1)
    waiting = core.fill("waiting", 1)
    while len(core.evicted) < 2:
        core.publish("more", b"more" * 30)
    paused = core.broker.topics["paused"]
    lost = paused.dropped_count
    assert paused.depth == len(hidden) - lost
    paused.set_paused(False)
    assert core.channel("paused").message_count == len(hidden) - lost
    assert consumed(core, "paused") == hidden[lost:]
    lost = core.broker.topics["waiting"].dropped_count
    assert lost
    assert core.broker.topics["waiting"].depth == len(waiting) - lost
    assert consumed(core, "waiting") == waiting[lost:]


def test_a_gap_in_the_middle_is_passed_over() -> None:
    """Cleaning has moved older messages to a newer segment."""
    core = SmallCore()
    core.channel("old")
    first = [b"first %d" % number for number in range(3)]
    core.publish("old", *first)
    fast = core.client("t").ready(1 << 20)
    core.fill("t", 1)
    second = core.fill("old", 1)
    core.fill("t", 1)
    fast.finish()
    segments = [segment.base for segment in core.broker.log.segments]
    core.checkpoint()
    core.checkpoint()
    assert core.broker.log.segments[0].base != segments[0], "it was cleaned, and has gone"
    while not core.evicted:
        core.publish("more", b"more" * 30)
    old = core.broker.topics["old"]
    assert old.voids
    lost = old.dropped_count
    assert 0 < lost <= len(second)
    channel = core.channel("old")
    assert channel.depth == len(first) + len(second) - lost
    core.kill()
    channel = core.channel("old")
    assert channel.depth == len(first) + len(second) - lost
    assert consumed(core, "old") == [*first, *second[lost:]]
    assert not core.restored.notes


@pytest.mark.parametrize("power", [False, True])
def test_dropped_messages_stay_dropped(power: bool) -> None:
    core = SmallCore()
    core.channel("t")
    core.checkpoint()
    bodies = core.overflow("t")
    lost = core.dropped()
    if power:
        core.flush()
    core.kill(power=power)
    assert core.channel("t").depth == len(bodies) - lost
    assert consumed(core, "t") == bodies[lost:]


@pytest.mark.parametrize("ended", [False, True])
def test_a_checkpoint_that_runs_meanwhile(ended: bool) -> None:
    """It names a segment that goes before it is saved."""
    core = SmallCore()
    core.channel("t")
    bodies = core.fill("t", SEGMENTS - 3)
    job = begin_checkpoint(core.broker)
    assert not job.free
    bodies += core.overflow("t")
    lost = core.dropped()
    job.flush.run()
    job.save()
    if ended:
        end_checkpoint(core.broker, job)
    core.kill()
    assert core.channel("t").depth == len(bodies) - lost
    assert consumed(core, "t") == bodies[lost:]


def test_a_checkpoint_that_would_let_it_go_too() -> None:
    core = SmallCore()
    client = core.client("t").ready(1 << 20)
    core.fill("t", 2)
    client.finish()
    job = begin_checkpoint(core.broker)
    assert job.free
    while job.free[0] in core.broker.log.segments:
        core.publish("more", b"more" * 30)
    job.flush.run()
    job.save()
    end_checkpoint(core.broker, job)
    assert not set(map(id, job.free)) & set(map(id, core.broker.log.segments))


def test_nothing_goes_before_the_journal_is_durable_behind_it() -> None:
    """Or a power cut would find neither the segment nor what stood in it."""
    core = SmallCore()
    core.channel("t")
    flushed = []

    def flush_now() -> bool:
        flushed.append(core.broker.log.durable_position)
        core.flush()
        return True

    core.eviction = Eviction(core.broker, flush_now, core.evicted.append)
    core.overflow("t")
    assert flushed == [0]


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_keeps_durable_entries_of_a_dropped_segment(seed: int) -> None:
    core = SmallCore()
    core.storage.random.seed(seed)
    core.channel("early")
    core.flush()
    core.overflow("t")
    core.kill(power=True)
    assert list(core.broker.topics["early"].channels) == ["c"]


@pytest.mark.parametrize("seed", range(8))
def test_committed_messages_are_durable_before_their_half_messages_go(seed: int) -> None:
    """They were no longer needed, but the batch that they had become was in memory only."""
    core = SmallCore()
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
    assert bodies_of(core.broker, core.broker.topics["t"]) == [b"half"]
    assert not core.evicted


def test_a_segment_with_a_damaged_head_does_not_release_the_one_before_it() -> None:
    core = SmallCore()
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


def test_a_flush_that_fails_lets_nothing_go() -> None:
    core = SmallCore()
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


def test_with_nothing_to_drop_publishing_is_refused() -> None:
    core = SmallCore()
    core.publish("t", b"x")
    core.storage.allow_spares(-2)
    assert core.storage.spare_count == 0
    core.storage.capacity_bytes = core.storage.used_bytes
    core.storage.keep_free_bytes = SEGMENT_BYTES
    error = None
    while error is None:
        error = core.publish("t", b"body" * 30).error
    assert "the disk is full" in str(error)


def test_the_only_segment_goes_where_another_is_in_reserve() -> None:
    core = SmallCore()
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
    assert core.broker.topics["t"].queue.index.first_row > 0


def test_a_journal_that_found_no_space_is_relieved() -> None:
    core = SmallCore()
    core.channel("t")
    core.fill("t", SEGMENTS - 2)
    while core.broker.log.full is None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(core.broker.log, "on_full", lambda: False)
            core.publish("t", b"body" * 30)
    core.eviction.reclaim()
    assert core.broker.health == "OK"
    assert core.publish("t", b"body").error is None
