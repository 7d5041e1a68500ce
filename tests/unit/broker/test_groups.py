"""A group at one queue: fetches, commits and dead letters, and the fate of the rest."""

from __future__ import annotations

import pytest
from tests.unit.broker.core import SECOND_NS, Core, group_of, parse

from martlet.broker.channel.channel import Channel
from martlet.broker.errors import Conflict, OutOfReach
from martlet.broker.groups.fetch import Fetch, Fetched
from martlet.broker.policy import BadPolicy, ChannelPolicy
from martlet.broker.queue import cursor as cursor_module
from martlet.broker.queue.peek import PeekState, peek
from martlet.broker.topic.offset_reset import begin_group, reset_group
from martlet.broker.topic.rewind import replay
from martlet.properties.model import Properties


def group(core: Core, topic: str = "t", name: str = "g") -> Channel:
    return begin_group(core.broker.topic(topic), name, "first", 0, 0, {})


def fetched(core: Core, channel: Channel, offset: int, max_bytes: int = 1 << 20) -> Fetched:
    fetch = Fetch(core.broker.log, channel.queue, offset, channel.id)
    fetch.on_lost = channel.cursor.on_lost
    return fetch.read_on(channel.source, 1000, max_bytes, channel.channel_filter)


def bodies(answer: Fetched) -> list[bytes]:
    return [message.body for part in answer.frames for message in parse(bytes(part))]


def test_a_due_message_comes_after_all_others_and_for_the_group_only(core: Core) -> None:
    channel = group(core)
    other = core.client("t", "c").ready(100)
    core.publish("t", b"later", delay_ns=SECOND_NS)
    core.publish("t", b"now")
    assert bodies(fetched(core, channel, 0)) == [b"now"]
    assert (channel.depth, channel.deferred_count) == (1, 1)
    core.wait(SECOND_NS)
    answer = fetched(core, channel, 0)
    assert (bodies(answer), answer.next_offset) == ([b"now", b"later"], 3)
    assert (channel.depth, channel.deferred_count) == (2, 0)
    assert other.bodies == [b"now", b"later"]
    assert group_of(channel).commit(2) == 2
    assert channel.depth == 1
    waiting = peek(channel, 0, 10, {PeekState.WAITING})
    assert [one.offset for one in waiting] == [2]
    # Messages dropped for space would be missed.
    assert channel.unfinished([(0, 3)]).tolist() == [2]
    assert group_of(channel).commit(3) == 3
    assert channel.depth == 0
    assert channel.unfinished([(0, 3)]).tolist() == []


def test_a_long_way_without_a_wanted_message_is_gone_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursor_module, "MAX_TESTED", 3)
    core = Core()
    topic = core.broker.topic("t")
    channel = begin_group(topic, "g", "first", 0, 0, {"tags": ["red"]})
    for number in range(8):
        core.publish("t", b"%d" % number)
    core.send("t", Properties(tag="red"), b"red")
    offset, steps = 0, 0
    while not (answer := fetched(core, channel, offset)).count:
        assert not answer.is_end
        assert answer.next_offset > offset
        offset, steps = answer.next_offset, steps + 1
    assert steps == 2
    assert answer.next_offset == 9


def test_emptied_and_held_back_messages_are_not_fetched(core: Core) -> None:
    topic = core.broker.topic("t")
    core.publish("t", b"emptied")
    topic.empty()
    core.publish("t", b"one")
    channel = group(core)
    assert bodies(fetched(core, channel, 0)) == [b"one"]
    topic.set_paused(True)
    core.publish("t", b"two")
    answer = fetched(core, channel, 0)
    assert (bodies(answer), answer.next_offset, answer.is_end) == ([b"one"], 2, True)
    topic.set_paused(False)
    assert bodies(fetched(core, channel, 2)) == [b"two"]


def test_the_log_keeps_uncommitted_messages_and_drops_the_rest(core: Core) -> None:
    channel = group(core)
    sent = core.fill("t", 4)
    core.checkpoint()
    answer = fetched(core, channel, 0)
    assert bodies(answer) == sent
    group_of(channel).commit(len(sent) - 1)
    core.broker.write_journal()
    core.checkpoint(3)
    assert channel.queue.start_offset > 0
    core.kill()
    channel = core.topic().channels["g"]
    assert channel.cursor.next == len(sent) - 1
    assert bodies(fetched(core, channel, channel.cursor.next)) == sent[-1:]


def test_a_channel_does_not_become_the_group_that_is_joined_by_its_name(core: Core) -> None:
    topic = core.broker.topic("t")
    channel = core.channel("t", "g")
    core.publish("t", b"one", b"two")
    with pytest.raises(Conflict) as refused:
        begin_group(topic, "g", "last", 0, 0, {})
    assert "'g' of topic 't' is a channel with 2 messages waiting" in str(refused.value)
    assert "martlet channel configure t g kind=offsets" in str(refused.value)
    assert channel.group is None
    assert core.client("t", "g").ready(2).bodies == [b"one", b"two"]


