"""Messages that a topic keeps though all channels finished them, and when they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.broker.core import SECOND_NS, SEGMENT_BYTES, Core

from martlet.broker.errors import OutOfReach, WritesRefused
from martlet.broker.policy import TopicPolicy
from martlet.broker.retention.checkpoint import (
    begin_checkpoint,
    history_makes_room,
    makes_room,
)
from martlet.broker.retention.eviction import HistoryReclaimer
from martlet.broker.retention.history import USUAL_TIME_NS, Retention, Watermarks
from martlet.broker.topic.rewind import offset_at, replay
from martlet.log.storage import DiskUsage
from martlet.testing import SimulatedStorage

HOUR_NS = 3600 * SECOND_NS
DAY_MS = 24 * 3600 * 1000


class Keeping(Core):
    """A core that keeps history, and consumers that finish all that they get."""

    def finished(self, topic: str, segments: int) -> list[bytes]:
        """Publish some segments full of messages, all of which are finished at once."""
        client = self.client(topic).ready(1 << 20)
        bodies: list[bytes] = []
        for _ in range(segments):
            bodies += self.fill(topic, 1)
            client.finish(*range(client.consumer.finish_count, len(client.got)))
        client.leave()
        self.broker.write_journal()
        return bodies

    def start(self, topic: str) -> int:
        """From where on a topic is stored."""
        return self.broker.topics[topic].queue.start_offset

    def again(self, topic: str, offset: int) -> list[bytes]:
        """Return the messages of a channel that is set back to an offset."""
        replay(self.broker.topics[topic], "c", {0: offset})
        client = self.client(topic).ready(1 << 20)
        client.finish()
        client.leave()
        return client.bodies


def keeping(time_ns: int = HOUR_NS, bytes: int = 0, **options: Any) -> Keeping:
    return Keeping(retention=Retention(time_ns, bytes), **options)


@pytest.fixture
def core() -> Keeping:
    return keeping()


def test_without_retention_nothing_is_kept_beyond_need() -> None:
    core = Keeping()
    bodies = core.finished("t", 6)
    core.checkpoint(3)
    assert core.start("t") > len(bodies) // 2


def test_finished_messages_stay_for_the_retention_time_and_can_be_replayed(core: Keeping) -> None:
    bodies = core.finished("t", 6)
    core.checkpoint(3)
    assert core.start("t") == 0
    assert core.again("t", 0) == bodies
    core.wait(HOUR_NS - 1)
    core.checkpoint(3)
    assert core.start("t") == 0
    core.wait(1 + SECOND_NS)
    core.checkpoint(3)
    assert core.start("t") > len(bodies) // 2
    with pytest.raises(OutOfReach, match="was deleted"):
        replay(core.topic(), "c", {0: 0})


def test_each_segment_goes_when_its_own_time_has_come(core: Keeping) -> None:
    starts = []
    for _ in range(6):
        core.finished("t", 2)
        core.wait(HOUR_NS // 4)
        core.checkpoint(3)
        starts.append(core.start("t"))
    assert starts[:4] == [0, 0, 0, 0]
    assert 0 < starts[4] < starts[5]
    index = core.topic().queue.index
    oldest_ns = index.row(index.find(core.start("t"))).stored_at_ns
    assert core.clock.now_ns - oldest_ns <= HOUR_NS + HOUR_NS // 4
    assert offset_at(core.topic(), core.clock.now_ns - HOUR_NS // 4) > core.start("t")


def test_retention_bytes_are_kept_and_at_most_a_segment_more() -> None:
    core = keeping(bytes=3 * SEGMENT_BYTES)
    core.finished("t", 10)
    core.checkpoint(3)
    index = core.topic().queue.index
    rows = index.array(index.find(core.start("t")), index.end_row)
    kept = int(rows["length"].sum())
    assert 3 * SEGMENT_BYTES <= kept <= 4 * SEGMENT_BYTES
    assert len(core.broker.log.segments) <= 6


def test_unfinished_messages_stay_beyond_all_limits() -> None:
    core = keeping(SECOND_NS, SEGMENT_BYTES)
    core.channel("t")
    bodies = core.fill("t", 6)
    core.wait(HOUR_NS)
    core.checkpoint(3)
    assert core.client("t").ready(1 << 20).bodies == bodies


def test_bytes_alone_keep_history_for_the_usual_time() -> None:
    assert Retention.from_flags(0, 0).time_ns == 0
    assert Retention.from_flags(0, 5) == (USUAL_TIME_NS, 5)
    assert Retention.from_flags(7, 5) == (7, 5)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (TopicPolicy(), Retention(7, 5)),
        (TopicPolicy(retention_ms=2), Retention(2_000_000, 5)),
        (TopicPolicy(retention_ms=0), Retention(0, 5)),
        (TopicPolicy(retention_ms=0, retention_bytes=9), Retention(0, 9)),
        (TopicPolicy(retention_bytes=0), Retention(7, 0)),
        (TopicPolicy(retention_bytes=9), Retention(7, 9)),
    ],
)
def test_a_topics_policy_goes_before_the_brokers_setting(
    policy: TopicPolicy, expected: Retention
) -> None:
    assert Retention(7, 5).of(policy) == expected
    assert Retention().of(TopicPolicy(retention_bytes=9)) == (USUAL_TIME_NS, 9)
    assert Retention().of(TopicPolicy(retention_bytes=0)) == (0, 0)


def test_a_policy_counts_at_once_and_after_a_restart() -> None:
    core = Keeping()
    core.finished("kept", 1)
    core.topic("kept").configure(TopicPolicy(retention_ms=DAY_MS))
    core.finished("kept", 5)
    core.finished("other", 5)
    core.checkpoint(3)
    assert core.start("kept") == 0
    assert core.start("other") > 0
    core.stop()
    core.finished("other", 5)
    core.checkpoint(3)
    assert core.start("kept") == 0
    core.kill()
    core.topic("kept").configure(TopicPolicy())
    core.checkpoint(3)
    assert core.start("kept") > 0


def test_a_longer_retention_covers_messages_still_stored() -> None:
    core = Keeping(retention=Retention(SECOND_NS))
    bodies = core.finished("t", 3)
    core.wait(2 * SECOND_NS)
    core.broker.write_journal()
    job = begin_checkpoint(core.broker)
    assert job.free, "they would go"
    core.topic().configure(TopicPolicy(retention_ms=DAY_MS))
    core.checkpoint(3)
    assert core.start("t") == 0
    assert core.again("t", 0) == bodies


def test_each_queue_of_a_topic_keeps_its_share() -> None:
    core = keeping(bytes=6 * SEGMENT_BYTES)
    topic = core.broker.set_queues("t", 2)
    for number in range(16 * SEGMENT_BYTES // 400):
        topic.at_queues[number % 2].stage([b"." * 400])
        core.broker.commit()
    topic.empty()
    core.checkpoint(3)
    for part in topic.at_queues:
        index = part.queue.index
        rows = index.array(index.find(part.queue.start_offset), index.end_row)
        assert 2 * SEGMENT_BYTES < int(rows["length"].sum()) < 5 * SEGMENT_BYTES


def test_no_history_is_kept_of_ephemeral_topics(core: Keeping) -> None:
    core.finished("t#ephemeral", 5)
    core.checkpoint(3)
    assert core.start("t#ephemeral") > 0


def test_a_little_history_does_not_hold_the_segments_of_others() -> None:
    core = keeping(0)
    core.broker.topic("small").configure(TopicPolicy(retention_ms=DAY_MS))
    small = []
    for number in range(12):
        client = core.client("small").ready(1)
        small.append(b"small %d" % number)
        core.publish("small", small[-1])
        client.finish()
        client.leave()
        core.finished("big", 2)
        core.checkpoint()
    core.checkpoint(30)
    assert len(core.broker.log.segments) <= 8, "of two dozen"
    assert core.again("small", 0) == small


@pytest.fixture
def filled_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[Keeping, float], None]:
    """Let others take so much of a disk of a hundred segments that it is full to some percent."""

    def fill(core: Keeping, percent: float) -> None:
        storage = core.storage
        own = SimulatedStorage.fill(storage).used
        others = int(SEGMENT_BYTES * percent) - own

        def usage() -> DiskUsage:
            return DiskUsage(SimulatedStorage.fill(storage).used + others, SEGMENT_BYTES * 100)

        monkeypatch.setattr(storage, "fill", usage)
        assert storage.fill().percent == pytest.approx(percent, abs=0.1)

    return fill


Filling = Callable[["Keeping", float], None]


def mixed(core: Keeping) -> list[bytes]:
    """Segments that hold some history each, more than is copied to save space."""
    small = []
    for number in range(10):
        small.append(b"small %d " % number * 60)
        client = core.client("small").ready(1)
        core.publish("small", small[-1])
        client.finish()
        client.leave()
        core.finished("big", 1)
    return small


def test_history_is_copied_only_when_the_disk_is_filling_up(filled_to: Filling) -> None:
    core = keeping(0)
    core.broker.topic("small").configure(TopicPolicy(retention_ms=DAY_MS))
    small = mixed(core)
    core.checkpoint(20)
    assert len(core.broker.log.segments) >= 10, "a quarter of each is history: it is left in place"
    filled_to(core, 74)
    core.checkpoint(20)
    assert len(core.broker.log.segments) >= 10
    filled_to(core, 80)
    core.checkpoint(20)
    assert len(core.broker.log.segments) <= 7, "until it is no more than 75 % full"
    assert core.again("small", 0) == small


def test_above_the_second_mark_the_oldest_history_goes_before_its_time(
    core: Keeping, filled_to: Filling
) -> None:
    core.finished("t", 10)
    core.checkpoint(3)
    before = len(core.broker.log.segments)
    filled_to(core, 84)
    core.checkpoint(3)
    assert core.start("t") == 0
    filled_to(core, 85.9)
    job = begin_checkpoint(core.broker)
    assert [s.base for s in job.forced] == [s.base for s in core.broker.log.segments][:1]
    core.complete(job)
    assert core.start("t") > 0
    assert len(core.broker.log.segments) == before - 1
    assert core.storage.fill().percent <= 85
    start = core.start("t")
    core.checkpoint(3)
    assert core.start("t") == start, "no more than was asked for"
    assert len(core.again("t", start)) == core.topic().queue.end_offset - start


def test_nothing_unfinished_goes_however_full_the_disk_is(
    core: Keeping, filled_to: Filling
) -> None:
    client = core.client("t").ready(1)
    bodies = core.fill("t", 8)
    filled_to(core, 99)
    core.checkpoint(3)
    client.finish(0)
    client.leave()
    assert core.client("t").ready(1 << 20).bodies == bodies[1:]


def test_a_pending_message_in_old_history_is_kept_where_the_history_goes(
    core: Keeping, filled_to: Filling
) -> None:
    client = core.client("t").ready(1 << 20)
    bodies = core.fill("t", 10)
    client.requeue(3, HOUR_NS)
    client.finish(*(n for n in range(len(client.got)) if n != 3))
    client.leave()
    core.checkpoint(3)
    filled_to(core, 95)
    core.checkpoint(20)
    assert len(core.broker.log.segments) < 10
    assert core.start("t") > 3
    core.wait(2 * HOUR_NS)
    assert core.client("t").ready(1).bodies == [bodies[3]]


def test_marks_of_zero_mean_never(filled_to: Filling) -> None:
    core = keeping(watermarks=Watermarks(0, 0))
    core.finished("t", 8)
    filled_to(core, 99.9)
    core.checkpoint(3)
    assert core.start("t") == 0


class SmallDisk(Keeping):
    """Refuses publishers when it is full, and lets history go before that."""

    SEGMENTS = 8

    def _open(self) -> None:
        super()._open()
        self.storage.capacity_bytes = (self.SEGMENTS + 4) * SEGMENT_BYTES
        self.storage.keep_free_bytes = 4 * SEGMENT_BYTES
        HistoryReclaimer(self.broker)


def test_no_publish_is_refused_for_the_sake_of_history() -> None:
    core = SmallDisk(retention=Retention(HOUR_NS))
    core.broker.settings.watermarks = Watermarks(0, 0)
    bodies = core.finished("t", 4)
    for _ in range(8):
        core.checkpoint()
        bodies += core.finished("t", 3)
    assert core.broker.health == "OK"
    start = core.start("t")
    assert 0 < start < len(bodies)
    assert core.again("t", start) == bodies[start:]
    core.start_again("power")
    assert core.start("t") >= start
    assert not core.lost


def test_publishes_are_refused_before_unfinished_messages_are_dropped() -> None:
    core = SmallDisk(retention=Retention(HOUR_NS))
    core.finished("old", 4)
    core.checkpoint()
    core.channel("t")
    bodies: list[bytes] = []
    while True:
        body = b"%d " % len(bodies) * 40
        receipt = core.publish("t", body)
        if receipt.error is not None:
            break
        bodies.append(body)
    assert isinstance(receipt.error, WritesRefused)
    assert "the disk is full" in str(receipt.error)
    assert core.start("old") > 0
    assert core.client("t").ready(1 << 20).bodies == bodies


def test_after_a_start_a_full_log_lets_history_go_without_waiting_for_the_next_checkpoint() -> None:
    core = SmallDisk(retention=Retention(HOUR_NS))
    core.finished("old", 4)
    core.checkpoint()
    core.kill()
    core.channel("t")
    assert not makes_room(core.broker)
    while core.publish("t", b"x" * 100).error is None:
        pass
    assert core.start("old") == 0
    assert makes_room(core.broker)
    core.checkpoint()
    assert not makes_room(core.broker)
    assert core.publish("t", b"x" * 100).error is None
    assert core.start("old") > 0


def test_without_history_a_full_disk_waits_for_the_checkpoint_as_ever() -> None:
    core = SmallDisk()
    core.channel("t")
    receipt = core.publish("t", b"x" * 40)
    while receipt.error is None:
        client = core.client("t").ready(1 << 20)
        receipt = core.publish("t", b"x" * 400)
        client.finish()
        client.leave()
    assert "the disk is full" in str(receipt.error)
    core.broker.write_journal()
    core.checkpoint()
    assert core.publish("t", b"x").error is None


def test_above_the_third_mark_no_segment_is_begun_for_messages(filled_to: Filling) -> None:
    core = Keeping()
    core.broker.log.refuse_percent = 90
    core.channel("t")
    core.fill("t", 4)
    filled_to(core, 91)
    receipt = core.publish("t", b"x" * 100)
    while receipt.error is None:
        receipt = core.publish("t", b"x" * 100)
    assert "above 90 % (--disk-refuse-percent)" in str(receipt.error)
    assert "--disk-refuse-percent" in core.broker.health
    filled_to(core, 89)
    core.checkpoint()
    assert core.broker.health == "OK"
    assert core.publish("t", b"x").error is None


def test_time_alone_frees_space_on_an_idle_broker(core: Keeping) -> None:
    core.finished("t", 5)
    core.checkpoint(3)
    assert not history_makes_room(core.broker)
    core.wait(HOUR_NS + SECOND_NS)
    begin_checkpoint(core.broker)
    assert history_makes_room(core.broker)
    core.checkpoint()
    assert core.start("t") > 0
    assert not history_makes_room(core.broker)
