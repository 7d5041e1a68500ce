"""Delayed messages: at their time, once, after restarts and power cuts too, and cancelled by id."""

from __future__ import annotations

import errno
import struct
import sys
from contextlib import suppress
from unittest.mock import Mock

import pytest
from tests.unit.broker.core import SECOND_NS, Core

from martlet.broker.delayed import delayed_messages as delays
from martlet.broker.delayed import due_queue as upcoming
from martlet.broker.delayed.bucket import Bucket
from martlet.broker.delayed.delayed_messages import DAY_NS, HOUR_NS, MINUTE_NS, ListingPosition
from martlet.broker.delayed.done_bitmap import DoneBitmap
from martlet.broker.errors import LimitReached, WritesRefused
from martlet.broker.retention.eviction import Eviction
from martlet.log import index as index_module
from martlet.log.record import RecordKind
from martlet.properties.model import Properties

MS = 10**6
LONG_NS = 100 * DAY_NS


def delay(core: Core, topic: str, *bodies: bytes, delay_ns: int, **fields: str) -> list[bytes]:
    """Publish messages for later; their ids."""
    at_ns = core.clock.now_ns + delay_ns
    packed = Properties(**fields).pack() if fields else b""  # type: ignore[arg-type]
    properties = [(n, packed) for n in range(len(bodies))] if packed else []
    bucket, first, receipt = core.broker.delays.publish(
        core.broker.topic(topic), list(bodies), at_ns, properties
    )
    assert receipt.error is None
    return [bucket.queue.message_id(first + n) for n in range(len(bodies))]


def due_now(core: Core, duration_ns: int = 0) -> None:
    """Let time pass, and everything happen that is due then, and the disk be flushed."""
    core.clock.advance(duration_ns)
    for _ in range(200):
        next_ns = core.broker.run()
        if next_ns is None or next_ns > core.clock.now_ns + MS:
            return
        core.clock.advance(1000)
    raise AssertionError("it never rests")


def listed(
    core: Core, topic: str, behind: ListingPosition | None = None, max_count: int = 100
) -> list[bytes]:
    *_, messages = core.broker.delays.listing(core.broker.topics[topic], behind, max_count)
    assert messages is not None
    return [message.id.encode() for _, message in messages]


def buckets(core: Core) -> list[Bucket]:
    return [topic for topic in core.broker.by_id.values() if isinstance(topic, Bucket)]


