"""Traces of messages in the log."""

from __future__ import annotations

import collections
from functools import partial
from random import Random

import numpy as np
import pytest
from tests.unit.broker.core import SECOND_NS, SEGMENT_BYTES, Core

from martlet.broker.channel.channel import Channel
from martlet.broker.errors import WritesRefused
from martlet.broker.policy import TopicPolicy
from martlet.broker.tracing import recorder as trail_module
from martlet.broker.tracing.recorder import TraceChunk, TraceEvent, TraceRecorder, TraceStep
from martlet.log.record import BadRecord, RecordKind
from martlet.properties.model import Properties

MILLISECOND_NS = 10**6


def pieces(core: Core) -> list[TraceChunk]:
    """All that the log says of it."""
    core.broker.write_journal()
    return [TraceChunk(record) for _, record in core.records(RecordKind.TRACE)]


def story(core: Core, offset: int, channel: str = "c") -> list[tuple[object, ...]]:
    """Return the events of a message, without their times."""
    events = [one for piece in pieces(core) for one in piece.of(offset) if one.channel == channel]
    return [
        (one.step, one.consumer, one.attempt, *([one.delay_ms] if one.delay_ms else []))
        for one in events
    ]


@pytest.fixture
def core() -> Core:
    return Core(traces=True)


def test_nothing_is_traced_unless_it_is_asked_for() -> None:
    core = Core()
    client = core.client("t").ready(5)
    core.publish("t", b"a")
    client.finish()
    assert pieces(core) == []


def test_events_of_a_message_are_in_order(core: Core) -> None:
    first = core.client("t", timeout_ns=SECOND_NS).ready(1)
    began_ns = core.clock.now_ns
    core.publish("t", b"a")
    core.wait(100 * MILLISECOND_NS)
    first.requeue(0, 3 * SECOND_NS)
    core.wait(3 * SECOND_NS)
    core.broker.write_journal()
    core.wait(SECOND_NS)
    first.leave()
    second = core.client("t").ready(1)
    core.wait(100 * MILLISECOND_NS)
    second.finish()
    assert story(core, 0) == [
        (TraceStep.DELIVERED, "consumer 1", 1),
        (TraceStep.REQUEUED, "consumer 1", 1, 3000),
        (TraceStep.DELIVERED, "consumer 1", 2),
        (TraceStep.TIMED_OUT, "consumer 1", 2),
        (TraceStep.DELIVERED, "consumer 1", 3),
        (TraceStep.GIVEN_BACK, "consumer 1", 3),
        (TraceStep.DELIVERED, "consumer 2", 4),
        (TraceStep.FINISHED, "consumer 2", 0),
    ]
    times = [one.time_ns - began_ns for piece in pieces(core) for one in piece.of(0)]
    milliseconds = [time // MILLISECOND_NS for time in times]
    assert milliseconds == [0, 100, 3100, 4100, 4100, 4100, 4100, 4200]


def test_the_reason_of_a_consumer_s_failure_is_recorded(core: Core) -> None:
    client = core.client("t").ready(1)
    core.publish("t", b"a")
    channel = core.channel("t")
    assert isinstance(channel, Channel)
    channel.requeue(client.consumer, 0, SECOND_NS, "no such account")
    events = [one for piece in pieces(core) for one in piece.of(0)]
    assert events[1].reason == "no such account"


def test_a_message_that_is_given_up_says_why_and_where_it_goes(core: Core) -> None:
    client = core.client("t").ready(1)
    core.configure(max_attempts=1)
    core.publish("t", b"a")
    client.requeue(0)
    core.broker.run()
    events = [one for piece in pieces(core) for one in piece.of(0) if one.channel == "c"]
    assert [one.step for one in events] == [
        TraceStep.DELIVERED,
        TraceStep.REQUEUED,
        TraceStep.GIVEN_UP,
    ]
    assert events[2].reason == "max_attempts -> t.c.dead"


def test_a_run_of_any_number_of_messages_is_one_row() -> None:
    core = Core(traces=True, segment_bytes=1 << 20)
    client = core.client("t").ready(1 << 20)
    for _ in range(20):
        core.publish("t", *[b"."] * 500)
    client.channel.finish_run(client.consumer, np.arange(10_000))
    (piece,) = pieces(core)
    assert len(piece.rows) == 2
    assert [one.step for one in piece.of(9_999)] == [TraceStep.DELIVERED, TraceStep.FINISHED]
    assert list(piece.of(10_000)) == []


def test_messages_that_go_round_are_one_row_and_two_bytes_each() -> None:
    core = Core(traces=True, segment_bytes=1 << 20)
    clients = [core.client("t").ready(1 << 20) for _ in range(3)]
    for number in range(999):
        core.broker.append(core.broker.topic("t"), b"%d" % number)
    (piece,) = pieces(core)
    assert len(piece.rows) == 1
    for offset in range(999):
        owner = next(c for c in clients if b"%d" % offset in c.bodies)
        (event,) = piece.of(offset)
        assert event.consumer == f"consumer {owner.consumer.number}"


def test_only_messages_that_pass_the_filter_are_recorded(core: Core) -> None:
    client = core.client("t").ready(100)
    core.configure(tags=("red",))
    entries = [(number, Properties(tag="red").pack()) for number in (1, 2, 5)]
    core.broker.topic("t").stage([b"%d" % n for n in range(7)], 0, entries)
    core.broker.commit()
    assert client.bodies == [b"1", b"2", b"5"]
    assert [bool(story(core, offset)) for offset in range(7)] == [
        offset in (1, 2, 5) for offset in range(7)
    ]


def test_a_topic_is_traced_as_its_policy_says(core: Core) -> None:
    core.broker.topic("quiet").configure(TopicPolicy(trace="off"))
    for name in ("quiet", "loud", "gone#ephemeral"):
        client = core.client(name).ready(1)
        core.publish(name, b"a")
        client.finish()
    assert [piece.name for piece in pieces(core)] == ["c"]
    core.topic("loud").configure(TopicPolicy(trace="off"))
    core.topic("quiet").configure(TopicPolicy(trace="on"))
    core.stop()
    for name in ("quiet", "loud"):
        client = core.client(name).ready(1)
        core.publish(name, b"b")
        client.finish()
    assert len(pieces(core)) == 2
    assert len(story(core, 1)) == 2


def test_a_trail_holds_no_segment_and_is_no_journal(core: Core) -> None:
    client = core.client("t").ready(1 << 20)
    for _ in range(10):
        core.fill("t", 1)
        client.finish(*range(client.consumer.finish_count, len(client.got)))
        core.broker.write_journal()
    core.checkpoint()
    assert len(core.broker.log.segments) <= 2
    before = len(client.got)
    core.kill()
    assert not core.restored.report.damaged
    assert core.topic().queue.end_offset == before
    assert core.client("t").ready(1).got == []


def test_a_trace_is_left_out_without_space_and_the_journal_goes_on(core: Core) -> None:
    client = core.client("t").ready(1 << 20)
    core.publish("t", b"x")
    core.broker.write_journal()
    core.storage.capacity_bytes = core.storage.used_bytes + 3 * SEGMENT_BYTES
    core.storage.keep_free_bytes = 0
    receipt = core.publish("t", b"x" * 100)
    while receipt.error is None:
        receipt = core.publish("t", b"x" * 100)
    append = partial(
        core.broker.log.append_journal, RecordKind.TRACE, bytes(400), topic=1, stored_at_ns=0
    )
    with pytest.raises(WritesRefused):
        collections.deque(iter(partial(append, needed=False), None), maxlen=0)
    for number in range(8):
        client.finish(number)
        core.broker.write_journal()
    core.kill()
    assert core.client("t").ready(1).bodies == [b"x" * 100]


def test_buffered_events_are_limited_and_the_loss_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trail_module, "MAX_EVENTS", 10)
    monkeypatch.setattr(trail_module, "MAX_PIECES", 3)
    core = Core()
    consumer = core.client("t").consumer
    recorder = TraceRecorder()
    for number in range(100):
        recorder.note(TraceStep.DELIVERED, 2 * number, 2 * number + 1, number, consumer)
    chunks = [TraceChunk(packed) for packed in recorder.take(7, "c")]
    assert not recorder
    assert [len(piece.rows) for piece in chunks] == [10, 10, 10]
    assert [piece.lost for piece in chunks] == [70, 0, 0]
    assert (chunks[0].channel, chunks[0].name) == (7, "c")
    assert [one.step for one in chunks[2].of(198)] == [TraceStep.DELIVERED]


