"""Ordering by queue, with a client that gets several messages at once and handles them in order."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.core import SECOND_NS, Client, Core
from tests.unit.broker.test_queues import Client as ManyQueuesClient

from martlet.broker.errors import NotInFlight
from martlet.broker.retry import Cause, DeadLetterReason

TIMEOUT_NS = 10 * SECOND_NS


def _core(**policy: Any) -> Core:
    """A core with ten messages in a topic whose channel is ordered by queue."""
    core = Core()
    core.configure(order="queue", **policy)
    core.publish("t", *(b"%d" % number for number in range(10)))
    return core


def _client(core: Core, ready: int = 5, *, in_order: bool = True) -> Client:
    client = core.client("t", timeout_ns=TIMEOUT_NS, says_started=in_order)
    client.consumer.progress.in_order = in_order
    return client.ready(ready)


def _numbers(client: Client) -> list[int]:
    return [int(body) for body in client.bodies]


@pytest.fixture
def core() -> Core:
    return _core()


def test_several_are_sent_at_once_and_more_as_they_are_finished(core: Core) -> None:
    client, other = _client(core), _client(core)
    assert _numbers(client) == [0, 1, 2, 3, 4]
    client.finish(0, 1)
    assert _numbers(client) == [0, 1, 2, 3, 4, 5, 6]
    assert not other.got
    client.leave()
    assert _numbers(other) == [2, 3, 4, 5, 6]
    assert [got.attempts for got in other.got] == [2, 1, 1, 1, 1]


def test_the_lock_stays_with_its_consumer_when_the_topic_gets_more_queues(core: Core) -> None:
    core.channel("t").advance(10)
    client, other = (_client(core, 1, in_order=False) for _ in range(2))
    core.publish("t", b"10")
    core.publish("t", b"11")
    client.finish(0, 1)
    core.broker.set_queues("t", 2)
    core.topic().at_queue(0).stage([b"12"])
    core.broker.commit()
    assert (_numbers(client), other.got) == ([10, 11, 12], [])


def test_an_nsq_client_gets_one_at_a_time(core: Core) -> None:
    client = _client(core, in_order=False)
    assert _numbers(client) == [0]
    client.finish(0)
    assert _numbers(client) == [0, 1]


def test_behind_a_failed_message_all_are_taken_back_and_wait_for_it(core: Core) -> None:
    client = _client(core)
    client.finish(0)
    assert not client.recalls
    client.requeue(1, SECOND_NS)
    assert client.recalls == [0]
    assert client.consumer.in_flight_count == 0
    client.got.clear()
    core.wait(SECOND_NS)
    assert [(got.body, got.attempts) for got in client.got] == [(b"1", 2)]
    client.finish(0)
    assert [(got.body, got.attempts) for got in client.got[1:]] == [
        (b"2", 1),
        (b"3", 1),
        (b"4", 1),
        (b"5", 1),
    ]
    client.finish(1, 2, 3, 4)
    assert _numbers(client)[5:] == [6, 7, 8, 9]


@pytest.mark.parametrize("how", ["give back", "reject", "late"])
def test_whatever_ends_a_message_without_a_finish_takes_back_those_behind(
    core: Core, how: str
) -> None:
    client = _client(core)
    offset = client.offset(0)
    if how == "give back":
        client.channel.give_back(client.consumer, [offset])
    elif how == "reject":
        client.channel.reject(client.consumer, offset, DeadLetterReason.REJECTED)
        assert len(client.got) == 5  # The others wait until it is stored as a dead letter.
        core.broker.run()
    else:
        client.finish(0)
        with pytest.raises(NotInFlight):
            client.channel.requeue(client.consumer, offset, 0, cause=Cause.REQUEUED)
    assert client.recalls == [0]
    assert _numbers(client)[5 + (how == "late") :][:1] == [0 if how == "give back" else 1]


def test_only_the_first_times_out_and_the_time_of_the_next_begins_when_it_is_finished() -> None:
    core = _core(max_attempts=5)
    client = _client(core)
    for number in range(3):
        core.wait(TIMEOUT_NS - 1)
        assert _numbers(client) == list(range(5 + number))
        client.channel.started(client.consumer, client.offset(number))
        client.finish(number)
    client.channel.started(client.consumer, client.offset(3))
    client.got.clear()
    core.wait(TIMEOUT_NS)
    assert client.recalls == [0]
    core.wait(60 * SECOND_NS)
    assert [(got.body, got.attempts) for got in client.got] == [(b"3", 2)]
    pending = core.channel("t").cursor.pending.by_offset
    assert {
        offset: (message.attempts, message.failures) for offset, message in pending.items()
    } == {
        3: (2, 1),
        **dict.fromkeys(range(4, 8), (0, 0)),
    }


def test_a_touched_message_lets_those_behind_it_wait_longer_too(core: Core) -> None:
    client = _client(core)
    for _ in range(4):
        core.wait(TIMEOUT_NS * 3 // 4)
        client.touch(0)
    assert (_numbers(client), client.recalls) == ([0, 1, 2, 3, 4], [])
    client.finish(0)
    core.wait(TIMEOUT_NS - 1)
    assert not client.recalls
    core.wait(1)
    assert client.recalls == [0]


def test_only_the_first_of_a_lost_client_has_failed() -> None:
    core = _core(max_attempts=5)
    client = _client(core)
    client.channel.started(client.consumer, client.offset(0))
    client.finish(0)
    client.channel.started(client.consumer, client.offset(1))
    client.leave()
    pending = core.channel("t").cursor.pending.by_offset
    assert [
        (offset, message.attempts, message.failures) for offset, message in pending.items()
    ] == [
        (1, 1, 1),
        *[(offset, 0, 0) for offset in range(2, 6)],
    ]


def test_a_message_that_waits_for_a_handler_has_not_failed_though_a_later_one_has_begun() -> None:
    core = Core()
    core.broker.set_queues("t", 2)
    topic = core.topic()
    core.configure(order="queue", max_attempts=1)
    client = ManyQueuesClient(core, timeout_ns=TIMEOUT_NS)
    client.consumer.progress.says_started = client.consumer.progress.in_order = True
    for queue in range(2):
        topic.at_queue(queue).stage([b"%d" % queue] * 2, 0)
    core.broker.commit()
    client.ready(4)
    client.channel.started(client.consumer, client.position(client.got[0]))
    client.channel.started(client.consumer, client.position(client.got[2]))
    client.finish(client.got[0])
    core.wait(TIMEOUT_NS)
    core.wait(TIMEOUT_NS)
    assert [part.channels["c"].dead_letter_count for part in topic.at_queues] == [0, 1]


def test_a_rewind_takes_back_what_was_sent(core: Core) -> None:
    client = _client(core)
    client.finish(0)
    client.got.clear()
    core.channel("t").go_back(0)
    core.channel("t").resume_delivery()
    assert client.recalls == [0]
    assert _numbers(client) == [0, 1, 2, 3, 4]


def test_a_deferred_message_comes_at_its_time_beside_the_others(core: Core) -> None:
    core.publish("t", b"10", delay_ns=SECOND_NS)
    client = _client(core)
    client.ready(6)
    client.finish(0)
    core.wait(SECOND_NS)
    client.finish(1)
    assert _numbers(client) == [0, 1, 2, 3, 4, 5, 6, 10]


def test_queues_share_the_ready_count() -> None:
    core = Core()
    core.broker.set_queues("t", 3)
    topic = core.topic()
    core.configure(order="queue")
    client = ManyQueuesClient(core)
    client.consumer.progress.in_order = True
    for queue in range(3):
        topic.at_queue(queue).stage([b"%d" % queue] * 10, 0)
    core.broker.commit()
    client.ready(7)
    assert sorted(client.bodies) == [b"0", b"0", b"1", b"1", b"2", b"2"]
