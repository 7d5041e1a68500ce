"""When the server writes cursors down, and how much of its time that takes."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.core import SECOND_NS, Client, Core

from martlet.server import group_commit
from martlet.server.group_commit import MAX_BESIDE_BATCHES, REST, JournalWriter


def busy(core: Core, channels: int) -> list[Client]:
    """Channels of a topic, each with a consumer that finishes its message."""
    topic = core.broker.topic("t")
    clients = [Client(topic.channel(f"c{n}"), SECOND_NS).ready(1) for n in range(channels)]
    core.publish("t", b"x")
    for client in clients:
        client.finish()
    return clients


async def test_the_loop_is_left_to_others_for_most_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A round over thousands of channels is spread out, and is no stall."""
    core = Core()
    busy(core, 100)
    now_s, rests_s = 0.0, []

    def clock() -> float:
        nonlocal now_s
        now_s += 0.001
        return now_s

    async def sleep(delay_s: float) -> None:
        rests_s.append(delay_s)

    monkeypatch.setattr(group_commit, "thread_time", clock)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await JournalWriter(core.broker, SECOND_NS).write()
    assert len(rests_s) >= 4
    assert rests_s == pytest.approx([REST * 0.001] * len(rests_s))
    assert not core.broker.moved_channels


async def test_no_rest_is_longer_than_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause of the collector in a write must not keep the next one back."""
    core = Core()
    busy(core, 1)
    rests_s = []

    async def sleep(delay_s: float) -> None:
        rests_s.append(delay_s)

    monkeypatch.setattr(group_commit, "thread_time", iter([0.0, 3.0, 3.0]).__next__)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await JournalWriter(core.broker, SECOND_NS).write()
    assert rests_s == [1.0]


def test_cursors_go_with_a_turn_that_has_stored_much_and_with_no_other() -> None:
    core = Core()
    writer = JournalWriter(core.broker, SECOND_NS)
    busy(core, 1)
    writer.turn_ended()
    assert len(core.broker.moved_channels) == 1
    for _ in range(40):
        core.publish("t", b"x" * 2000)
    writer.turn_ended()
    assert not core.broker.moved_channels


def test_few_cursors_go_with_a_turn_those_first_that_have_waited_longest() -> None:
    core = Core(segment_bytes=1 << 20)
    writer = JournalWriter(core.broker, SECOND_NS)
    clients = busy(core, 3 * MAX_BESIDE_BATCHES)
    for _ in range(40):
        core.publish("t", b"x" * 2000)
    writer.turn_ended()
    written = [not client.channel.dirty for client in clients]
    assert written == [n < MAX_BESIDE_BATCHES for n in range(len(clients))]
