"""Channels set back, and channels that begin in the past."""

from __future__ import annotations

import errno

import pytest
from tests.unit.broker.core import SECOND_NS, Core

from martlet.broker.errors import NotFound, NotInFlight, OutOfReach, WritesRefused
from martlet.broker.retention.checkpoint import begin_checkpoint, end_checkpoint
from martlet.broker.topic.rewind import channel_from, offset_at, replay

TEN = [b"%d" % number for number in range(10)]


def set_back(core: Core, offset: int, channel: str = "c") -> None:
    replay(core.broker.topics["t"], channel, {0: offset})


def published() -> Core:
    core = Core()
    core.channel("t")
    core.publish("t", *TEN[:4])
    core.wait(SECOND_NS)
    core.publish("t", *TEN[4:])
    return core


@pytest.mark.parametrize("offset", [0, 3, 4, 7, 10])
def test_finished_messages_come_again_in_order(offset: int) -> None:
    core = published()
    client = core.client("t").ready(20)
    client.finish()
    set_back(core, offset)
    assert client.bodies == TEN + TEN[offset:]
    assert {message.attempts for message in client.got} == {1}
    assert client.consumer.in_flight_count == 10 - offset


@pytest.mark.parametrize("offset", [0, 2, 5])
def test_later_messages_in_flight_are_taken_from_their_consumer(offset: int) -> None:
    core = published()
    client = core.client("t").ready(6)
    client.channel.set_paused(True)
    set_back(core, offset)
    assert client.consumer.in_flight_count == offset
    assert client.channel.depth == 10 - offset
    for number in range(offset):
        client.finish(number)
    with pytest.raises(NotInFlight):
        client.finish(offset)
    client.channel.set_paused(False)
    assert client.bodies == TEN[:6] + TEN[offset : offset + 6]


@pytest.mark.parametrize("offset", [0, 2, 5])
def test_replayed_messages_have_their_full_timeout(offset: int) -> None:
    core = published()
    client = core.client("t").ready(3).ready(10)
    core.wait(30 * SECOND_NS)
    set_back(core, offset)
    core.wait(31 * SECOND_NS)
    assert client.channel.timeout_count == offset, "what is below was not delivered again"
    core.wait(30 * SECOND_NS)
    assert client.channel.timeout_count == 10


def test_pending_messages_begin_anew_above_and_stay_below() -> None:
    core = published()
    client = core.client("t").ready(10)
    client.requeue(1, 100 * SECOND_NS)
    client.touch(2)
    client.requeue(6, 100 * SECOND_NS)
    client.touch(7)
    client.finish(0, 3, 4, 5, 8, 9)
    set_back(core, 5)
    assert client.channel.deferred_count == 1, "the one below"
    client.finish(2)
    assert client.bodies == TEN + TEN[5:]
    core.wait(100 * SECOND_NS)
    assert (2, b"1") in [(message.attempts, message.body) for message in client.got[15:]]


def test_a_deferred_message_waits_for_its_time_and_a_past_one_comes_at_once(core: Core) -> None:
    client = core.client("t").ready(10)
    core.publish("t", b"soon", delay_ns=SECOND_NS)
    core.publish("t", b"late", delay_ns=100 * SECOND_NS)
    core.publish("t", b"now")
    core.wait(SECOND_NS)
    assert sorted(client.bodies) == [b"now", b"soon"]
    client.finish()
    set_back(core, 0)
    assert sorted(client.bodies[2:]) == [b"now", b"soon"]
    assert (client.channel.depth, client.channel.deferred_count) == (0, 1)
    client.finish(2, 3)
    core.wait(100 * SECOND_NS)
    assert client.bodies[4:] == [b"late"]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_replay_survives_a_restart(end: str) -> None:
    core = published()
    core.client("t").ready(20).finish()
    core.broker.write_journal()
    set_back(core, 3)
    core.stop() if end == "stop" else core.kill()
    assert core.client("t").ready(20).bodies == TEN[3:]


def test_messages_finished_after_a_replay_stay_finished() -> None:
    core = published()
    client = core.client("t").ready(20)
    client.finish()
    core.broker.write_journal()
    set_back(core, 3)
    client.ready(0)
    client.finish(10, 11)
    core.broker.write_journal()
    core.kill()
    assert sorted(core.client("t").ready(20).bodies) == TEN[5:]


def test_a_replay_that_cannot_be_written_down_changes_nothing() -> None:
    core = published()
    client = core.client("t").ready(20)
    client.finish()
    core.storage.write_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(WritesRefused):
        set_back(core, 3)
    assert client.bodies == TEN
    assert client.channel.depth == 0


def test_other_channels_and_the_count_of_messages_stay_as_they_are() -> None:
    core = published()
    other = core.client("t", "other").ready(20)
    client = core.client("t").ready(20)
    client.finish()
    set_back(core, 0)
    assert client.channel.message_count == 10
    assert other.got == []