def test_due_messages_wait_while_their_index_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were taken out of the due ones before, and so came after a restart only."""
    monkeypatch.setattr(index_module, "MAX_ROWS_IN_MEMORY", 4)
    monkeypatch.setattr(index_module, "_KEPT_ROWS", 1)
    core = Core(segment_bytes=1 << 20)
    client = core.client("t").ready(100)
    for number in range(4):
        delay(core, "t", b"%d" % number, delay_ns=MINUTE_NS)
    due_now(core, 40 * SECOND_NS)  # They are in memory, of which the file knows nothing.
    for number in range(4, 8):
        delay(core, "t", b"%d" % number, delay_ns=20 * SECOND_NS)
    core.clock.advance(20 * SECOND_NS)
    error = OSError(errno.EMFILE, "Too many open files")
    with monkeypatch.context() as disk:
        disk.setattr(core.storage, "map", Mock(side_effect=error))
        with pytest.raises(OSError, match="Too many open files"):
            core.broker.run()
    assert client.got == []
    due_now(core, SECOND_NS)
    assert sorted(client.bodies) == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize(
    "delay_ns", [5 * MS, 30 * SECOND_NS, 61 * MINUTE_NS, 26 * HOUR_NS, 30 * DAY_NS]
)
def test_a_message_comes_at_its_time_and_not_before(core: Core, delay_ns: int) -> None:
    client = core.client("t", timeout_ns=LONG_NS).ready(10)
    delay(core, "t", b"later", delay_ns=delay_ns)
    core.publish("t", b"now")
    due_now(core, delay_ns - 2 * MS)
    assert client.bodies == [b"now"]
    due_now(core, 2 * MS)
    assert client.bodies == [b"now", b"later"]
    assert core.broker.delays.pending_count == 0


def test_messages_come_in_the_order_of_their_times(core: Core) -> None:
    client = core.client("t", timeout_ns=LONG_NS).ready(100)
    for seconds in (50, 7, 3000, 20, 7000, 1):
        delay(core, "t", b"%d" % seconds, delay_ns=seconds * SECOND_NS)
    for _ in range(8000):
        core.wait(SECOND_NS)
    assert client.bodies == [b"1", b"7", b"20", b"50", b"3000", b"7000"]


def test_a_hidden_topic_is_in_no_list_and_goes_when_its_time_is_over(core: Core) -> None:
    client = core.client("t", timeout_ns=LONG_NS).ready(10)
    delay(core, "t", b"x", delay_ns=SECOND_NS)
    (bucket,) = buckets(core)
    assert list(core.broker.topics) == ["t"]
    due_now(core, SECOND_NS)
    assert client.bodies == [b"x"]
    core.checkpoint()
    due_now(core, HOUR_NS)
    assert buckets(core) == []
    core.checkpoint()
    assert bucket.queue.index.name.removeprefix("index/") not in core.storage.names("index")
    core.stop()
    assert buckets(core) == []


@pytest.mark.parametrize("way", ["stop", "kill", "power"])
def test_times_survive(core: Core, way: str) -> None:
    core.channel("t")
    delay(core, "t", b"x", b"y", delay_ns=90 * SECOND_NS, tag="blue")
    core.wait(30 * SECOND_NS)
    core.start_again(way)
    assert core.broker.delays.pending_of(core.topic().id) == 2
    client = core.client("t", timeout_ns=LONG_NS).ready(10)
    due_now(core, 59 * SECOND_NS)
    assert client.bodies == []
    due_now(core, SECOND_NS)
    assert client.bodies == [b"x", b"y"]


def test_a_durable_head_does_not_mark_unflushed_messages_as_forwarded(core: Core) -> None:
    """The batch may be lost in a power cut, and the head of the next segment be there."""
    core.channel("t")
    delay(core, "t", b"x", delay_ns=SECOND_NS)
    core.checkpoint()
    due_now(core, SECOND_NS)
    bucket = buckets(core)[0]
    assert bucket.pending_count == 0
    marks = DoneBitmap()
    marks.apply(bucket.journal_marks(certain=True) or b"")
    assert marks.count == 0
    marks.apply(bucket.journal_marks(certain=False) or b"")
    assert marks.count == 1
    core.flush()
    certain = DoneBitmap()
    certain.apply(bucket.journal_marks(certain=True) or b"")
    assert certain.count == 1


def test_a_forwarded_message_keeps_its_id_properties_and_time(core: Core) -> None:
    client = core.client("t", timeout_ns=LONG_NS).ready(10)
    published_ns = core.clock.now_ns
    (id,) = delay(core, "t", b"x", delay_ns=SECOND_NS, tag="blue")
    due_now(core, SECOND_NS)
    offset = client.offset(0)
    properties = Properties.unpack(client.channel.cursor.properties(offset))
    assert (properties.tag, properties.system) == ("blue", {"delayed": id.decode()})
    frame = client.channel.cursor.frame(offset, 1)
    assert frame is not None
    assert struct.unpack_from(">q", frame, 8) == (published_ns,)


def test_many_are_cancelled_at_once_however_many_buckets_there_are() -> None:
    core = Core(segment_bytes=1 << 20)
    core.channel("t")
    ids = [id for n in range(200) for id in delay(core, "t", b"a", b"b", delay_ns=(n + 1) * DAY_NS)]
    ids += [b"%016x" % number for number in range(9600)]
    calls = 0

    def count(*args: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        cancelled = core.broker.delays.cancel(core.topic(), ids[1:])
    finally:
        sys.setprofile(None)
    assert cancelled == set(ids[1:400])
    assert calls < 200_000
    assert listed(core, "t") == ids[:1]


def test_a_list_goes_on_where_it_ended(core: Core) -> None:
    core.channel("t")
    ids = {s: delay(core, "t", b"%d" % s, delay_ns=s * SECOND_NS)[0] for s in (30, 10, 7200, 20)}
    *_, messages = core.broker.delays.listing(core.topic(), None, 3)
    assert messages is not None
    assert [message.id.encode() for _, message in messages] == [ids[10], ids[20], ids[30]]
    assert listed(core, "t", messages[-1][0], 3) == [ids[7200]]


def test_a_deleted_topic_takes_its_delayed_messages_with_it(core: Core) -> None:
    delay(core, "t", b"x", delay_ns=SECOND_NS)
    delay(core, "u", b"y", delay_ns=SECOND_NS)
    core.broker.delete_topic("t")
    assert core.broker.delays.pending_count == 1
    core.broker.topic("t")
    core.kill()
    assert core.broker.delays.pending_count == 1
    due_now(core, SECOND_NS)
    assert (core.topic().message_count, core.broker.topics["u"].message_count) == (0, 1)


def test_too_many_are_refused_and_the_limit_is_named() -> None:
    core = Core(max_delayed=2)
    delay(core, "t", b"x", b"y", delay_ns=SECOND_NS)
    with pytest.raises(LimitReached, match="--max-delayed-messages is 2"):
        delay(core, "t", b"z", delay_ns=SECOND_NS)
    due_now(core, SECOND_NS)
    delay(core, "t", b"z", delay_ns=SECOND_NS)


def test_a_clock_that_is_set_back_between_two_runs_loses_nothing(core: Core) -> None:
    core.channel("t")
    delay(core, "t", b"a", delay_ns=10 * SECOND_NS)
    delay(core, "t", b"b", delay_ns=20 * SECOND_NS)
    due_now(core, 15 * SECOND_NS)
    core.stop()
    core.clock.now_ns -= 15 * SECOND_NS
    core.stop()
    assert core.broker.delays.pending_count == 1
    delay(core, "t", b"c", delay_ns=5 * SECOND_NS)
    client = core.client("t", timeout_ns=LONG_NS).ready(10)
    due_now(core, 6 * SECOND_NS)
    assert client.bodies == [b"a", b"c"]
    due_now(core, 15 * SECOND_NS)
    assert client.bodies == [b"a", b"c", b"b"]


def test_those_far_away_do_not_keep_the_log(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    client = core.client("t", timeout_ns=LONG_NS).ready(10**6)
    delay(core, "t", b"far", delay_ns=20 * DAY_NS)
    for _ in range(30):
        for _ in range(10):
            delay(core, "t", b"x" * 100, delay_ns=SECOND_NS)
        due_now(core, SECOND_NS)
        client.finish(*range(len(client.got)))
        client.got.clear()
        core.flush()
        core.broker.write_journal()
        core.checkpoint()
    due_now(core, HOUR_NS)
    for _ in range(12):
        core.fill("u", 1)
        core.topic("u").empty()
        core.checkpoint()
    assert len(core.broker.log.segments) <= 6
    core.kill()
    assert core.broker.delays.pending_count == 1
    client = core.client("t", timeout_ns=LONG_NS).ready(10)
    due_now(core, 20 * DAY_NS)
    assert client.bodies == [b"far"]
    assert core.lost == []


def test_a_log_without_its_checkpoint_knows_forwarded_messages(core: Core) -> None:
    client = core.client("t", timeout_ns=LONG_NS).ready(10)
    delay(core, "t", b"a", delay_ns=SECOND_NS)
    ids = delay(core, "t", b"b", b"c", delay_ns=2 * SECOND_NS)
    due_now(core, SECOND_NS)
    client.finish(0)
    core.broker.delays.cancel(core.topic(), ids[:1])
    core.broker.write_journal()
    core.checkpoint()
    core.storage.remove("checkpoint")
    core.kill()
    client = core.client("t", timeout_ns=LONG_NS).ready(10)
    due_now(core, 2 * SECOND_NS)
    assert client.bodies == [b"c"]


def test_a_number_given_anew_after_a_power_cut_is_no_forwarded_one(core: Core) -> None:
    """The forwarded batch is durable and the end of its bucket is not: the place is not reused."""
    core.channel("t")
    delay(core, "t", b"kept", delay_ns=5 * SECOND_NS)
    core.checkpoint()
    (bucket,) = buckets(core)
    delay(core, "t", b"lost", delay_ns=SECOND_NS)
    entry = bucket.queue.index.row(1)
    due_now(core, SECOND_NS)
    core.flush()
    core.damage(entry.position)
    core.kill()
    delay(core, "t", b"new", delay_ns=SECOND_NS)
    client = core.client("t", timeout_ns=LONG_NS).ready(10)
    due_now(core, 2 * SECOND_NS)
    assert client.bodies == [b"lost", b"new"]
    due_now(core, HOUR_NS)
    assert client.bodies == [b"lost", b"new", b"kept"]


def test_more_deferred_ones_than_channels_may_hold_wait_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delays, "MAX_IN_CHANNELS", 5)
    monkeypatch.setattr(delays, "_COUNTED_AGAIN", 2)
    core = Core()
    client = core.client("t", timeout_ns=LONG_NS).ready(100)
    topic = core.topic()
    for number in range(20):
        core.broker.delays.defer(topic, [b"%d" % number], core.clock.now_ns + SECOND_NS + number)
    in_channel = client.channel.cursor.pending.waiting_count
    assert client.channel.deferred_count == 20
    assert 5 <= in_channel <= 7
    assert core.broker.delays.pending_of(topic.id) == 20 - in_channel
    due_now(core, 2 * SECOND_NS)
    assert sorted(map(int, client.bodies)) == list(range(20))
    client.finish()
    for number in range(20):
        core.broker.delays.defer(topic, [b"%d" % number], core.clock.now_ns + SECOND_NS)
    assert client.channel.cursor.pending.waiting_count >= 5


def test_very_many_are_taken_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from martlet.broker.delayed import bucket

    monkeypatch.setattr(upcoming, "MIN_ROWS", 20)
    monkeypatch.setattr(upcoming, "_PIECE_ROWS", 7)
    monkeypatch.setattr(bucket, "MAX_ROWS", 3)
    core = Core(segment_bytes=1 << 16)
    client = core.client("t", timeout_ns=LONG_NS).ready(10**6)
    expected = []
    for number in range(500):
        seconds = (number * 7919) % 97
        at_ns = (30 + seconds) * SECOND_NS
        expected.append((seconds, b"%d" % number))
        delay(core, "t", b"%d" % number, delay_ns=at_ns)
    (are_few,) = {len(b._upcoming) <= 40 for b in buckets(core)}
    assert are_few
    for _ in range(130):
        due_now(core, SECOND_NS)
        assert all(len(b._upcoming) <= 60 for b in buckets(core))
    assert [body for _, body in sorted(expected, key=lambda row: row[0])] == client.bodies


def test_messages_put_off_by_a_full_disk_take_no_more_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from martlet.broker.delayed import bucket

    monkeypatch.setattr(upcoming, "MIN_ROWS", 20)
    monkeypatch.setattr(bucket, "MAX_ROWS", 7)
    core = Core(segment_bytes=1 << 16)
    client = core.client("t", timeout_ns=LONG_NS).ready(1000)
    for number in range(200):
        delay(core, "t", b"%d" % number, delay_ns=40 * SECOND_NS + number)
    core.storage.capacity_bytes = 0
    core.publish("u", b"y" * 1000)
    core.broker.log.end_segment()
    for _ in range(100):
        due_now(core, SECOND_NS)
        assert all(len(bucket._upcoming) <= 60 for bucket in buckets(core))
    assert client.bodies == []
    core.storage.capacity_bytes = None
    core.broker.log.refresh_full()
    for _ in range(10):
        due_now(core, SECOND_NS)
    assert client.bodies == [b"%d" % number for number in range(200)]


def test_many_that_come_when_they_are_nearly_due_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upcoming, "MAX_FRESH", 10)
    core = Core(segment_bytes=1 << 16)
    client = core.client("t", timeout_ns=LONG_NS).ready(1000)
    delay(core, "t", b"-1", delay_ns=20 * SECOND_NS)
    due_now(core, 0)
    times = {number: 1 + number * 7919 % 97 for number in range(200)}
    for number, seconds in times.items():
        delay(core, "t", b"%d" % number, delay_ns=seconds * SECOND_NS // 5)
        assert all(len(bucket._upcoming._fresh) <= 10 for bucket in buckets(core))
    for _ in range(20):
        due_now(core, SECOND_NS)
    assert list(map(int, client.bodies)) == [*sorted(times, key=lambda n: times[n]), -1]


def test_delayed_messages_dropped_for_space_are_not_forwarded(core: Core) -> None:
    """Space was freed by dropping the very messages that were on their way to their topic."""
    eviction = Eviction(core.broker, core.flush_now)
    client = core.client("t", timeout_ns=LONG_NS).ready(100)
    delay(core, "t", b"x", delay_ns=SECOND_NS)
    core.fill("u", 3)
    core.storage.capacity_bytes = core.storage.used_bytes
    core.broker.log.end_segment()
    due_now(core, SECOND_NS)
    assert eviction.evicted_count == 1
    assert core.topic().dropped_count == 1
    assert client.bodies == []
    assert core.broker.delays.pending_count == 0


def test_an_index_that_is_shortened_while_it_is_looked_through_yields_each_row_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upcoming, "_PIECE_ROWS", 10)
    core = Core(segment_bytes=1 << 16)
    client = core.client("t", timeout_ns=LONG_NS).ready(1000)
    ids = [delay(core, "t", b"%d" % n, delay_ns=100 * SECOND_NS + n)[0] for n in range(60)]
    (bucket,) = buckets(core)
    core.wait(80 * SECOND_NS)
    core.broker.delays.cancel(core.topic(), ids[:35])
    bucket.queue.index.drop_before(35)
    due_now(core, 30 * SECOND_NS)
    assert client.bodies == [b"%d" % n for n in range(35, 60)]


def test_forwards_found_at_a_start_are_uncertain_until_the_next_flush(core: Core) -> None:
    core.channel("t")
    delay(core, "t", b"x", delay_ns=SECOND_NS)
    core.checkpoint()
    due_now(core, SECOND_NS)
    core.kill()
    (bucket,) = buckets(core)
    marks = DoneBitmap()
    marks.apply(bucket.journal_marks(certain=True) or b"")
    assert (bucket.pending_count, marks.count) == (0, 0)
    core.flush()
    marks.apply(bucket.journal_marks(certain=True) or b"")
    assert marks.count == 1


def test_a_log_with_its_last_segment_used_by_the_journal_goes_on_when_there_is_space() -> None:
    """Each of many segments has few needed records, and there is no space to bring them together:
    nothing goes on, and nothing is lost.
    """
    core = Core()
    core.channel("t", "c")
    due_ns = core.clock.now_ns + 10 * SECOND_NS
    for number in range(10):
        core.broker.delays.publish(core.broker.topic("t"), [b"%d" % number], due_ns)
        core.fill("x", 1)
        core.topic("x").empty()
    core.storage.capacity_bytes = core.storage.used_bytes + core.segment_bytes // 2
    # The journal has the last one, and no checkpoint frees any.
    with suppress(WritesRefused):
        while True:
            core.broker.log.append_journal(
                RecordKind.TRACE, b"." * 1000, topic=1, stored_at_ns=core.clock.now_ns
            )
    segments = len(core.broker.log.segments)
    for _ in range(3):
        with pytest.raises((WritesRefused, OSError)):
            core.checkpoint()
    core.wait(10 * SECOND_NS)
    assert core.broker.delays.pending_count == 10
    core.storage.capacity_bytes += 2 * core.segment_bytes
    for _ in range(20):
        core.checkpoint()
        core.wait(SECOND_NS)
    assert len(core.broker.log.segments) < segments // 2
    got = core.client("t", "c").ready(100)
    assert sorted(got.bodies) == [b"%d" % number for number in range(10)]
