"""Messages that fail: when they come again, and when they become dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from tests.unit.broker.core import SECOND_NS, Client, Core

from martlet.broker.dead_letters.dead_letter import CHANNEL, MAX_MOVES, default_name
from martlet.broker.dead_letters.redrive import letters, redrive
from martlet.broker.policy import BadPolicy, ChannelPolicy
from martlet.broker.retry import DELAY_LEVELS_MS, Cause, DeadLetterReason, RetryPolicy
from martlet.names import is_valid_name
from martlet.properties.model import Properties

MINUTE_NS = 60 * SECOND_NS


def test_the_delays_of_rocketmq_are_the_default() -> None:
    assert DELAY_LEVELS_MS[2] == 10_000
    assert DELAY_LEVELS_MS[17] == 2 * 3600 * 1000
    retry = RetryPolicy.of(ChannelPolicy(max_attempts=16))
    assert retry is not None
    delays = [retry.delay_ns(attempts, Cause.REQUEUED, 0) // SECOND_NS for attempts in range(1, 19)]
    minutes = [60 * minute for minute in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)]
    assert delays == [10, 30, *minutes, 7200, 7200]
    assert not retry.is_over(15)
    assert retry.is_over(16)


@pytest.mark.parametrize(
    ("policy", "max_count"),
    [
        ({}, None),
        ({"retry_delays_ms": [1]}, 16),
        ({"dead_letter_topic": "dead"}, 16),
        ({"max_attempts": 3}, 3),
        ({"max_attempts": -1}, 0),
    ],
)
def test_any_of_three_settings_switches_retries_on(
    policy: dict[str, Any], max_count: int | None
) -> None:
    retry = RetryPolicy.of(ChannelPolicy().changed(policy))
    assert (None if retry is None else retry.max_attempts) == max_count


def test_a_message_comes_again_after_the_delay_of_its_attempt_and_then_is_dead(core: Core) -> None:
    core.configure(max_attempts=3, retry_delays_ms=[1000, 5000])
    client = core.client("t").ready(1)
    core.publish("t", b"bad", b"good")
    client.requeue(0)
    assert client.bodies == [b"bad", b"good"]
    client.finish(1)
    core.wait(SECOND_NS - 1)
    assert len(client.got) == 2
    core.wait(1)
    assert client.got[2][1:] == (2, b"bad")
    client.requeue(2)
    core.wait(5 * SECOND_NS - 1)
    assert len(client.got) == 3
    core.wait(1)
    client.requeue(3)
    core.broker.run()
    core.wait(100 * MINUTE_NS)
    assert len(client.got) == 4
    channel = client.channel
    assert channel.dead_letter_count == 1
    assert channel.in_flight_count == channel.depth == channel.deferred_count == 0
    ((body, properties),) = core.dead_letters()
    assert body == b"bad"
    assert properties.system["dead_reason"] == "max_attempts"
    assert properties.system["dead_attempts"] == "3"
    assert properties.system["dead_topic"] == "t"
    assert properties.system["dead_channel"] == "c"
    assert properties.system["dead_id"] == client.got[0].id.decode()
    assert properties.system["dead_offset"] == "0"
    assert "dead_first_error" not in properties.system
    assert core.broker.topic("t.c.dead").channels[CHANNEL].depth == 1


def test_a_timeout_waits_and_counts_as_well(core: Core) -> None:
    core.configure(max_attempts=2, retry_delays_ms=[3000])
    clients = [core.client("t", timeout_ns=SECOND_NS).ready(1) for _ in range(2)]
    core.publish("t", b"1", b"2")
    core.wait(SECOND_NS)
    assert [len(client.got) for client in clients] == [1, 1]
    channel = clients[0].channel
    assert channel.deferred_count == 2
    core.wait(3 * SECOND_NS)
    assert [message.attempts for client in clients for message in client.got] == [1, 2, 1, 2]
    core.wait(SECOND_NS)
    assert channel.timeout_count == 4
    systems = [properties.system for _, properties in core.dead_letters()]
    assert [system["dead_reason"] for system in systems] == ["timeout"] * 2
    assert [system["dead_failures"] for system in systems] == ["2"] * 2
    assert [client.consumer.in_flight_count for client in clients] == [0, 0]


def test_a_consumer_that_goes_is_no_failure_at_first(core: Core) -> None:
    core.configure(max_attempts=3, retry_delays_ms=[3000])
    clients = [core.client("t").ready(1)]
    core.publish("t", b"1")
    clients[0].leave()
    clients.append(core.client("t").ready(1))
    assert clients[1].got[0].attempts == 2
    clients[1].leave()
    clients.append(core.client("t").ready(1))
    assert clients[2].got == []
    core.wait(3 * SECOND_NS)
    assert clients[2].got[0].attempts == 3
    clients[2].leave()
    core.broker.run()
    ((_, properties),) = core.dead_letters()
    assert properties.system["dead_reason"] == "disconnected"


def test_errors_of_consumers_survive_a_restart(core: Core) -> None:
    core.configure(max_attempts=3, retry_delays_ms=[0])
    client = core.client("t").ready(1)
    core.publish("t", b"1")
    for attempt, error in enumerate(["first: \N{SNOWMAN}", "second" * 1000]):
        client.channel.requeue(client.consumer, client.offset(attempt), 0, error)
    core.kill(journaled=True)
    client = core.client("t").ready(1)
    client.channel.requeue(client.consumer, client.offset(0), 0, "third")
    core.broker.run()
    core.stop()
    client = core.client("t").ready(1)
    assert client.got == []
    ((_, properties),) = core.dead_letters()
    assert properties.system["dead_first_error"] == "first: \N{SNOWMAN}"
    assert properties.system["dead_last_error"] == "third"


def test_a_rejected_message_is_dead_at_once_with_its_own_properties(core: Core) -> None:
    client = core.client("t").ready(1)
    own = Properties(tag="paid", keys=("o-17",), headers={"trace": "x" * 32_000})
    core.send("t", own, b"1")
    client.channel.reject(
        client.consumer, client.offset(0), DeadLetterReason.REJECTED, "no such account"
    )
    core.broker.run()
    ((body, properties),) = core.dead_letters()
    assert (body, properties.tag, properties.keys) == (b"1", "paid", ("o-17",))
    assert properties.headers == own.headers
    assert properties.system["dead_reason"] == "rejected"
    assert properties.system["dead_last_error"] == "no such account"


def test_where_the_disk_is_full_a_dead_letter_stays_and_is_tried_again(core: Core) -> None:
    core.configure(max_attempts=1)
    refused = []
    core.broker.transfers.on_refused = lambda *args: refused.append(args)
    client = core.client("t").ready(1)
    core.publish("t", b"bad", b"worse")
    client.requeue(0)
    core.broker.run()
    core.fill_disk()
    client.ready(0)
    client.requeue(1)
    core.broker.run()
    core.wait(6 * SECOND_NS)
    assert client.channel.dead_letter_count == 1
    assert client.channel.in_flight_count == 1
    assert len(refused) == 1
    core.storage.capacity_bytes = None
    core.broker.log.refresh_full()
    core.wait(6 * SECOND_NS)
    assert client.channel.dead_letter_count == 2
    assert [body for body, _ in core.dead_letters()] == [b"bad", b"worse"]


@pytest.mark.parametrize("act", ["empty", "delete", "replay"])
def test_operations_on_the_channel_count_while_a_letter_is_written(act: str) -> None:
    from martlet.broker.topic.rewind import replay

    core = Core()
    core.configure(max_attempts=1)
    client = core.client("t").ready(1)
    core.publish("t", b"bad")
    client.requeue(0)
    if act == "empty":
        client.channel.empty()
    elif act == "delete":
        core.broker.delete_channel(core.broker.topic("t"), "c")
    else:
        replay(core.broker.topic("t"), "c", {0: 0})
        assert [message.attempts for message in client.got] == [1, 1]
    core.broker.run()
    assert list(core.broker.topics) == ["t"]
    if act != "delete":
        assert client.channel.in_flight_count == (1 if act == "replay" else 0)


def test_dead_letter_topics_have_valid_names_of_their_own() -> None:
    pairs = [
        ("orders", "mail"),
        ("a", "b.c"),
        ("a.b", "c"),
        ("a", "b"),
        ("a", "b#ephemeral"),
        ("x" * 64, "y" * 64),
        ("x" * 64, "z" * 64),
        ("x" * 30, "y" * 28),
        ("x" * 30, "y" * 29),
    ]
    names = [default_name(*pair) for pair in pairs]
    assert names[0] == "orders.mail.dead"
    assert all(is_valid_name(name) and name.endswith(".dead") for name in names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["t", "d#ephemeral"])
def test_a_dead_letter_topic_that_loses_or_repeats_messages_is_refused(name: str) -> None:
    core = Core()
    with pytest.raises(BadPolicy, match=name):
        core.configure(dead_letter_topic=name)
    assert core.channel("t").policy == ChannelPolicy()


def test_in_order_a_dead_letter_no_longer_delays_the_next_message(core: Core) -> None:
    core.configure(max_attempts=2, retry_delays_ms=[1000], order="queue")
    client = core.client("t").ready(5)
    core.publish("t", b"bad", b"next")
    assert client.bodies == [b"bad"]
    client.requeue(0)
    assert client.bodies == [b"bad"]
    core.wait(SECOND_NS)
    assert client.bodies == [b"bad", b"bad"]
    client.requeue(1)
    core.broker.run()
    assert client.bodies == [b"bad", b"bad", b"next"]
    assert [body for body, _ in core.dead_letters()] == [b"bad"]


def test_a_channel_at_several_queues_has_one_policy_and_one_dead_letter_topic(core: Core) -> None:
    topic = core.broker.set_queues("t", 3)
    core.configure(max_attempts=1)
    core.broker.set_queues("t", 4)
    for part in topic.at_queues:
        client = Client(part.channels["c"], 60 * SECOND_NS).ready(1)
        part.stage([b"%d" % part.number])
        core.broker.commit()
        client.requeue(0)
    core.broker.run()
    letters = core.dead_letters()
    assert [body for body, _ in letters] == [b"0", b"1", b"2", b"3"]
    assert [properties.system["dead_queue"] for _, properties in letters] == ["0", "1", "2", "3"]


def test_an_error_with_one_dead_letter_delays_and_loses_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = Core()
    core.configure(max_attempts=1)
    client = core.client("t").ready(3)
    core.publish("t", b"1", b"2", b"3")
    read = client.channel.cursor.messages

    def broken(
        offsets: Sequence[int], *, with_properties: bool
    ) -> Iterator[tuple[int, memoryview | None, bytes]]:
        if 1 in offsets:
            raise RuntimeError("unforeseen")
        return read(offsets, with_properties=with_properties)

    monkeypatch.setattr(client.channel.cursor, "messages", broken)
    for number in range(3):
        client.requeue(number)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="unforeseen"):
            core.broker.run()
        assert sorted(body for body, _ in core.dead_letters()) == [b"1", b"3"]
        core.clock.advance(SECOND_NS)
    assert client.channel.in_flight_count == 1
    monkeypatch.undo()
    core.wait(SECOND_NS)
    assert sorted(body for body, _ in core.dead_letters()) == [b"1", b"2", b"3"]
    assert client.channel.in_flight_count == 0


def test_large_dead_letters_are_moved_in_batches_that_are_no_larger_than_others() -> None:
    core = Core(segment_bytes=1 << 21)
    core.configure(max_attempts=1)
    client = core.client("t").ready(100)
    bodies = [bytes([number]) * 300_000 for number in range(12)]
    for body in bodies:
        core.publish("t", body)
    core.storage.capacity_bytes = core.storage.used_bytes + 5 * core.segment_bytes
    for number in range(len(bodies)):
        client.requeue(number)
    while core.broker.transfers:
        core.wait(1000)
    assert [body for body, _ in core.dead_letters()] == bodies
    index = core.topic("t.c.dead").queue.index
    assert max(entry.length for entry in index.rows(0, 100)) < 1_500_000


def reject_all(core: Core, *topics: str) -> list[str]:
    """Have channel c of the topics reject what it gets, until nothing comes; return which did."""
    clients = {topic: core.client(topic).ready(1) for topic in topics}
    rejected: list[str] = []
    while any(client.got for client in clients.values()):
        assert len(rejected) < 100, "messages go round without end"
        for topic, client in clients.items():
            got, client.got = client.got, []
            for message in got:
                rejected.append(topic)
                offset = client.channel.queue.offset_of(message.id)
                client.channel.reject(client.consumer, offset, DeadLetterReason.REJECTED, "no")
        core.broker.run()
    for client in clients.values():
        client.channel.remove_consumer(client.consumer)
    return rejected


def kept(core: Core) -> dict[str, int]:
    """The dead letters of each topic."""
    topics = core.broker.topics.items()
    return {n: t.channels[CHANNEL].depth for n, t in topics if CHANNEL in t.channels}


@pytest.mark.parametrize("length", [2, 3, 5, MAX_MOVES, MAX_MOVES + 1, 20])
def test_a_cycle_of_dead_letter_topics_ends_in_the_default_one(core: Core, length: int) -> None:
    names = [f"ring{number}" for number in range(length)]
    for name, following in zip(names, [*names[1:], names[0]], strict=True):
        core.configure(name, dead_letter_topic=following)
    core.publish(names[0], b"bad")
    assert reject_all(core, *names) == names[: MAX_MOVES + 1]
    last = names[: MAX_MOVES + 1][-1]
    at = f"{last}.c.dead"
    ((body, properties),) = core.dead_letters(at)
    assert body == b"bad"
    assert kept(core)[at] == 1
    assert properties.system["dead_topic"] == last
    assert properties.system["dead_instead_of"] == (names * 2)[names.index(last) + 1]
    assert properties.system["dead_before"].split() == names[:MAX_MOVES][: length - 1]


def test_a_chain_of_dead_letter_topics_is_followed_to_its_end(core: Core) -> None:
    names = [f"level{number}" for number in range(MAX_MOVES)]
    for name, following in pairwise(names):
        core.configure(name, dead_letter_topic=following)
    core.publish(names[0], b"bad")
    assert reject_all(core, *names[:-1]) == names[:-1]
    ((_, properties),) = core.dead_letters(names[-1])
    assert "dead_instead_of" not in properties.system


def test_a_cycle_through_default_names_ends_too(core: Core) -> None:
    first, second = "x.c.dead", default_name("x.c.dead", "c")
    core.configure(first)
    core.configure(second, dead_letter_topic="x")
    core.configure("x")
    core.publish(first, b"bad")
    assert reject_all(core, first, second, "x") == [first, second, "x"]
    third = default_name(first, CHANNEL)
    assert kept(core) == {second: 1, "x": 1, third: 1}


def test_a_cycle_of_a_dead_letter_topics_own_channel_ends(core: Core) -> None:
    core.configure(dead_letter_topic="d")
    core.broker.topic("d")
    core.configure("d", CHANNEL, dead_letter_topic="t")
    core.publish("t", b"bad")
    assert reject_all(core, "t") == ["t"]
    client = core.client("d", CHANNEL).ready(1)
    client.channel.reject(client.consumer, 0, DeadLetterReason.REJECTED)
    core.broker.run()
    assert kept(core) == {"d": 0, "d.dead-letters.dead": 1}
    assert core.topic().message_count == 1


def test_a_cycle_that_is_closed_later_and_after_a_restart_ends(core: Core) -> None:
    core.configure("a", dead_letter_topic="b")
    core.channel("b", "c")
    core.publish("a", b"bad")
    assert reject_all(core, "a") == ["a"]
    core.kill(journaled=True)
    core.configure("b", dead_letter_topic="a")
    core.publish("b", b"new")
    assert reject_all(core, "a", "b") == ["b", "b", "a"]
    assert kept(core) == {"b": 2, "b.c.dead": 1, "a": 1, "a.c.dead": 1}


def test_a_redriven_message_follows_its_channels_policy_again(core: Core) -> None:
    core.configure("a", dead_letter_topic="b")
    core.configure("b", dead_letter_topic="a")
    core.publish("a", b"bad")
    assert reject_all(core, "a", "b") == ["a", "b"]
    ((letter,), _) = letters(core.topic("b.c.dead").channels[CHANNEL], 0, 10)
    to = core.broker.topic("a")
    redrive(core.broker.transfers, letter, lambda: to, None, lambda error: None)
    core.broker.run()
    assert reject_all(core, "a", "b") == ["a", "b"]
    assert kept(core)["b.c.dead"] == 1