def test_a_channel_that_other_brokers_have_becomes_a_group_until_a_consumer_subscribes() -> None:
    core = Core()
    topic = core.broker.topic("t")
    topic.channel("g", policy=ChannelPolicy(from_lookup=True))
    core.publish("t", b"one")
    core.kill()
    channel = begin_group(core.broker.topic("t"), "g", "last", 0, 0, {})
    assert bodies(fetched(core, channel, channel.cursor.next)) == [b"one"]
    assert channel.policy == ChannelPolicy(kind="offsets")


def test_a_channel_becomes_a_group_only_without_consumers_and_stays_one(core: Core) -> None:
    topic = core.broker.topic("t")
    client = core.client("t", "g").ready(1)
    core.publish("t", b"one", b"two")
    with pytest.raises(BadPolicy, match="'g' of topic 't' has consumers"):
        topic.configure_channel("g", ChannelPolicy(kind="offsets"))
    client.leave()
    topic.configure_channel("g", ChannelPolicy(kind="offsets"))
    channel = begin_group(topic, "g", "last", 0, 0, {})
    # What was delivered and not finished comes again.
    core.wait(0)
    assert sorted(bodies(fetched(core, channel, channel.cursor.next))) == [b"one", b"two"]
    with pytest.raises(Conflict, match="is a group"):
        core.client("t", "g")
    with pytest.raises(BadPolicy, match="stays one"):
        topic.configure_channel("g", ChannelPolicy())
    with pytest.raises(BadPolicy, match="in order anyway"):
        topic.configure_channel("g", ChannelPolicy(kind="offsets", order="queue"))
    with pytest.raises(BadPolicy, match="cannot be ephemeral"):
        begin_group(topic, "h#ephemeral", "last", 0, 0, {})
    assert list(topic.channels) == ["g"]
    with pytest.raises(OutOfReach, match="martlet groups reset"):
        replay(topic, "g", {0: 0})
    core.stop()
    assert core.topic().channels["g"].group is not None


def test_a_reset_survives_a_kill_and_leaves_deferred_messages(core: Core) -> None:
    topic = core.broker.topic("t")
    channel = group(core)
    core.channel("t", "all")
    core.publish("t", b"later", delay_ns=SECOND_NS)
    core.publish("t", b"1", b"2", b"3")
    group_of(channel).commit(3)
    core.broker.write_journal()
    with pytest.raises(OutOfReach, match="offset 9 is not there: queue 0 of topic 't' has 0 to 4"):
        reset_group(topic, channel, [0], "offset", 0, 9)
    reset_group(topic, channel, [0], "offset", 0, 1)
    core.kill()
    channel = core.topic().channels["g"]
    assert (channel.cursor.next, channel.depth, channel.deferred_count) == (1, 3, 1)
    reset_group(core.topic(), channel, [0], "last", 0, 0)
    assert (channel.cursor.next, channel.depth, channel.deferred_count) == (4, 0, 1)
    core.wait(SECOND_NS)
    assert bodies(fetched(core, channel, 4)) == [b"later"]


def test_messages_waiting_for_their_key_go_to_the_group_that_the_channel_becomes() -> None:
    core = Core()
    topic = core.broker.topic("t")
    channel = core.channel("t", "g")
    topic.configure_channel("g", ChannelPolicy(order="key"))
    with pytest.raises(BadPolicy, match="kind: 'g' of topic 't' has order=key, which a group"):
        topic.configure_channel("g", ChannelPolicy(kind="offsets", order="key"))
    client = core.client("t", "g").ready(10)
    for number in range(4):
        core.send("t", Properties(order_key="k"), b"%d" % number)
    assert client.bodies == [b"0"]
    client.leave()
    topic.configure_channel("g", ChannelPolicy(kind="offsets"))
    core.wait(SECOND_NS)
    assert not channel.cursor.pending.by_offset
    got = [channel.cursor.frame(offset, 1) for offset in range(4, channel.source.limit)]
    assert [bytes(frame or b"")[34:] for frame in got] == [b"0", b"1", b"2", b"3"]
    assert channel.depth == 4


def test_a_member_goes_back_to_the_first_stored_offset_at_most(core: Core) -> None:
    channel = group(core)
    bodies = core.fill("t", 4)
    group_of(channel).commit(len(bodies) - 2)
    core.broker.write_journal()
    core.checkpoint()
    start = channel.queue.start_offset
    assert start > 0
    assert group_of(channel).go_back(0) == start
    assert channel.depth == len(bodies) - start


def test_members_of_a_group_that_is_emptied_have_to_join_again(core: Core) -> None:
    channel = group(core)
    group_of(channel).resize(1)
    member = group_of(channel).members.join("a", lease_ns=60 * SECOND_NS)
    core.publish("t", b"one", b"two")
    core.broker.empty_channel(core.broker.topic("t"), "g")
    assert member.is_gone
    assert (channel.cursor.next, channel.depth) == (2, 0)
