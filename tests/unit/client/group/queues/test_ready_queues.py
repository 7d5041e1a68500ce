"""Messages that can be handled are handed out, wherever the event loop's turn ends."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.group.fetched import queue_in

from martlet.client.group.queues.ready_queues import ReadyQueues

LIMIT_S = 50.0


class Clock:
    """Stands in for the module `time`: stands still, but for the steps that it is given."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.steps_s: list[float] = []
        """How long the process is stopped behind each of the next readings."""

    def monotonic(self) -> float:
        now_s = self.now_s
        if self.steps_s:
            self.now_s += self.steps_s.pop(0)
        return now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("martlet.client.group.queues.ready_queues.time", clock)
    monkeypatch.setattr("martlet.client.consumer.waiters.time", clock)
    return clock


async def test_a_turn_that_ends_while_it_is_looked_at_leaves_no_message_behind(
    clock: Clock,
) -> None:
    """A process that was stopped for longer than a turn, just there, waited for a message that was
    in the line, and was not woken by later ones of the same queue.
    """
    line = ReadyQueues()
    line.turn_ends_at_s = clock.now_s
    queue_in(line)
    clock.steps_s = [1.0]
    async with asyncio.timeout(LIMIT_S):
        message = await line.message()
    assert message is not None
    assert message.offset == 0


async def test_a_wake_up_of_a_taker_that_is_cancelled_while_it_rests_is_for_another(
    clock: Clock,
) -> None:
    line = ReadyQueues()
    line.turn_ends_at_s = clock.now_s
    takers = [asyncio.create_task(line.message()) for _ in range(2)]
    await asyncio.sleep(0)
    queue_in(line)
    clock.now_s += 1.0  # The turn is over: the first one rests before it takes.
    await asyncio.sleep(0)
    takers[0].cancel()
    async with asyncio.timeout(LIMIT_S):
        message = await takers[1]
    assert message is not None
    assert takers[0].cancelled()
