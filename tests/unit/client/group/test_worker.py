"""A handler that returns at once gets runs of messages; whatever it does leaves the run exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from tests.unit.client.group.fetched import queue_in

from martlet.client import AlreadyAnswered, Reject, SharedRate
from martlet.client.group.failures import PullFailures
from martlet.client.group.message import PulledMessage
from martlet.client.group.queues.assigned_queue import AssignedQueue
from martlet.client.group.queues.ready_queues import ReadyQueues
from martlet.client.group.worker import PullWorker
from martlet.client.transport.backoff import Backoff

LIMIT_S = 60.0
COUNT = 3000


async def buried(message: PulledMessage) -> str | None:
    return "dead letters"


async def handle(
    line: ReadyQueues, handler: Callable[[PulledMessage], Awaitable[object] | object]
) -> None:
    """Handle messages in order until the line is closed."""
    failures = PullFailures(Backoff(first_s=0.001, max_s=0.002), 3, buried)
    async with asyncio.timeout(LIMIT_S):
        await PullWorker(line, handler, failures, True).work()


def assert_done(held: AssignedQueue, finished: int = COUNT) -> None:
    """All its messages are done, and all counts agree."""
    assert held.next_commit == held.fetch_offset
    assert (held.count, held.size_bytes, held.at_work, held.waiting) == (0, 0, 0, 0)
    assert held.counts.finished == finished


async def test_queues_take_turns_and_each_message_is_handled_once_in_order() -> None:
    line = ReadyQueues()
    queues = [queue_in(line, number, COUNT) for number in range(3)]
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    runs = 0

    def handler(message: PulledMessage) -> None:
        nonlocal runs
        assert message.is_out
        assert message.attempts == 1
        assert message.body == b"%06d" % message.offset
        runs += message._held.run is not None  # type: ignore[attr-defined]
        seen[message.queue].append(message.offset)
        if sum(map(len, seen.values())) == 3 * COUNT:
            line.close()

    await handle(line, handler)
    assert all(offsets == list(range(COUNT)) for offsets in seen.values())
    assert runs > COUNT
    for held in queues:
        assert_done(held)


ACTIONS = ("return", "await", "finish", "finish twice", "fail", "reject", "give back", "look")


@pytest.mark.parametrize("seed", range(8))
async def test_a_handler_may_do_anything_in_a_run(seed: int) -> None:
    """Below the offset that would be committed all messages are done, at each moment."""
    line = ReadyQueues()
    held = queue_in(line, 0, COUNT)
    draw = Random(seed)
    done: set[int] = set()
    tries: dict[int, int] = {}

    def check(offset: int) -> None:
        assert all(below in done for below in range(held.next_commit))
        assert held.next_commit <= offset
        assert held.at_work == 1
        assert held.count == COUNT - len(done)
        assert held.waiting == held.count - 1 or held.counts.requeued
        assert held.stats().in_flight == held.count

    async def awaited(message: PulledMessage) -> None:
        await asyncio.sleep(0)
        check(message.offset)
        done.add(message.offset)

    def handler(message: PulledMessage) -> Awaitable[object] | None:
        offset = message.offset
        tries[offset] = tries.get(offset, 0) + 1
        assert message.attempts == tries[offset]
        action = "return" if draw.random() < 0.95 else draw.choice(ACTIONS)
        if len(done) + 1 >= COUNT:
            line.close()
            action = "return"
        if action == "await":
            return awaited(message)
        if action == "fail" and tries[offset] < 3:
            raise ValueError("no")
        if action == "give back" and tries[offset] < 3:
            message.give_back()
            return None
        if action == "look":
            check(offset)
        done.add(offset)
        if action == "reject":
            raise Reject("no")
        if action.startswith("finish"):
            message.finish()
            if action == "finish twice":
                with pytest.raises(AlreadyAnswered):
                    message.finish()
        return None

    await handle(line, handler)
    assert done == set(range(COUNT))
    assert_done(held)


async def test_a_queue_that_a_handler_pauses_or_that_leaves_hands_out_nothing_more() -> None:
    line = ReadyQueues()
    paused, leaving = (queue_in(line, number, COUNT) for number in range(2))
    last: dict[int, int] = {}

    def handler(message: PulledMessage) -> None:
        last[message.queue] = message.offset
        if message.offset == 1000:
            if message.queue:
                leaving.begin_leaving()
            else:
                paused.pause()
        if last == {0: 1000, 1: 1000}:
            asyncio.get_running_loop().call_later(0.02, line.close)

    await handle(line, handler)
    assert last == {0: 1000, 1: 1000}
    assert (paused.next_commit, paused.waiting, paused.count) == (1001, COUNT - 1001, COUNT - 1001)
    assert_done(leaving, 1001)
    assert leaving.fetch_offset == 1001


async def test_a_rate_limit_set_by_a_handler_ends_the_run() -> None:
    line = ReadyQueues()
    held = queue_in(line, 0, COUNT)
    limit = SharedRate(0.001, burst=2)
    offsets: list[int] = []

    def handler(message: PulledMessage) -> None:
        offsets.append(message.offset)
        if message.offset == 1000:
            line.limit_rate(limit)
            asyncio.get_running_loop().call_later(0.02, line.close)

    await handle(line, handler)
    assert offsets == [*range(1003)]
    assert held.next_commit == 1003


async def test_a_slow_handler_lets_the_loop_and_other_queues_run_after_each_message() -> None:
    line = ReadyQueues()
    queues = [queue_in(line, number, 2) for number in range(2)]
    order: list[tuple[int, int]] = []

    def handler(message: PulledMessage) -> None:
        order.append((message.queue, message.offset))
        line.turn_ends_at_s = 0.0
        if len(order) == 4:
            line.close()

    await handle(line, handler)
    assert order == [(0, 0), (1, 0), (0, 1), (1, 1)]
    for held in queues:
        assert_done(held, 2)


async def test_a_cancelled_worker_gives_back_its_message_and_the_rest_of_the_run() -> None:
    line = ReadyQueues()
    held = queue_in(line, 0, COUNT)

    began = asyncio.Event()

    def handler(message: PulledMessage) -> Awaitable[object] | None:
        if message.offset < 2000:
            return None
        began.set()
        return asyncio.sleep(LIMIT_S)

    task = asyncio.create_task(handle(line, handler))
    async with asyncio.timeout(LIMIT_S):
        await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert held.position == held.next_commit == 2000
    assert (held.at_work, held.waiting, held.count) == (0, COUNT - 2000, COUNT - 2000)
