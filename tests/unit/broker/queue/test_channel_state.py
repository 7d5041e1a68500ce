"""The age of the oldest waiting message of a channel."""

from __future__ import annotations

import pytest
from tests.unit.broker.core import SECOND_NS, Core

from martlet.broker.queue import channel_state


def test_the_age_is_of_the_first_message_behind_the_read_position(core: Core) -> None:
    client = core.client("t")
    channel = client.channel
    assert channel.oldest_age_ns == 0
    core.publish("t", b"one", b"two")
    core.clock.advance(3 * SECOND_NS)
    core.publish("t", b"three")
    core.clock.advance(4 * SECOND_NS)
    assert channel.oldest_age_ns == 7 * SECOND_NS
    client.ready(2)
    assert channel.oldest_age_ns == 4 * SECOND_NS, "the first two are in flight"
    client.ready(3)
    assert channel.oldest_age_ns == 0


def test_a_requeued_message_waits_since_it_was_published(core: Core) -> None:
    client = core.client("t").ready(1)
    core.publish("t", b"one")
    core.wait(10 * SECOND_NS)
    core.publish("t", b"two")
    client.ready(0)
    client.requeue(0, delay_ns=3 * SECOND_NS)
    core.wait(2 * SECOND_NS)
    assert client.channel.oldest_age_ns == 2 * SECOND_NS, "that of the second"
    core.wait(2 * SECOND_NS)
    assert client.channel.oldest_age_ns == 14 * SECOND_NS
    client.ready(2)
    assert client.channel.oldest_age_ns == 0


def test_a_deferred_message_waits_since_it_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_state, "_ROWS_AT_ONCE", 2)
    core = Core()
    channel = core.channel("t", "c")
    for number in range(5):
        core.publish("t", b"%d" % number, delay_ns=10 * SECOND_NS)
    assert channel.oldest_age_ns == 0
    core.publish("t", b"at once")
    core.wait(9 * SECOND_NS)
    assert channel.oldest_age_ns == 9 * SECOND_NS, "that behind the deferred ones"
    core.client("t").ready(1)
    assert channel.oldest_age_ns == 0
    core.wait(4 * SECOND_NS)
    assert channel.oldest_age_ns == 3 * SECOND_NS


def test_the_age_survives_a_restart_and_ends_with_an_empty(core: Core) -> None:
    core.channel("t", "c")
    core.publish("t", b"one")
    core.stop()
    core.clock.advance(SECOND_NS)
    channel = core.topic().channels["c"]
    assert channel.oldest_age_ns >= SECOND_NS
    channel.empty()
    assert channel.oldest_age_ns == 0


def test_of_several_queues_the_oldest_counts(core: Core) -> None:
    core.broker.set_queues("t", 3)
    core.channel("t", "c")
    for number in (1, 0):
        core.topic().at_queues[number].stage([b"x"], 0)
        core.broker.commit()
        core.clock.advance((number + 1) * SECOND_NS)
    channel = core.topic().channels["c"]
    assert [part.oldest_age_ns // SECOND_NS for part in channel.at_queues] == [1, 3, 0]
    assert channel.all_queues.oldest_age_ns == 3 * SECOND_NS
