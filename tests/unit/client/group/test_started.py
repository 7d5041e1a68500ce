"""Reports of a member about started messages, and its handling of charged ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.polling import until
from tests.unit.client.group.fetched import fill

from martlet.client import PulledBatch, PulledMessage, QueueId
from martlet.client.errors import ConnectionLost
from martlet.client.group import started as starts
from martlet.client.group.queues import ready_queues
from martlet.client.group.queues.assigned_queue import AssignedQueue
from martlet.client.group.queues.ready_queues import ReadyQueues
from martlet.client.group.settings import FlowLimits
from martlet.client.group.stats import PullCounts

LIMIT_S = 50.0


class Clock:
    """Stands in for the module `time`."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(starts, "time", clock)
    return clock


class Queue:
    """A queue of 300 fetched messages, and the reports to its broker."""

    def __init__(self, line: ReadyQueues, failures: Sequence[Sequence[int]] | None = ()) -> None:
        self.said: list[tuple[list[tuple[int, int]], bool]] = []
        self.line = line
        self.held = AssignedQueue("t", QueueId("b:1", 0), 0, 0, FlowLimits(), line, PullCounts())
        self.is_prompt = True
        """Whether the broker answers at once."""
        self.announcements: list[starts.OnKnown] = []
        """Called when the broker has answered."""
        self.held.say_started = self._say
        self.held.learn(failures)
        fill(self.held, 300)

    def _say(self, runs: Sequence[tuple[int, int]], on_known: starts.OnKnown | None) -> None:
        self.said.append((list(runs), on_known is not None))
        if on_known is not None:
            self.announcements.append(on_known)
            if self.is_prompt:
                asyncio.get_running_loop().call_soon(on_known, None)

    async def take(self) -> PulledMessage:
        async with asyncio.timeout(LIMIT_S):
            message = await self.line.message()
        assert message is not None
        return message

    async def batch(self, max_count: int) -> PulledBatch:
        async with asyncio.timeout(LIMIT_S):
            batch = await self.line.batch(max_count)
        assert batch is not None
        return batch


def charged_beside_another() -> tuple[Queue, Queue]:
    """A queue whose first message is charged, at a broker that does not answer yet; and another."""
    line = ReadyQueues()
    queue, other = Queue(line, [[0, 1, 0, False]]), Queue(line)
    queue.is_prompt = False
    return queue, other


async def test_nothing_is_reported_to_a_broker_that_does_not_ask() -> None:
    queue = Queue(ReadyQueues(), None)
    for _ in range(5):
        (await queue.take()).finish()
    (await queue.batch(5)).finish()
    await asyncio.sleep(2 * starts.TAKE_BACK_S)
    assert queue.said == []


async def test_a_slow_message_is_reported_alone_and_fast_ones_by_runs(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "TAKE_BACK_S", 100.0)
    queue = Queue(ReadyQueues())
    for offset in range(3):
        clock.now_s += 0.01
        message = await queue.take()
        assert queue.said[-1] == ([(offset, offset + 1)], False)
        message.finish()
    assert len(queue.said) == 3
    for _ in range(250):
        (await queue.take()).finish()
    runs = [said[0][-1] for said in queue.said[3:]]
    assert runs == [(3, 5), (5, 9), (9, 17), (17, 33), (33, 65), (65, 129), (129, 257)]


async def test_messages_of_other_handlers_are_reported_too(clock: Clock) -> None:
    queue = Queue(ReadyQueues())
    first = await queue.take()
    clock.now_s += 0.01
    second = await queue.take()
    assert queue.said[-1] == ([(0, 1), (1, 2)], False)
    first.finish()
    clock.now_s += 0.01
    await queue.take()
    assert queue.said[-1] == ([(1, 2), (2, 3)], False)
    second.finish()


async def test_reports_of_finished_or_unstarted_messages_are_taken_back(clock: Clock) -> None:
    queue = Queue(ReadyQueues())
    (await queue.take()).finish()
    message = await queue.take()
    assert queue.said[-1] == ([(1, 3)], False)
    await until(lambda: queue.said[-1] == ([(1, 2)], False))
    message.finish()
    await until(lambda: queue.said[-1] == ([], False))
    await queue.take()
    assert queue.said[-1][0][-1][0] == 2


async def test_a_charged_message_is_handled_alone(clock: Clock) -> None:
    queue = Queue(ReadyQueues(), [[2, 1, 0, False]])
    first = await queue.take()
    second = await queue.take()
    takers = [asyncio.create_task(queue.take()) for _ in range(3)]
    await asyncio.sleep(0.01)
    first.finish()
    await asyncio.sleep(0.01)
    assert not any(taker.done() for taker in takers)
    second.finish()
    (taken,), others = await asyncio.wait(takers, return_when=asyncio.FIRST_COMPLETED)
    charged = await taken
    assert (charged.offset, charged.attempts) == (2, 2)
    assert queue.said[-1] == ([(2, 3)], True)
    await asyncio.sleep(0.01)
    assert not any(other.done() for other in others)
    charged.finish()
    assert sorted([(await other).offset for other in others]) == [3, 4]
    assert ([], False) in queue.said, "at once, or the next one would not be alone"


