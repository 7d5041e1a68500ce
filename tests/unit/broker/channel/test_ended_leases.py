"""Messages whose consumer answers after its lease, and leases of a length of their own."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.core import SECOND_NS, Client, Core

from martlet.broker.errors import NotInFlight


def test_a_message_may_be_finished_after_its_lease_until_it_is_delivered_again(core: Core) -> None:
    client = core.client("t", timeout_ns=SECOND_NS).ready(2)
    core.publish("t", b"a", b"b")
    client.ready(0)
    core.wait(2 * SECOND_NS)
    client.channel.finish_ended(client.offset(0), 1)
    other = core.client("t", timeout_ns=SECOND_NS).ready(5)
    assert other.bodies == [b"b"]
    with pytest.raises(NotInFlight, match="delivered again"):
        client.channel.finish_ended(client.offset(1), 1)
    other.ready(0)
    other.requeue(0, 3600 * SECOND_NS)
    with pytest.raises(NotInFlight, match="delivered again"):
        client.channel.finish_ended(client.offset(1), 1)
    client.channel.finish_ended(client.offset(1), 2)
    with pytest.raises(NotInFlight, match="finished already"):
        client.channel.finish_ended(client.offset(1), 2)
    assert client.channel.depth == client.channel.deferred_count == 0
    assert client.channel.finishes.count == 2


def test_a_message_in_flight_or_not_yet_delivered_is_not_finished_for_another(core: Core) -> None:
    client = core.client("t").ready(1)
    core.publish("t", b"a", b"b")
    with pytest.raises(NotInFlight, match="delivered again"):
        client.channel.finish_ended(client.offset(0), 9)
    with pytest.raises(NotInFlight, match="set back"):
        client.channel.finish_ended(client.offset(0) + 1, 9)
    client.finish(0)
    assert client.bodies == [b"a", b"b"]


def test_the_attempts_before_a_kill_are_known_after_it_once_the_cursor_is_written() -> None:
    core = Core()
    client = core.client("t", timeout_ns=SECOND_NS).ready(1)
    core.publish("t", b"a")
    client.requeue(0)
    assert [message.attempts for message in client.got] == [1, 2]
    core.broker.moved.write_first(client.channel)
    assert not client.channel.dirty
    core.broker.moved.write_first(client.channel)
    core.kill()
    channel = core.channel("t")
    with pytest.raises(NotInFlight, match="delivered again"):
        channel.finish_ended(0, 1)
    channel.finish_ended(0, 2)
    assert channel.depth == 0


def test_the_written_cursor_is_that_of_the_channel_whatever_else_has_moved(core: Core) -> None:
    clients = [core.client("t", f"c{number}").ready(1) for number in range(40)]
    core.publish("t", b"a")
    last = clients[-1]
    last.finish(0)
    core.broker.moved.write_first(last.channel)
    assert len(core.broker.moved_channels) == 39
    core.kill()
    assert [core.channel("t", f"c{number}").depth for number in (0, 39)] == [1, 0]


@pytest.mark.parametrize("queues", [1, 3])
def test_a_touch_may_give_another_time_up_to_the_maximum(queues: int) -> None:
    core = Core(max_timeout_ns=10 * SECOND_NS)
    core.broker.set_queues("t", queues)
    channel: Any = core.channel("t").all_queues
    client = Client(channel, SECOND_NS)
    consumer: Any = client.ready(1).consumer
    core.publish("t", b"a")
    offset = channel.queue.offset_of(client.got[0].id)
    now_ns = core.clock()
    assert channel.touch(consumer, offset, 5 * SECOND_NS) == now_ns + 5 * SECOND_NS
    core.wait(4 * SECOND_NS)
    assert channel.in_flight_count == 1
    assert channel.touch(consumer, offset) == core.clock() + SECOND_NS
    assert channel.touch(consumer, offset, 60 * SECOND_NS) == now_ns + 10 * SECOND_NS
    client.ready(0)
    core.wait(6 * SECOND_NS)
    assert channel.in_flight_count == 0
    channel.finish_ended(offset, 1)
    assert channel.depth == 0