def test_an_ephemeral_channel_is_set_back_too() -> None:
    core = published()
    client = core.client("t", "e#ephemeral").ready(20)
    core.publish("t", b"new")
    set_back(core, 10, "e#ephemeral")
    assert client.bodies == [b"new", b"new"]
    set_back(core, 0, "e#ephemeral")
    assert client.bodies[2:] == [*TEN, b"new"]


def test_messages_emptied_from_a_channel_are_replayed_and_those_of_a_topic_are_not() -> None:
    core = Core()
    client = core.client("t").ready(0)
    core.publish("t", b"1")
    client.channel.empty()
    topic = core.broker.topics["t"]
    topic.set_paused(True)
    core.publish("t", b"2")
    topic.empty()
    topic.set_paused(False)
    core.publish("t", b"3")
    client.ready(10).finish()
    core.checkpoint()
    set_back(core, 0)
    assert client.bodies == [b"3", b"1", b"3"]
    assert channel_from(topic, "past", {0: 0}).depth == 2


def test_messages_emptied_from_a_topic_without_channels_are_not_replayed(core: Core) -> None:
    core.publish("t", b"1")
    topic = core.broker.topics["t"]
    topic.empty()
    core.publish("t", b"2")
    assert topic.depth == 1
    channel_from(topic, "c", {0: 0})
    assert core.client("t").ready(10).bodies == [b"2"]


def test_a_channel_with_voids_of_its_own_passes_over_them_again(core: Core) -> None:
    for body in TEN:
        core.publish("t", body)
    channel = core.broker.topics["t"].channel("c", 0, [(2, 4), (6, 9)])
    client = core.client("t").ready(20)
    client.finish()
    set_back(core, 3)
    assert client.bodies == [b"0", b"1", b"4", b"5", b"9", b"4", b"5", b"9"]
    client.ready(0)
    client.channel.empty()
    core.stop()
    channel = core.channel("t")
    set_back(core, 0)
    assert channel.depth == 5
    assert core.client("t").ready(20).bodies == [b"0", b"1", b"4", b"5", b"9"]


def test_the_error_of_a_replay_says_how_far_it_may_go() -> None:
    core = published()
    client = core.client("t").ready(5).ready(0)
    with pytest.raises(
        OutOfReach, match="is at offset 5 and cannot be set back to 6; the offset must be 5"
    ):
        set_back(core, 6)
    with pytest.raises(NotFound):
        set_back(core, 0, "none")
    client.channel.empty()
    core.fill("t", 3)
    client.channel.empty()
    core.checkpoint()
    start = core.broker.topics["t"].queue.start_offset
    assert start > 4
    with pytest.raises(OutOfReach, match=f"offset 4 .* was deleted.* begin at {start}") as refused:
        set_back(core, 4)
    assert refused.value.gone
    set_back(core, start)


def test_a_checkpoint_on_its_way_lets_nothing_go_that_is_to_come_again(core: Core) -> None:
    client = core.client("t").ready(1000)
    bodies = core.fill("t", 3)
    client.finish()
    core.broker.write_journal()
    job = begin_checkpoint(core.broker)
    assert job.free
    set_back(core, 0)
    job.flush.run()
    job.save()
    end_checkpoint(core.broker, job)
    assert client.bodies == bodies * 2
    core.kill()
    assert core.client("t").ready(1000).bodies == bodies


def test_the_offset_of_a_time() -> None:
    core = published()
    topic = core.broker.topics["t"]
    start_ns = core.clock.now_ns - SECOND_NS
    assert [
        offset_at(topic, start_ns + ns) for ns in (-(10**15), 0, 1, SECOND_NS, 2 * SECOND_NS)
    ] == [*(0, 0, 4, 4, 10)]
    core.client("t").ready(20).finish()
    core.wait(SECOND_NS)
    core.fill("t", 3)
    core.channel("t").empty()
    core.checkpoint()
    with pytest.raises(OutOfReach, match="of topic 't' of that time may have been deleted"):
        offset_at(topic, start_ns)
    assert offset_at(topic, core.clock.now_ns + 1) == topic.queue.end_offset


def test_a_new_channel_begins_in_the_past() -> None:
    core = published()
    topic = core.broker.topics["t"]
    channel_from(topic, "past", {0: 4})
    core.kill()
    topic = core.broker.topics["t"]
    assert core.client("t", "past").ready(20).bodies == TEN[4:]
    with pytest.raises(OutOfReach, match="there is a channel 'past'"):
        channel_from(topic, "past", {0: 4})
    with pytest.raises(OutOfReach, match="ends at offset 10, before 11"):
        channel_from(topic, "future", {0: 11})


def test_the_first_channel_leaves_no_backlog_behind(core: Core) -> None:
    core.publish("t", *TEN)
    topic = core.broker.topics["t"]
    with pytest.raises(OutOfReach, match="gets all from offset 0 on"):
        channel_from(topic, "past", {0: 1})
    assert channel_from(topic, "past", {0: 0}).depth == 10
