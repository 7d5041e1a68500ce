"""Finding messages in a data folder by their id or a key, and what has become of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.core import SECOND_NS, group_of
from tests.unit.broker.disk_core import DiskCore

from martlet.broker.channel.channel import Channel
from martlet.broker.groups.fetch import Fetch
from martlet.broker.groups.membership import AllocatedTopic, GroupConsumer
from martlet.broker.policy import TopicPolicy
from martlet.broker.recovery.trace_search import Search, Trace, TraceNotFound, TraceResult
from martlet.broker.topic.offset_reset import begin_group, follow, reset_group
from martlet.broker.tracing.recorder import TraceStep
from martlet.cli.operations.trace import text as text_of
from martlet.log.folder import Folder
from martlet.properties.model import Properties
from martlet.schema.traces import FoundMessages
from martlet.server.rpc.traces import found_messages
from martlet.testing import SimulatedClock


@pytest.fixture
def core(tmp_path: Path) -> DiskCore:
    return DiskCore(tmp_path / "data")


def lines(answer: FoundMessages) -> list[str]:
    """As ``martlet trace`` shows it."""
    return [text_of(message, answer).decode() for message in answer.messages]


def steps(trace: Trace) -> list[tuple[str, TraceStep]]:
    return [(event.channel, event.step) for event in trace.events]


def only(result: TraceResult) -> Trace:
    (trace,) = result.traces
    assert result.complete
    return trace


def test_a_message_is_found_by_its_id_with_all_that_became_of_it(core: DiskCore) -> None:
    core.channel("t", "idle")
    client = core.client("t").ready(1)
    core.publish("t", b"a", b"bb")
    core.wait(SECOND_NS)
    client.finish(0)
    client.requeue(1, 5 * SECOND_NS)
    result = core.search().by_id(client.got[1].id.decode())
    trace = only(result)
    assert (trace.topic, trace.queue, trace.offset, trace.body_bytes) == ("t", 0, 1, 2)
    assert steps(trace) == [("c", TraceStep.DELIVERED), ("c", TraceStep.REQUEUED)]
    standing = {s.channel: (s.state, s.attempts, s.due_ns) for s in trace.standing}
    due_ns = core.clock.now_ns + 5 * SECOND_NS
    assert standing == {"idle": ("waiting", 0, 0), "c": ("deferred", 1, due_ns)}
    core.wait(5 * SECOND_NS)
    client.finish(2)
    trace = only(core.search("t").by_id(client.got[1].id.decode()))
    assert steps(trace)[2:] == [("c", TraceStep.DELIVERED), ("c", TraceStep.FINISHED)]
    assert trace.events[3].time_ns - trace.stored_at_ns == 6 * SECOND_NS
    assert {s.channel: s.state for s in trace.standing}["c"] == "done"


def test_a_trace_distinguishes_a_group_from_a_channel(core: DiskCore) -> None:
    core.channel("t", "readers")
    core.configure(channel="readers", kind="offsets")
    client = core.client("t").ready(1)
    core.publish("t", b"a")
    client.finish()
    answer = found_messages(core.search().by_id(client.got[0].id.decode()))
    is_group = {channel.channel: channel.is_group for channel in answer.messages[0].channels}
    assert is_group == {"readers": True, "c": False}
    (text,) = lines(answer)
    assert "group readers: not committed yet" in text
    core.restart()
    answer = found_messages(core.search().by_id(client.got[0].id.decode()))
    assert "group readers: not committed yet" in lines(answer)[0]


def fetched(
    core: DiskCore, channel: Channel, offset: int, member: GroupConsumer, max_count: int = 1000
) -> int:
    """Fetch for a member. Returns where to go on."""
    group = channel.group
    assert group is not None
    result = Fetch(core.broker.log, channel.queue, offset, channel.id).read_on(
        channel.source, max_count, 1 << 20, channel.channel_filter
    )
    group.count(result, member)
    return result.next_offset


def member_of(channel: Channel, client_id: str) -> GroupConsumer:
    members = group_of(channel).members
    members.resize(AllocatedTopic(channel.topic, "", "", 1))
    return members.join(client_id, lease_ns=10**12, address="10.0.0.7:4000")


def test_a_trace_of_a_group_names_the_fetching_and_committing_member(core: DiskCore) -> None:
    topic = core.broker.topic("t")
    channel = begin_group(topic, "g", "first", 0, 0, {"tags": ["eu"]})
    for number in range(6):
        tag = "us" if number == 2 else "eu"
        core.send("t", Properties(keys=(f"k{number}",), tag=tag), b"%d" % number)
    till, other = member_of(channel, "till"), member_of(channel, "other")
    assert fetched(core, channel, 0, till, 4) == 5
    core.wait(SECOND_NS)
    group_of(channel).commit(4, till)
    core.wait(SECOND_NS)
    group_of(channel).go_back(1, till)
    core.wait(SECOND_NS)
    assert fetched(core, channel, 1, other) == 6
    core.wait(SECOND_NS)
    group_of(channel).commit(6, other)
    core.wait(SECOND_NS)
    reset_group(topic, channel, [0], "first", 0, 0)
    core.wait(SECOND_NS)
    reset_group(topic, channel, [0], "last", 0, 0)

    def steps_of(key: str) -> list[tuple[TraceStep, str]]:
        trace = only(core.search().by_key(key))
        assert [event.time_ns for event in trace.events] == sorted(
            event.time_ns for event in trace.events
        )
        return [(event.step, event.consumer) for event in trace.events]

    at_till, at_other = "till 10.0.0.7:4000", "other 10.0.0.7:4000"
    reset = [(TraceStep.SET_BACK, ""), (TraceStep.SET_FORWARD, "")]
    last = [(TraceStep.FETCHED, at_other), (TraceStep.COMMITTED, at_other), *reset]
    back = [
        (TraceStep.FETCHED, at_till),
        (TraceStep.COMMITTED, at_till),
        (TraceStep.SET_BACK, at_till),
        *last,
    ]
    assert steps_of("k0") == [*back[:2], *reset]
    assert steps_of("k1") == steps_of("k3") == back
    # A message that the group's filter drops is skipped and not fetched.
    assert steps_of("k2") == [one for one in back if one[0] is not TraceStep.FETCHED]
    assert steps_of("k4") == [back[0], *last]  # fetched, and not committed before it went back
    assert steps_of("k5") == last
    (text,) = lines(found_messages(core.search().by_key("k1")))
    assert "group g: committed past it" in text
    for shown in (
        f"fetched by {at_till}",
        f"committed by {at_till}",
        f"set back by {at_till}, to fetch it again",
        f"+3.0 s  fetched by {at_other}",
        "+6.0 s  set forward past it",
    ):
        assert shown in text
    core.restart()
    core.restart()
    assert steps_of("k1") == back
    assert only(core.search().by_key("k1")).starts_ns == []
    channel = core.broker.topic("t").channels["g"]
    core.send("t", Properties(keys=("k6",), tag="eu"), b"in flight")
    fetched(core, channel, 6, member_of(channel, "till"))
    core.broker.write_journal()
    core.wait(SECOND_NS)
    core.restart()
    assert len(core.search().by_key("k6").traces[-1].starts_ns) == 1


def test_a_group_that_is_not_traced_writes_nothing(core: DiskCore) -> None:
    core.broker.topic("t").configure(TopicPolicy(trace="off"))
    channel = begin_group(core.broker.topic("t"), "g", "first", 0, 0, {})
    core.keyed("t", b"a", "k")
    assert fetched(core, channel, 0, member_of(channel, "till")) == 1
    assert group_of(channel).commit(1) == 1
    result = core.search().by_key("k")
    assert not result.traced
    (text,) = lines(found_messages(result))
    assert "group g: committed past it\n" in text


def test_commits_of_a_follower_are_traced(core: DiskCore) -> None:
    core.keyed("t", b"a", "k")
    topic = core.broker.topic("t")
    follow(topic, "spark", {0: 0}, retain=True)
    core.wait(SECOND_NS)
    follow(topic, "spark", {0: 1}, retain=True)
    assert steps(only(core.search().by_key("k"))) == [("spark", TraceStep.COMMITTED)]
    core.wait(SECOND_NS)
    follow(topic, "spark", {0: 0}, retain=True)
    result = core.search().by_key("k")
    assert steps(only(result)) == [("spark", TraceStep.COMMITTED), ("spark", TraceStep.SET_BACK)]
    assert "+1.0 s  committed by its reader" in lines(found_messages(result))[0]


def test_messages_are_found_by_a_key_among_others(core: DiskCore) -> None:
    core.channel("t")
    for number in range(300):
        core.keyed("t", b"%d" % number, f"order-{number % 100}")
        core.keyed("other", b"%d" % number, f"order-{number}")
    core.consumed("t")
    result = core.search("t").by_key("order-7")
    assert [trace.offset for trace in result.traces] == [7, 107, 207]
    assert all(steps(trace)[-1] == ("c", TraceStep.FINISHED) for trace in result.traces)
    assert len(core.search().by_key("order-7").traces) == 4
    few = core.search("t").by_key("order-7", max_count=2)
    assert [trace.offset for trace in few.traces] == [107, 207]
    assert not few.complete
    with pytest.raises(
        TraceNotFound, match="no message with the key 'order-1000' is stored in the log"
    ):
        core.search().by_key("order-1000")
    with pytest.raises(TraceNotFound, match="'order'"):
        core.search().by_key("order")  # a part of one is none


def test_a_moved_message_is_found_by_its_earlier_id(core: DiskCore) -> None:
    core.channel("t")
    core.publish("t", b"other")
    before = "0123456789abcdef"
    core.send("t", Properties(system={"delayed": before}), b"moved")
    assert only(core.search().by_id(before.upper())).offset == 1


def test_a_delayed_message_is_found_by_its_id_before_its_time_and_after(core: DiskCore) -> None:
    core.channel("t")
    due_ns = core.clock.now_ns + 5 * SECOND_NS
    bucket, first, _ = core.broker.delays.publish(core.broker.topic("t"), [b"late", b"no"], due_ns)
    late, cancelled = (bucket.queue.message_id(first + number).decode() for number in (0, 1))
    trace = only(core.search().by_id(late))
    fields = (trace.topic, trace.offset, trace.deliver_at_ns, trace.body_bytes, trace.delayed)
    assert fields == ("t", -1, due_ns, 4, "waiting")
    text = "\n".join(lines(found_messages(core.search().by_id(late))))
    assert f"message {late} of topic t: 4 bytes" in text
    assert "it waits for its delivery time" in text
    core.broker.delays.cancel(core.broker.topic("t"), [cancelled.encode()])
    assert only(core.search("t").by_id(cancelled.upper())).delayed == "done"
    core.checkpoint()
    assert only(core.search().by_id(cancelled)).delayed == "done"
    core.restart()
    assert only(core.search().by_id(late)).delayed == "waiting"
    core.wait(5 * SECOND_NS)
    core.consumed("t")
    trace = only(core.search().by_id(late))
    assert (trace.offset, trace.delayed, trace.properties.system) == (0, "", {"delayed": late})
    assert steps(trace) == [("c", TraceStep.DELIVERED), ("c", TraceStep.FINISHED)]
    core.publish("other", b"x")
    with pytest.raises(TraceNotFound, match="a delayed message had it"):
        core.search("other").by_id(late)


def test_delayed_messages_are_found_by_their_key(core: DiskCore) -> None:
    core.channel("t")
    topic = core.broker.topic("t")
    due_ns = core.clock.now_ns + 5 * SECOND_NS
    entries = [(number, Properties(keys=("k", f"k{number}")).pack()) for number in range(3)]
    bucket, first, _ = core.broker.delays.publish(topic, [b"a", b"bb", b"c"], due_ns, entries)
    ids = [bucket.queue.message_id(first + number).decode() for number in range(3)]
    core.keyed("t", b"now", "k")
    core.keyed("other", b"now", "other")
    core.broker.delays.cancel(topic, [ids[2].encode()])

    def rows_of(key: str, topic: str = "") -> list[tuple[str, str, int, str]]:
        traces = core.search(topic).by_key(key).traces
        return [(trace.id, trace.topic, trace.offset, trace.delayed) for trace in traces]

    for again in (False, True):
        if again:
            core.checkpoint()
            core.restart()
        assert rows_of("k1") == rows_of("k1", "t") == [(ids[1], "t", -1, "waiting")]
        assert rows_of("k2") == [(ids[2], "t", -1, "done")]
        assert sorted(row[3] for row in rows_of("k")) == ["", "done", "waiting", "waiting"]
    assert "it waits for its delivery time" in lines(found_messages(core.search().by_key("k0")))[0]
    with pytest.raises(TraceNotFound, match="'k1'"):
        core.search("other").by_key("k1")
    core.wait(5 * SECOND_NS)
    core.consumed("t")
    # Now it is the topic's, and that alone.
    (delivered,) = rows_of("k1")
    assert delivered[1:] == ("t", 2, "")
    assert steps(core.search().by_key("k1").traces[0])[-1] == ("c", TraceStep.FINISHED)
    assert sorted(row[2] for row in rows_of("k")) == [-1, 0, 1, 2]


def test_only_messages_stored_since_a_time_are_searched(core: DiskCore) -> None:
    for _ in range(3):
        core.keyed("t", b".", "k")
        core.fill("t", 2)
        core.wait(3600 * SECOND_NS)
    search = core.search()
    assert len(search.by_key("k").traces) == 3
    since_ns = core.clock.now_ns - 3700 * SECOND_NS
    assert len(search.by_key("k", since_ns).traces) == 1
    with pytest.raises(TraceNotFound, match="since"):
        search.by_key("k", core.clock.now_ns)


def test_an_id_is_found_through_the_index_and_without_it(core: DiskCore) -> None:
    core.channel("t")
    core.fill("t", 4)
    core.checkpoint()
    core.publish("t", b"last")
    end = core.topic().queue.end_offset
    ids = [core.topic().queue.message_id(offset).decode() for offset in range(end)]
    search = core.search()
    for offset in (0, 1, end // 2, end - 2, end - 1):
        assert only(search.by_id(ids[offset])).offset == offset
    (core.path / "checkpoint").unlink()
    search = core.search()
    for offset in (0, end // 2, end - 1):
        assert only(search.by_id(ids[offset])).offset == offset


def test_the_error_of_a_missing_message_says_what_there_is(core: DiskCore) -> None:
    core.channel("t")
    bodies = core.fill("t", 4)
    first = core.topic().queue.message_id(0).decode()
    unknown = core.topic().queue.message_id(len(bodies)).decode()
    core.consumed("t")
    core.broker.write_journal()
    core.checkpoint(2)
    search = core.search()
    with pytest.raises(
        TraceNotFound, match=r"offset 0 of topic 't', and the message has gone.*begins"
    ):
        search.by_id(first)
    with pytest.raises(TraceNotFound, match=f"no message of this broker has the id {unknown}"):
        search.by_id(unknown)
    with pytest.raises(TraceNotFound, match="is no message id"):
        search.by_id("abc")
    with pytest.raises(TraceNotFound, match="there is no topic 'gone'"):
        core.search("gone")


def test_a_trace_shows_redelivery_after_a_kill(core: DiskCore) -> None:
    client = core.client("t").ready(1)
    core.publish("t", b"a")
    core.broker.write_journal()
    core.wait(SECOND_NS)
    started_ns = core.clock.now_ns
    core.restart()
    core.consumed("t")
    trace = only(core.search().by_id(client.got[0].id.decode()))
    assert [step for _, step in steps(trace)] == [
        TraceStep.DELIVERED,
        TraceStep.DELIVERED,
        TraceStep.FINISHED,
    ]
    assert [event.attempt for event in trace.events] == [1, 2, 0]
    assert trace.starts_ns == [started_ns]


def test_a_topic_that_is_not_traced_says_so(core: DiskCore) -> None:
    core.broker.topic("t").configure(TopicPolicy(trace="off"))
    client = core.client("t").ready(1)
    core.publish("t", b"a")
    client.finish()
    result = core.search().by_id(client.got[0].id.decode())
    assert not result.traced
    assert only(result).events == []
    assert [s.state for s in only(result).standing] == ["done"]


def test_a_search_ends_when_its_time_is_over(core: DiskCore) -> None:
    for number in range(1000):
        core.keyed("t", b"%d" % number, "k")
    core.broker.write_journal()
    is_over = iter([False] * 2)
    search = Search(Folder(core.path), lambda: next(is_over, True))
    result = search.by_key("k", max_count=1000)
    assert not result.complete
    assert 0 < len(result.traces) < 1000


def test_copied_history_keeps_its_trace(core: DiskCore) -> None:
    core.broker.topic("kept").configure(TopicPolicy(retention_ms=10**9))
    core.publish("kept", b"a")
    client = core.consumed("kept")
    for _ in range(8):
        core.fill("t", 1)
        core.topic().empty()
        core.broker.write_journal()
        core.checkpoint()
    result = core.search().by_id(client.got[0].id.decode())
    trace = only(result)
    assert trace.known_since_ns >= trace.stored_at_ns
    assert isinstance(core.clock, SimulatedClock)
