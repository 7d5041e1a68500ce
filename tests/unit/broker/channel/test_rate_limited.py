"""Channels with a limited rate."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.unit.broker.core import SECOND_NS, Client, Core
from tests.unit.broker.test_queues import Client as WholeClient

from martlet.broker.policy import BadPolicy

MILLISECOND_NS = SECOND_NS // 1000


def rising(client: Client) -> list[int]:
    return [int(body) for body in client.bodies]


def test_a_channel_delivers_a_burst_and_then_its_rate(core: Core) -> None:
    client = core.client("t").ready(1000)
    core.configure("t", rate_per_s=10, rate_burst=3)
    core.publish("t", *[b"%d" % n for n in range(50)])
    assert rising(client) == [0, 1, 2]
    for count in range(4, 10):
        core.wait(99 * MILLISECOND_NS)
        assert len(client.got) == count - 1
        core.wait(MILLISECOND_NS)
        assert len(client.got) == count
    assert client.channel.depth == 50 - 9


def test_finished_messages_bring_no_more_than_the_rate(core: Core) -> None:
    client = core.client("t").ready(5)
    core.configure("t", rate_per_s=10, rate_burst=1)
    core.publish("t", *[b"%d" % n for n in range(50)])
    for count in range(1, 5):
        assert len(client.got) == count
        client.finish(count - 1)
        assert len(client.got) == count
        core.wait(100 * MILLISECOND_NS)


def test_single_messages_are_limited_too(core: Core) -> None:
    client = core.client("t").ready(1000)
    core.configure("t", rate_per_s=10, rate_burst=2)
    for n in range(5):
        core.publish("t", b"%d" % n)
    assert rising(client) == [0, 1]
    core.wait(SECOND_NS)
    core.wait(SECOND_NS)
    assert rising(client) == [0, 1, 2, 3, 4]


def test_redeliveries_count(core: Core) -> None:
    client = core.client("t").ready(10)
    core.configure("t", rate_per_s=10, rate_burst=2)
    core.publish("t", b"0", b"1", b"2")
    client.requeue(0)
    assert rising(client) == [0, 1]
    core.wait(100 * MILLISECOND_NS)
    core.wait(100 * MILLISECOND_NS)
    assert sorted(rising(client)) == [0, 0, 1, 2]


def test_consumers_share_the_rate(core: Core) -> None:
    clients = [core.client("t").ready(100) for _ in range(2)]
    core.configure("t", rate_per_s=100, rate_burst=10)
    core.publish("t", *[b"%d" % n for n in range(500)])
    for _ in range(100):
        core.wait(10 * MILLISECOND_NS)
    counts = [len(client.got) for client in clients]
    assert sum(counts) == 110
    assert max(counts) - min(counts) <= 10


@pytest.mark.parametrize("order", ["key", "queue"])
def test_an_ordered_channel_is_limited(core: Core, order: str) -> None:
    client = core.client("t").ready(100)
    core.configure("t", rate_per_s=10, rate_burst=1, order=order)
    core.publish("t", *[b"%d" % n for n in range(5)])
    for count in range(1, 6):
        assert rising(client) == list(range(count))
        client.finish(count - 1)
        core.wait(99 * MILLISECOND_NS)
        assert len(client.got) == count
        core.wait(MILLISECOND_NS)


def test_queues_share_the_rate_and_take_turns(core: Core) -> None:
    core.broker.set_queues("t", 4)
    taker = WholeClient(core)
    core.configure("t", rate_per_s=100, rate_burst=4)
    for part in core.broker.topic("t").at_queues:
        part.stage([b"%d" % part.number] * 200)
    core.broker.commit()
    taker.ready(1000)
    for _ in range(100):
        core.wait(10 * MILLISECOND_NS)
    got = rising(taker)
    assert len(got) == 104
    counts = [got.count(number) for number in range(4)]
    assert max(counts) - min(counts) <= 4


def test_a_limited_channel_delivers_by_priority_and_starves_none(core: Core) -> None:
    topic = core.broker.topic("t")
    core.channel("t")
    parts = {4: topic}
    for priority in (9, 1):
        parts[priority] = core.broker.queue_of_priority(topic, priority)
    core.configure("t", rate_per_s=100, rate_burst=1)
    for priority, part in parts.items():
        part.stage([b"%d" % priority] * 1000)
    core.broker.commit()
    taker = WholeClient(core).ready(10_000)
    for _ in range(600):
        core.wait(10 * MILLISECOND_NS)
    counts = Counter(rising(taker))
    assert sum(counts.values()) == 601
    assert counts[9] >= 590
    assert counts[4] >= 2
    assert counts[1] >= 2


def test_the_rate_is_kept_by_a_restart(core: Core) -> None:
    client = core.client("t").ready(100)
    core.configure("t", rate_per_s=10, rate_burst=1)
    core.publish("t", *[b"%d" % n for n in range(5)])
    assert len(client.got) == 1
    core.kill()
    assert core.channel("t").policy.rate_per_s == 10
    client = core.client("t").ready(100)
    assert len(client.got) == 1
    core.wait(100 * MILLISECOND_NS)
    assert len(client.got) == 2


def test_queues_share_the_rate_after_a_restart(core: Core) -> None:
    core.broker.set_queues("t", 3)
    core.channel("t")
    core.configure("t", rate_per_s=10)
    core.stop()
    parts = core.channel("t").at_queues
    assert len(parts) == 3
    assert len({part.delivery.rate_limit for part in parts}) == 1
    core.broker.set_queues("t", 5)
    assert {part.delivery.rate_limit for part in core.channel("t").at_queues} == {
        parts[0].delivery.rate_limit
    }


def test_the_rate_changes_at_once(core: Core) -> None:
    client = core.client("t").ready(100)
    core.configure("t", rate_per_s=1, rate_burst=1)
    core.publish("t", *[b"%d" % n for n in range(50)])
    assert len(client.got) == 1
    core.configure("t", rate_per_s=10, rate_burst=5)
    assert len(client.got) == 6
    core.configure("t", rate_per_s=None, rate_burst=None)
    assert len(client.got) == 50
    core.publish("t", b"50")
    assert len(client.got) == 51


def test_a_limit_keeps_no_alarm_where_nothing_waits(core: Core) -> None:
    client = core.client("t").ready(100)
    core.configure("t", rate_per_s=10, rate_burst=1)
    core.publish("t", b"0", b"1")
    core.wait(100 * MILLISECOND_NS)
    client.finish()
    core.wait(SECOND_NS)
    idle_until_ns = core.broker.schedule.next_ns()
    assert idle_until_ns is None or idle_until_ns >= core.clock.now_ns + SECOND_NS


def test_a_paused_or_deleted_channel_stays_silent(core: Core) -> None:
    client = core.client("t").ready(100)
    core.configure("t", rate_per_s=10, rate_burst=1)
    core.publish("t", b"0", b"1", b"2")
    core.broker.topic("t").pause_channel("c", True)
    core.wait(SECOND_NS)
    assert len(client.got) == 1
    core.broker.topic("t").pause_channel("c", False)
    assert len(client.got) == 2
    core.broker.delete_channel(core.broker.topic("t"), "c")
    core.wait(SECOND_NS)
    assert len(client.got) == 2


def test_bad_rates_are_refused(core: Core) -> None:
    core.channel("t")
    with pytest.raises(BadPolicy, match="rate_per_s must be a whole number from 0 to"):
        core.configure("t", rate_per_s=-1)
    with pytest.raises(BadPolicy, match="rate_burst must be a whole number"):
        core.configure("t", rate_burst=0.5)
    with pytest.raises(BadPolicy, match="is a group, whose members fetch at their own pace"):
        core.configure("t", kind="offsets", rate_per_s=5)
