"""Ordered channels: whatever is unfinished waits in order, and goes on with any consumer."""

from __future__ import annotations

import pytest
from tests.unit.broker.core import Core
from tests.unit.broker.test_queues import Client

from martlet.properties.model import Properties


def _ordered(order: str, *, with_priorities: bool) -> Core:
    """A core with a channel of two messages with one key, and a topic of one or two queues."""
    core = Core()
    core.configure(order=order)
    if with_priorities:
        core.broker.queue_of_priority(core.topic(), 9)
    assert core.send("t", Properties(order_key="k"), b"1", b"2").error is None
    return core


@pytest.mark.parametrize("with_priorities", [False, True])
def test_a_finish_of_a_consumer_that_takes_no_more_frees_the_key_for_another(
    with_priorities: bool,
) -> None:
    core = _ordered("key", with_priorities=with_priorities)
    first, second = Client(core).ready(1), Client(core).ready(1)
    assert (first.bodies, second.bodies) == ([b"1"], [])
    first.ready(0)
    first.finish(first.got[0])
    assert second.bodies == [b"2"]


@pytest.mark.parametrize("with_priorities", [False, True])
def test_a_consumer_that_leaves_with_nothing_in_flight_unlocks_the_queue(
    with_priorities: bool,
) -> None:
    core = _ordered("queue", with_priorities=with_priorities)
    first, second = Client(core).ready(1), Client(core).ready(1)
    first.ready(0)
    first.finish(first.got[0])
    assert second.bodies == []
    first.leave()
    assert second.bodies == [b"2"]


@pytest.mark.parametrize("order", ["key", "queue"])
def test_what_an_empty_dropped_comes_again_in_order(order: str) -> None:
    core = _ordered(order, with_priorities=False)
    client = Client(core).ready(10)
    emptied = core.broker.empty_channel(core.topic(), "c")
    client.got.clear()
    core.broker.restore_channel(core.topic(), "c", emptied)
    assert client.bodies == [b"1"]
    client.finish(client.got[0])
    assert client.bodies == [b"1", b"2"]


def test_messages_made_pending_wait_for_those_of_their_key() -> None:
    core = _ordered("key", with_priorities=False)
    client = Client(core).ready(1)
    core.channel("t").redelivery.make_pending(2)
    client.ready(10)
    assert client.bodies == [b"1"]
    client.finish(client.got[0])
    assert client.bodies == [b"1", b"2"]
