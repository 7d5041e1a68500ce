"""Consumers that are near get messages first, where that is asked for."""

from __future__ import annotations

from random import Random

import pytest
from tests.unit.broker.core import SECOND_NS, Client, Core
from tests.unit.broker.test_queues import Client as WholeClient

from martlet.broker.policy import ChannelPolicy
from martlet.broker.queue.consumer import TopologyPreference, nearness
from martlet.broker.topic.expand import grow

MINUTE_NS = 60 * SECOND_NS
ZONE, REGION, ELSEWHERE = TopologyPreference


@pytest.fixture
def core() -> Core:
    return Core(prefers_near=True)


def at(core: Core, where: TopologyPreference, timeout_ns: int = MINUTE_NS) -> Client:
    return Client(core.channel("t"), timeout_ns, nearness=where)


def publish(core: Core, count: int, *, together: bool) -> None:
    bodies = [b"%d" % number for number in range(count)]
    if together:
        core.publish("t", *bodies)
    else:
        for body in bodies:
            core.publish("t", body)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("consumes_first", [False, True])
def test_a_farther_consumer_gets_messages_beyond_the_capacity_of_nearer_ones(
    core: Core, together: bool, consumes_first: bool
) -> None:
    core.channel("t")
    if not consumes_first:
        publish(core, 12, together=together)
    far, region, near, also_near = (at(core, where) for where in (ELSEWHERE, REGION, ZONE, ZONE))
    for client in (near, also_near, region, far):
        client.ready(3)
    if consumes_first:
        publish(core, 12, together=together)
    assert [len(client.got) for client in (near, also_near, region, far)] == [3, 3, 3, 3]
    assert sorted(near.bodies + also_near.bodies) == [b"%d" % number for number in range(6)]
    assert region.bodies == [b"6", b"7", b"8"]
    assert far.bodies == [b"9", b"10", b"11"]


def test_consumers_that_are_as_near_take_turns(core: Core) -> None:
    clients = [at(core, ZONE).ready(10), at(core, ZONE).ready(10), at(core, REGION).ready(10)]
    publish(core, 10, together=False)
    assert [len(client.got) for client in clients] == [5, 5, 0]


def test_a_batch_is_shared_among_the_nearest_alone(core: Core) -> None:
    clients = [at(core, ELSEWHERE), at(core, ZONE), at(core, ZONE), at(core, ELSEWHERE)]
    for client in clients:
        client.ready(100)
    publish(core, 100, together=True)
    counts = [len(client.got) for client in clients]
    assert (counts[0], counts[1] + counts[2], counts[3]) == (0, 100, 0)
    assert min(counts[1:3]) > 30


def test_new_capacity_of_a_near_consumer_is_used_first(core: Core) -> None:
    near, far = at(core, ZONE).ready(1), at(core, ELSEWHERE).ready(1)
    publish(core, 2, together=True)
    near.finish()
    publish(core, 1, together=True)
    assert [len(near.got), len(far.got)] == [2, 1]


def test_a_message_given_back_goes_to_the_nearest_consumer_too(core: Core) -> None:
    region, far = at(core, REGION).ready(1), at(core, ELSEWHERE).ready(2)
    publish(core, 2, together=True)
    near = at(core, ZONE).ready(2)
    far.requeue(0)
    region.leave()
    assert [message.attempts for message in near.got] == [2, 2]
    assert core.channel("t").delivered_near_counts == [2, 1, 1]


def test_ordered_messages_go_to_the_nearest_consumer_first(core: Core) -> None:
    channel = core.channel("t")
    channel.configure(ChannelPolicy(order="queue"))
    far, near = at(core, ELSEWHERE).ready(1), at(core, ZONE).ready(1)
    publish(core, 1, together=True)
    assert [len(near.got), len(far.got)] == [1, 0]


def test_one_that_is_blocked_or_gone_is_passed_over(core: Core) -> None:
    near, far = at(core, ZONE).ready(10), at(core, ELSEWHERE).ready(10)
    channel = core.channel("t")
    channel.set_blocked(near.consumer, True)
    publish(core, 1, together=False)
    channel.set_blocked(near.consumer, False)
    publish(core, 1, together=False)
    near.leave()
    publish(core, 1, together=False)
    assert near.bodies[:1] == [b"0"]
    assert len(near.got) == 1
    assert len(far.got) == 3, "the first, what the other gave back, and the last"


def test_nearness_holds_at_all_queues_and_over_growth(core: Core) -> None:
    channel = core.channel("t")
    near = WholeClient(core)
    near.channel.remove_consumer(near.consumer)
    near.consumer = channel.add_consumer(near, MINUTE_NS, nearness=ZONE)
    far = WholeClient(core)
    near.ready(50)
    far.ready(50)
    grow(core.broker, core.topic(), 3)
    for _ in range(60):
        core.publish("t", b"x")
    assert [len(near.got), len(far.got)] == [50, 10]
    assert core.channel("t").all_queues.delivered_near_counts == [50, 0, 10]


def test_nothing_is_preferred_unless_asked_for() -> None:
    core = Core()
    clients = [at(core, ELSEWHERE).ready(10), at(core, ZONE).ready(10)]
    publish(core, 10, together=False)
    assert [len(client.got) for client in clients] == [5, 5]
    assert core.channel("t").delivered_near_counts == []


@pytest.mark.parametrize("seed", range(20))
def test_no_message_passes_a_nearer_consumer_with_capacity(core: Core, seed: int) -> None:
    random = Random(seed)
    clients = [at(core, random.choice((ZONE, REGION, ELSEWHERE))) for _ in range(5)]
    for _ in range(200):
        client = random.choice(clients)
        match random.randrange(4):
            case 0:
                client.ready(random.randrange(4))
            case 1 if client.got:
                client.finish()
                client.got.clear()
            case 2 if client.got:
                client.requeue(0)
                client.got.pop(0)
        before = [len(c.got) for c in clients]
        publish(core, random.choice((1, 1, 5)), together=random.random() < 0.5)
        for farther, count in zip(clients, before, strict=True):
            if len(farther.got) > count:
                assert not [
                    nearer
                    for nearer in clients
                    if nearer.consumer.nearness < farther.consumer.nearness
                    and nearer.consumer.room > 0
                ]
    assert sum(core.channel("t").delivered_near_counts) == core.channel("t").delivered_count > 0


@pytest.mark.parametrize(
    ("broker", "client", "where"),
    [
        (("z", "r"), ("z", "r"), ZONE),
        (("z", "r"), ("z", "other"), ZONE),
        (("z", "r"), ("y", "r"), REGION),
        (("z", "r"), ("y", "other"), ELSEWHERE),
        (("z", "r"), ("", ""), ELSEWHERE),
        (("", "r"), ("", "r"), REGION),
        (("", "r"), ("", ""), ELSEWHERE),
        (("", ""), ("", ""), ELSEWHERE),
    ],
)
def test_where_a_client_is(
    broker: tuple[str, str], client: tuple[str, str], where: TopologyPreference
) -> None:
    assert nearness(broker, client) is where
