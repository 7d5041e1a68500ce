"""A follower: what stands for a reader that keeps its own place holds back what it is asked to."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.core import SECOND_NS, Core

from martlet.broker.channel.channel import Channel
from martlet.broker.errors import Conflict, NotFound, OutOfReach
from martlet.broker.policy import BadPolicy, ChannelPolicy
from martlet.broker.topic.offset_reset import begin_group, follow


def following(core: Core, offset: int | None = None, **options: Any) -> Channel:
    offsets = {} if offset is None else {0: offset}
    return follow(core.broker.topic("t"), "spark", offsets, **({"retain": True} | options))


def start_of(core: Core) -> int:
    """From where on the topic is stored, once all that is not needed has gone."""
    core.checkpoint(3)
    return core.topic().queue.start_offset


def test_a_follower_is_where_its_reader_says_before_or_behind(core: Core) -> None:
    core.publish("t", *[b"%d" % number for number in range(10)])
    assert following(core).depth == 10
    assert following(core, 7).depth == 3
    assert following(core, 4).depth == 6
    core.kill(journaled=True)
    channel = core.channel("t", "spark")
    assert (channel.depth, channel.policy.kind) == (6, "follower")
    with pytest.raises(OutOfReach, match="offset 11 of topic 't', queue 0 is behind its end, 10"):
        following(core, 11)
    with pytest.raises(NotFound):
        follow(core.broker.topic("t"), "spark", {1: 0}, retain=True)
    assert following(core, 10).depth == 0


def test_a_reported_offset_survives_a_kill_before_a_journal_is_due(core: Core) -> None:
    core.publish("t", *[b"%d" % number for number in range(10)])
    for offset in (0, 10, 4):
        following(core, offset)
        core.kill()
        assert core.channel("t", "spark").depth == 10 - offset


@pytest.mark.parametrize("is_alone", [True, False])
def test_unread_messages_are_kept_on_request(core: Core, is_alone: bool) -> None:
    client = None if is_alone else core.client("t").ready(1 << 20)
    following(core)
    count = len(core.fill("t", 6))
    if client is not None:
        client.finish()
    assert start_of(core) == 0
    following(core, count // 2)
    assert 0 < start_of(core) <= count // 2
    assert core.topic().depth == 0
    following(core, count)
    assert start_of(core) > count // 2


def test_one_that_retains_nothing_changes_nothing_for_others(core: Core) -> None:
    following(core, retain=False)
    bodies = core.fill("t", 6)
    # It is no channel: the first one gets all that is stored.
    assert start_of(core) == 0
    assert core.topic().depth == len(bodies)
    following(core, len(bodies), retain=False)
    assert start_of(core) == 0
    core.stop()
    client = core.client("t").ready(1 << 20)
    assert client.bodies == bodies
    following(core, 3, retain=False)
    client.finish()
    assert start_of(core) > 3
    assert core.channel("t", "spark").depth == len(bodies) - 3
    # A restart finds nothing missing.
    core.stop()
    assert core.lost == []
    channel = core.channel("t", "spark")
    assert (channel.cursor.next, channel.dropped_count) == (3, 0)
    # Its end counts for no channel: messages for the first channel still wait.
    core.broker.delete_channel(core.topic(), "c")
    core.publish("t", b"new")
    core.broker.delete_channel(core.topic(), "spark")
    assert core.client("t").ready(10).bodies == [b"new"]


def test_a_follower_may_begin_and_end_to_retain(core: Core) -> None:
    client = core.client("t").ready(1 << 20)
    following(core, retain=False)
    core.fill("t", 3)
    following(core, 0, retain=True)
    client.finish()
    assert start_of(core) == 0
    following(core, 0, retain=False)
    first = start_of(core)
    assert first > 0
    # Set to a dropped offset, it is at the first stored one.
    assert following(core, 1, retain=True).cursor.next == first


def test_deferred_messages_are_read_where_they_stand(core: Core) -> None:
    following(core)
    core.publish("t", b"later", delay_ns=SECOND_NS)
    core.publish("t", b"now")
    assert core.channel("t", "spark").depth == 2
    core.stop()
    assert core.channel("t", "spark").depth == 2
    core.wait(2 * SECOND_NS)
    channel = following(core, 1)
    assert (channel.depth, channel.deferred_count) == (1, 0)
    assert core.topic().queue.end_offset == 2


def test_new_queues_are_followed_from_their_start(core: Core) -> None:
    core.publish("t", b"1")
    following(core, 1)
    core.broker.set_queues("t", 3)
    core.topic().at_queues[2].stage([b"2", b"3"])
    core.broker.commit()
    assert core.channel("t", "spark").all_queues.depth == 2
    follow(core.topic(), "spark", {1: 0, 2: 2}, retain=True)
    core.stop()
    assert core.channel("t", "spark").all_queues.depth == 0


def test_channels_and_groups_do_not_become_followers_nor_the_reverse(core: Core) -> None:
    core.channel("t", "c")
    begin_group(core.broker.topic("t"), "g", "first", 0, 0, {})
    topic = core.topic()
    for name, error_text in (("c", "a channel for consumers"), ("g", "a group with members")):
        with pytest.raises(Conflict, match=f"{name!r} of topic 't' is {error_text}"):
            follow(topic, name, {}, retain=True)
        with pytest.raises(BadPolicy, match="cannot become a follower"):
            topic.configure_channel(name, ChannelPolicy(kind="follower"))
        with pytest.raises(BadPolicy, match="is no follower"):
            topic.configure_channel(
                name, ChannelPolicy(kind=topic.channels[name].policy.kind, retain="off")
            )
    following(core)
    with pytest.raises(BadPolicy, match="is a follower and cannot become a group"):
        begin_group(topic, "spark", "last", 0, 0, {})
    with pytest.raises(Conflict):
        core.client("t", "spark")
    with pytest.raises(BadPolicy, match="ephemeral"):
        follow(topic, "f#ephemeral", {}, retain=True)
