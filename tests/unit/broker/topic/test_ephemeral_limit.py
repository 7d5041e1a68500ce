"""Ephemeral topics and channels keep a limited number of messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.broker.core import SECOND_NS, Core

from martlet.properties.model import Properties

MAX = 100


def stalled(core: Core, name: str = "tail#ephemeral") -> None:
    core.client("t", name).ready(3)


def bodies(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.fixture
def core() -> Core:
    return Core(max_ephemeral=MAX)


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_a_stalled_ephemeral_channel_keeps_the_newest(core: Core, at_once: int) -> None:
    stalled(core)
    for first in range(0, 1000, at_once):
        core.publish("t", *bodies(first, min(1000, first + at_once)))
        assert core.channel("t", "tail#ephemeral").depth <= MAX
    channel = core.channel("t", "tail#ephemeral")
    assert channel.depth == MAX
    assert channel.in_flight_count == 3
    assert channel.dropped_count == 1000 - MAX - 3
    again = core.client("t", "tail#ephemeral").ready(1 << 20)
    assert again.bodies == bodies(1000 - MAX, 1000)


def test_a_message_by_itself_counts_too(core: Core) -> None:
    stalled(core)
    for number in range(300):
        core.broker.append(core.broker.topic("t"), b"%d" % number)
    assert core.channel("t", "tail#ephemeral").depth == MAX


def test_other_channels_lose_nothing_and_a_consumer_that_reads_loses_nothing(core: Core) -> None:
    stalled(core)
    core.channel("t", "kept")
    reader = core.client("t", "reader#ephemeral").ready(1)
    for number in range(1000):
        core.publish("t", b"%d" % number)
        reader.finish(number)
    assert reader.bodies == bodies(0, 1000)
    assert core.channel("t", "reader#ephemeral").dropped_count == 0
    assert core.channel("t", "kept").depth == 1000


def test_a_stalled_ephemeral_channel_holds_back_no_log(core: Core) -> None:
    """All of the log stayed, for as long as the one who looked had not closed his window."""
    stalled(core)
    reader = core.client("t", "reader").ready(1 << 20)
    for _ in range(60):
        core.fill("t", 2)
        reader.finish(*range(reader.consumer.finish_count, len(reader.got)))
        core.checkpoint()
    assert core.channel("t", "tail#ephemeral").in_flight_count == 3
    assert len(core.broker.log.segments) < 20


def test_requeued_and_deferred_messages_are_bounded_too(core: Core) -> None:
    client = core.client("t", "c#ephemeral").ready(MAX)
    core.publish("t", *bodies(0, MAX))
    client.ready(0)
    for number in range(MAX):
        client.requeue(number, SECOND_NS if number % 2 else 0)
    core.publish("t", *bodies(0, MAX), delay_ns=60 * SECOND_NS)
    channel = core.channel("t", "c#ephemeral")
    assert channel.deferred_count <= MAX
    core.publish("t", *bodies(MAX, MAX + 80))
    assert channel.depth <= MAX
    core.wait(2 * SECOND_NS)
    core.publish("t", b"last")
    assert channel.depth <= MAX
    before = channel.depth + channel.deferred_count + channel.dropped_count
    assert before == 2 * MAX + 81
    client.ready(1 << 20)
    assert client.got[-1].body == b"last"


@pytest.mark.parametrize("order", ["queue", "key"])
def test_a_stalled_consumer_that_wants_order_gets_no_more_than_it_is_ready_for(
    core: Core, order: str
) -> None:
    """Its messages in flight were dropped with the oldest, so it was sent ever more."""
    topic = core.broker.topic("t")
    client = core.client("t", "c#ephemeral")
    channel = core.channel("t", "c#ephemeral")
    topic.configure_channel("c#ephemeral", replace(channel.policy, order=order))
    client.ready(3)
    for number in range(1000):
        core.send("t", Properties(order_key=f"{number % 7}"), b"%d" % number)
        assert channel.depth <= MAX
    held = channel.in_flight_count
    assert len(client.got) == held <= 3
    assert channel.dropped_count == 1000 - MAX - held
    while client.consumer.in_flight_count:
        client.finish(client.consumer.finish_count)
    assert client.bodies[held:] == bodies(1000 - MAX, 1000)


@pytest.mark.parametrize("paused", [False, True])
def test_an_ephemeral_topic_keeps_the_newest(core: Core, paused: bool) -> None:
    topic = core.broker.topic("t#ephemeral")
    if paused:
        topic.channel("c")
        topic.set_paused(True)
    for number in range(1000):
        core.publish("t#ephemeral", b"%d" % number)
    assert topic.depth == MAX
    assert topic.dropped_count == 1000 - MAX
    topic.set_paused(False)
    assert core.client("t#ephemeral").ready(1 << 20).bodies == bodies(1000 - MAX, 1000)


def test_queues_share_the_bound(core: Core) -> None:
    core.broker.set_queues("t", 4)
    channel = core.channel("t", "c#ephemeral")
    for number in range(1000):
        core.broker.topic("t").at_queue(number % 4).stage([b"x"])
        core.broker.commit()
    assert channel.all_queues.depth == MAX


def test_each_queue_keeps_a_message_though_there_are_more_queues_than_messages() -> None:
    core = Core(max_ephemeral=3)
    core.broker.set_queues("t", 8)
    channel = core.channel("t", "c#ephemeral")
    core.broker.topic("t").at_queue(5).stage([b"one", b"two"])
    core.broker.commit()
    assert channel.all_queues.depth == 1


def test_no_bound_is_left_where_nothing_ephemeral_is(core: Core) -> None:
    core.channel("t", "kept")
    stalled(core)
    assert core.broker.topic("t").bounded
    core.broker.delete_channel(core.broker.topic("t"), "tail#ephemeral")
    assert not core.broker.topic("t").bounded