@pytest.mark.parametrize("how", ["message", "batch"])
async def test_a_charged_message_begins_when_the_broker_has_answered_its_report(
    clock: Clock, how: str
) -> None:
    """A process that dies may lose what it has written."""
    queue, other = charged_beside_another()
    taken = asyncio.create_task(queue.batch(10) if how == "batch" else queue.take())
    beside = asyncio.create_task(other.take())
    await asyncio.sleep(0.01)
    assert queue.said == [([(0, 1)], True)]
    assert not taken.done()
    assert not beside.done()
    queue.announcements[0](None)
    done, _ = await asyncio.wait([taken, beside], return_when=asyncio.FIRST_COMPLETED)
    assert queue.held.at_work == 1
    assert other.held.at_work == 0
    assert len(done) == 1
    assert queue.said == [([(0, 1)], True)]
    for task in (taken, beside):
        task.cancel()


async def test_a_charged_message_is_not_handled_if_the_broker_does_not_know_that_it_begins(
    clock: Clock,
) -> None:
    """The queue is lost, or the connection: another member may have the message."""
    queue, other = charged_beside_another()
    taken = asyncio.create_task(queue.take())
    await asyncio.sleep(0.01)
    queue.announcements[0](ConnectionLost("the broker is gone"))
    assert (await taken)._held is other.held
    assert queue.said == [([(0, 1)], True), ([], False)]
    assert (await queue.take())._held is other.held
    assert queue.held.at_work == 0


async def test_a_broker_that_does_not_answer_holds_up_no_other_for_long(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_queues, "MAX_ANSWER_S", 0.02)
    queue, other = charged_beside_another()
    message = await queue.take()
    assert message._held is other.held
    assert queue.said == [([(0, 1)], True), ([], False)], "taken back: others begin beside it"
    queue.is_prompt = True
    queue.announcements[0](None)
    message.finish()
    other.held.pause()
    assert (await queue.take())._held is queue.held
    assert queue.said[2:] == [([(0, 1)], True)]


async def test_a_charged_message_that_is_no_longer_the_next_one_is_taken_back(
    clock: Clock,
) -> None:
    queue, other = charged_beside_another()
    taken = asyncio.create_task(queue.take())
    await asyncio.sleep(0.01)
    queue.held.pause()
    queue.announcements[0](None)
    queue.is_prompt = True
    assert (await taken)._held is other.held
    assert queue.said == [([(0, 1)], True), ([], False)]
    queue.held.resume()
    other.held.pause()
    message = await taken
    message.finish()
    assert (await queue.take())._held is queue.held
    assert queue.said[2:] == [([(0, 1)], True)]


async def test_a_queue_that_waits_for_its_time_or_goes_does_not_hold_up_others(
    clock: Clock,
) -> None:
    line = ReadyQueues()
    waiting, other = Queue(line, [[0, 2, 50, False]]), Queue(line)
    async with asyncio.timeout(LIMIT_S):
        got = await line.message(in_order=True)
    assert got is not None
    assert got._held is other.held
    got.finish()
    assert waiting.held.next_commit == 0
    clock.now_s += 0.06
    async with asyncio.timeout(LIMIT_S):
        while (message := await waiting.take())._held is not waiting.held:
            message.finish()
    assert (message.offset, message.attempts) == (0, 3)


async def test_a_message_that_is_over_is_for_no_handler(clock: Clock) -> None:
    line = ReadyQueues()
    given_up: list[tuple[PulledMessage, int]] = []
    line.on_lost_often = lambda message, count: given_up.append((message, count))
    queue = Queue(line, [[0, 3, 9000, True]])
    assert (await queue.take()).offset == 1
    ((message, count),) = given_up
    assert (message.offset, message.attempts, count) == (0, 3, 3)
    assert queue.held.next_commit == 0
    message.finish()
    assert queue.held.next_commit == 1


async def test_batches_end_before_a_charged_message_which_is_a_batch_of_its_own(
    clock: Clock,
) -> None:
    queue = Queue(ReadyQueues(), [[3, 1, 0, False], [4, 1, 0, False], [9, 1, 0, False]])
    sizes = []
    for _ in range(6):
        batch = await queue.batch(5)
        assert queue.said[-1] == (
            [(batch.piece.first, batch.piece.last + 1)],
            batch.piece.first in (3, 4, 9),
        )
        sizes.append((batch.piece.first, batch.count))
        batch.finish()
    assert sizes == [(0, 3), (3, 1), (4, 1), (5, 4), (9, 1), (10, 5)]


async def test_batches_that_are_put_back_end_before_a_charged_message_too(clock: Clock) -> None:
    queue = Queue(ReadyQueues(), [[2, 1, 0, False]])
    (await queue.batch(2)).give_back()
    again = await queue.batch(10)
    assert again.offsets.tolist() == [0, 1]
    assert queue.said[-1] == ([(0, 2)], False)
    again.finish()
    charged = await queue.batch(10)
    charged.give_back()
    assert (await queue.batch(10)).offsets.tolist() == [2]