def test_any_events_are_decoded_as_they_were() -> None:
    random = Random(3)
    core = Core()
    consumers = [core.client("t").consumer for _ in range(4)]
    recorder = TraceRecorder()
    expected: list[list[TraceEvent]] = [[] for _ in range(60)]
    time_ns = 5 * SECOND_NS
    for _ in range(400):
        time_ns += random.choice([0, 0, 1000, 300_000, 2 * MILLISECOND_NS])
        first = random.randrange(50)
        end = first + random.choice([1, 1, 1, 2, 10])
        step = random.choice(list(TraceStep))
        consumer = random.choice([None, *consumers])
        attempt, delay_ms = random.choice([0, 1, 2]), random.choice([0, 0, 7])
        reason = random.choice(["", "", "bad", "worse"])
        recorder.note(
            step, first, end, time_ns, consumer, attempt, delay_ms * MILLISECOND_NS, reason
        )
        name = f"consumer {consumer.number}" if consumer else ""
        for offset in range(first, end):
            expected[offset].append(TraceEvent(time_ns, "c", step, name, attempt, delay_ms, reason))
    (piece,) = [TraceChunk(packed) for packed in recorder.take(1, "c")]

    def comparable(one: TraceEvent) -> tuple[object, ...]:
        return one.step, one.consumer, one.attempt, one.delay_ms, one.reason

    for offset, events in enumerate(expected):
        decoded = list(piece.of(offset))
        assert sorted(map(comparable, decoded)) == sorted(map(comparable, events))
        for one in decoded:
            same = [e for e in events if comparable(e) == comparable(one)]
            assert any(abs(e.time_ns - one.time_ns) <= MILLISECOND_NS + 1000 for e in same)


def test_bytes_that_are_no_trace_are_refused() -> None:
    for bad in (b"", b"x" * 30, b"\xff" * 64):
        with pytest.raises(BadRecord, match="trace"):
            TraceChunk(bad)
