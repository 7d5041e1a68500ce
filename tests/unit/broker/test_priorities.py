"""Priorities: a channel delivers higher ones first, and starves none."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import groupby
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.unit.broker.core import SECOND_NS, Core
from tests.unit.broker.test_queues import Client

from martlet.broker.broker import BrokerCore
from martlet.broker.channel.priority_turns import MAX_PASSED, TURN
from martlet.broker.errors import QueuesRefused
from martlet.broker.queue.queue_log import MAX_QUEUES
from martlet.broker.topic.rewind import replay
from martlet.properties.model import Properties

if TYPE_CHECKING:
    from _typeshed import TraceFunction


def publish(broker: BrokerCore, priority: int, *bodies: bytes, due_ns: int = 0) -> None:
    part = broker.queue_of_priority(broker.topic("t"), priority)
    assert part.stage(list(bodies), due_ns).error is None
    broker.commit()


def numbered(priority: int, count: int) -> list[bytes]:
    return [b"%d-%05d" % (priority, number) for number in range(count)]


def drain(client: Client, count: int) -> list[bytes]:
    """Finish messages one by one, until the client has got that many."""
    seen: list[bytes] = []
    while client.got and len(seen) < count:
        message = client.got.pop(0)
        seen.append(message.body)
        client.finish(message)
    return seen


def test_a_topic_of_one_priority_has_one_queue(core: Core) -> None:
    publish(core.broker, 4, b"normal")
    assert not core.topic().several
    assert Client(core).ready(1).bodies == [b"normal"]


@pytest.mark.parametrize("ready", [1, 7, 2500])
def test_no_priority_starves(core: Core, ready: int) -> None:
    for priority in (0, 4, 9):
        publish(core.broker, priority, *numbered(priority, 3 * MAX_PASSED))
    client = Client(core).ready(ready)
    seen = drain(client, 2 * MAX_PASSED)
    counts = Counter(body[:1] for body in seen)
    assert counts[b"9"] >= 0.97 * len(seen)
    assert TURN <= counts[b"4"] <= 2 * TURN
    assert TURN <= counts[b"0"] <= 2 * TURN
    for priority in (0, 4, 9):
        mine = [body for body in seen if body.startswith(b"%d" % priority)]
        assert mine == numbered(priority, len(mine))
    assert seen.index(b"0-00000") <= MAX_PASSED + 2 * TURN


@pytest.mark.parametrize(
    ("at_once", "first", "then"), [(1, (500, 1), (100, 1)), (100, *2 * [(500, 5)])]
)
def test_a_turn_is_as_long_as_there_is_capacity_and_puts_off_the_next_one(
    at_once: int, first: tuple[int, int], then: tuple[int, int]
) -> None:
    core = Core(segment_bytes=1 << 20)
    for priority in (4, 9):
        publish(core.broker, priority, *numbered(priority, 3 * MAX_PASSED))
    client = Client(core).ready(100)
    seen = b""
    while len(seen) < 1200:
        later, client.got = client.got[at_once:], client.got[:at_once]
        seen += b"".join(got.body[:1] for got in client.got)
        positions = [client.position(got) for got in client.got]
        client.got = later
        client.channel.finish_run(client.consumer, np.array(positions, np.int64))
    lengths = [len(list(run)) for _, run in groupby(seen)]
    assert [*zip(lengths[::2], lengths[1::2], strict=False)][:3] == [first, then, then][
        : len(lengths) // 2
    ]


def test_a_priority_that_was_empty_has_no_turns_to_catch_up(core: Core) -> None:
    publish(core.broker, 0, b"first")
    client = Client(core).ready(1)
    client.finish(client.got.pop())
    publish(core.broker, 9, *numbered(9, 3 * MAX_PASSED))
    assert len(drain(client, 3 * MAX_PASSED)) == 3 * MAX_PASSED
    publish(core.broker, 9, *numbered(9, 10))
    publish(core.broker, 0, *numbered(0, 10))
    assert drain(client, 20) == [*numbered(9, 10), *numbered(0, 10)]


def test_messages_that_come_again_keep_their_priority(core: Core) -> None:
    publish(core.broker, 9, b"urgent")
    publish(core.broker, 0, *numbered(0, 5))
    client = Client(core).ready(1)
    (first,) = client.got
    assert first.body == b"urgent"
    client.got.clear()
    client.channel.requeue(client.consumer, client.position(first), SECOND_NS)
    assert [got.body for got in client.got] == [b"0-00000"]
    core.wait(SECOND_NS)
    seen = drain(client, 3)
    assert b"urgent" in seen[:2]


def test_a_consumer_that_is_there_first_gets_priorities_that_come_later(core: Core) -> None:
    publish(core.broker, 4, b"a")
    client = Client(core).ready(1)
    other = Client(core).ready(1)
    publish(core.broker, 4, b"b", b"c")
    publish(core.broker, 9, b"urgent")
    assert (client.bodies, other.bodies) == ([b"a"], [b"b"])
    client.finish(client.got.pop())
    assert client.bodies == [b"urgent"]


def test_several_consumers_get_each_message_once(core: Core) -> None:
    for priority in (2, 4, 7):
        publish(core.broker, priority, *numbered(priority, 300))
    clients = [Client(core).ready(ready) for ready in (1, 3, 50)]
    seen: list[bytes] = []
    while any(client.got for client in clients):
        for client in clients:
            seen += drain(client, 5)
    assert sorted(seen) == sorted(numbered(2, 300) + numbered(4, 300) + numbered(7, 300))
    assert core.topic().channels["c"].all_queues.depth == 0


def test_deferred_messages_keep_their_priority(core: Core) -> None:
    now_ns = core.broker.clock()
    client = Client(core).ready(1)
    publish(core.broker, 4, *numbered(4, 5))
    publish(core.broker, 9, b"later", due_ns=now_ns + SECOND_NS)
    assert client.bodies == [b"4-00000"]
    core.wait(SECOND_NS)
    client.finish(client.got.pop())
    assert client.bodies == [b"later"]


def test_a_filter_that_wants_nothing_of_a_priority_does_not_hold_up_others(core: Core) -> None:
    publish(core.broker, 9, *numbered(9, 50))
    publish(core.broker, 4, b"plain")
    core.topic().channel("c")
    publish(core.broker, 4, b"last")
    core.configure(tags=["red"])
    client = Client(core).ready(1)
    assert not client.got
    assert core.topic().channels["c"].all_queues.in_flight_count == 0


def test_priorities_beside_several_queues(core: Core) -> None:
    core.broker.set_queues("t", 3)
    topic = core.topic()
    publish(core.broker, 9, b"urgent")
    core.broker.set_queues("t", 4)
    assert [part.queue.priority for part in topic.at_queues] == [4, 4, 4, 9, 4]
    assert {topic.queue_for_key(b"%d" % n).number for n in range(100)} == {0, 1, 2, 4}
    assert {topic.next_queue().number for _ in range(1)} <= {0, 1, 2, 4}
    with pytest.raises(QueuesRefused, match="has 4 queues and cannot have 2"):
        core.broker.set_queues("t", 2)


def test_a_topic_with_all_queues_has_no_room_for_a_priority(core: Core) -> None:
    core.broker.set_queues("t", MAX_QUEUES)
    with pytest.raises(QueuesRefused, match=r"has 1024 queues, and cannot have 1 more: .*1024"):
        publish(core.broker, 9, b"urgent")


def test_priorities_survive_a_restart(core: Core) -> None:
    core.broker.topic("t").channel("c")
    for priority in (0, 9, 4):
        publish(core.broker, priority, *numbered(priority, 10))
    core.kill(journaled=True)
    assert sorted(core.topic().by_priority) == [0, 9]
    assert drain(Client(core).ready(1), 30) == [
        *numbered(9, 10),
        *numbered(4, 10),
        *numbered(0, 10),
    ]


def test_all_priorities_unpaused_at_once_deliver_the_highest_first(core: Core) -> None:
    for priority in (4, 9, 0):
        publish(core.broker, priority, *numbered(priority, 2))
    topic = core.topic()
    client = Client(core)
    topic.pause_channel("c", True)
    client.ready(1)
    topic.pause_channel("c", False)
    assert client.bodies == [b"9-00000"]
    topic.set_paused(True)
    for priority in (4, 9):
        publish(core.broker, priority, b"later %d" % priority)
    assert len(drain(client, 6)) == 6
    assert not client.got
    topic.set_paused(False)
    assert client.bodies == [b"later 9"]


def test_a_channel_set_back_delivers_deferred_messages_of_all_priorities_again(core: Core) -> None:
    publish(core.broker, 9, b"urgent")
    publish(core.broker, 4, b"first")
    publish(core.broker, 4, b"deferred", due_ns=core.clock.now_ns + 5 * SECOND_NS)
    publish(core.broker, 4, b"last")
    client = Client(core).ready(2)
    client.finish(client.got.pop(0))
    client.got.clear()  # What it had in flight waits again too.
    replay(core.topic(), "c", {0: 0, 1: 0})
    assert client.channel.deferred_count == 1
    client.channel.set_ready(client.consumer, 10)
    assert sorted(client.bodies) == [b"first", b"last", b"urgent"]
    assert client.channel.depth == 0
    core.wait(5 * SECOND_NS)
    assert client.bodies[3:] == [b"deferred"]


def test_a_client_that_takes_no_more_amid_a_delivery_gets_no_lower_priority() -> None:
    class Full(Client):
        def send_messages(self, frames: Any) -> None:
            super().send_messages(frames)
            self.consumer.ready_count = 0

    core = Core()
    for priority in (4, 9, 0):
        publish(core.broker, priority, *numbered(priority, 2))
    client = Full(core).ready(100)
    assert client.bodies == numbered(9, 2)
    client.ready(100)
    assert client.bodies == numbered(9, 2) + numbered(4, 2)


def test_what_a_consumer_held_when_it_left_goes_to_others_by_priority(core: Core) -> None:
    for priority in (4, 9):
        publish(core.broker, priority, b"%d" % priority)
    first = Client(core).ready(2)
    second = Client(core).ready(1)
    assert (first.bodies, second.bodies) == ([b"9", b"4"], [])
    first.leave()
    assert second.bodies == [b"9"]


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of Python a call runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> TraceFunction:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("priority", [9, 4])
def test_the_work_for_an_answer_does_not_grow_with_the_queues(priority: int) -> None:
    counts = []
    for queues in (2, 64, 1000):
        core = Core(segment_bytes=1 << 20)
        core.broker.set_queues("t", queues)
        publish(core.broker, 9, b"first")
        client = Client(core).ready(1)
        client.finish(client.got.pop())
        count = 0
        publish(core.broker, priority, *numbered(priority, 5))
        for _ in range(5):
            client.got, (got,) = [], client.got
            count += lines_run(partial(client.finish, got))
        assert not client.got
        for part in core.topic().at_queues:
            part.stage([b"one in each"])
        core.broker.commit()
        drain(client, queues // 2)
        count += lines_run(partial(client.finish, client.got.pop()))
        counts.append(count)
    assert max(counts) <= 1.1 * min(counts)


def test_a_timed_out_message_comes_again_before_lower_ones(core: Core) -> None:
    publish(core.broker, 9, b"urgent")
    client = Client(core).ready(2)
    core.wait(SECOND_NS)
    publish(core.broker, 4, *numbered(4, 3))
    assert client.bodies == [b"urgent", b"4-00000"]
    core.wait(59 * SECOND_NS)
    assert client.bodies == [b"urgent", b"4-00000", b"urgent"]


def test_a_key_that_a_deletion_frees_comes_before_lower_priorities(core: Core) -> None:
    core.configure(order="key")
    topic = core.topic()
    urgent = core.broker.queue_of_priority(topic, 9)
    key = Properties(order_key="k").pack()
    urgent.stage([b"first", b"second"], 0, [(0, key), (1, key)])
    core.broker.commit()
    client = Client(core).ready(2)
    publish(core.broker, 4, *numbered(4, 3))
    assert client.ready(3).bodies == [b"first", *numbered(4, 2)]
    urgent.channels["c"].drop_ranges([(0, 1)])
    for part in topic.at_queues:
        part.resume_delivery()
    assert client.bodies[3:] == [b"second"]


def test_messages_that_time_out_together_come_again_by_priority(core: Core) -> None:
    client = Client(core).ready(10)
    publish(core.broker, 9, b"early")
    client.finish(client.got.pop())  # The alarm of this queue stays, and rings first.
    core.wait(SECOND_NS)
    for priority in (4, 9, 0):
        publish(core.broker, priority, *numbered(priority, 2))
    assert len(client.got) == 6
    core.wait(59 * SECOND_NS)
    core.wait(SECOND_NS)
    assert client.bodies[6:] == [*numbered(9, 2), *numbered(4, 2), *numbered(0, 2)]


def test_messages_that_timed_out_while_the_broker_was_busy_come_again_by_priority() -> None:
    core = Core()
    client = Client(core).ready(10)
    for priority in (0, 4, 9):
        publish(core.broker, priority, *numbered(priority, 2))
        core.clock.advance(1000)
    core.wait(60 * SECOND_NS)
    assert client.bodies[6:] == [*numbered(9, 2), *numbered(4, 2), *numbered(0, 2)]


def test_deferred_messages_that_are_due_together_come_by_priority(core: Core) -> None:
    due_ns = core.clock.now_ns + SECOND_NS
    for priority in (0, 4, 9):
        publish(core.broker, priority, *numbered(priority, 2), due_ns=due_ns)
    client = Client(core).ready(10)
    core.wait(SECOND_NS)
    assert client.bodies == [*numbered(9, 2), *numbered(4, 2), *numbered(0, 2)]
