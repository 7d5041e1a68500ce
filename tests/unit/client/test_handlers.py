"""Handlers of messages: who calls them, how many at once, and what becomes of the message."""

import asyncio
import contextlib
import contextvars
import logging
import time

import pytest
from tests.polling import until
from tests.unit.client.consumer.consuming import consuming
from tests.unit.client.scripted_broker import ScriptedBroker

from martlet.client import Backoff, Message
from martlet.client.transport.connection import Connection


async def test_finishes_of_one_turn_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    write = Connection.write

    def record(connection: Connection, data: bytes) -> None:
        written.append(data)
        write(connection, data)

    monkeypatch.setattr(Connection, "write", record)
    seen: list[Message] = []
    async with consuming(run=seen.append, max_in_flight=1000) as (broker, _):
        broker.deliver(*range(100))
        await broker.until(lambda: len(broker.named("FIN")) == 100)
        assert len(seen) == 100
        assert broker.answered("FIN") == list(range(100))
        writes = [data for data in written if data.startswith(b"FIN")]
        assert len(writes) <= 3, "a thousandth of a second may end in the middle of them"


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_handler_that_returns_finishes_and_one_that_raises_requeues(
    concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        if message.body == b"body 2":
            raise RuntimeError("cannot")
        if message.body == b"body 3":
            message.requeue(5)
        if message.body == b"body 4":
            message.requeue(6)
            raise RuntimeError("cannot either")

    retry = Backoff(first_s=1, max_s=3, jitter=0)
    async with consuming(run=handle, concurrency=concurrency, retry=retry) as (broker, _):
        broker.deliver(1, 2, 3, 4)
        broker.deliver(2, attempts=2)
        broker.deliver(2, attempts=3)
        await broker.until(lambda: len(broker.named("FIN", "REQ")) == 6)
    assert broker.answered("FIN") == [1]
    requeued = sorted(tuple(item.words[1:]) for item in broker.named("REQ"))
    delays = [(int(message_id, 16), int(delay)) for message_id, delay in requeued]
    assert delays == [(2, 1000), (2, 2000), (2, 3000), (3, 5), (4, 6)]
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(failures) == 4
    assert "attempt 3; again in 3000 ms" in caplog.text
    assert "the handler had answered it" in caplog.text


async def test_a_handler_task_cancelled_from_outside_leaves_the_worker_alive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(message: Message) -> None:
        if message.body == b"body 1":
            inner = asyncio.ensure_future(asyncio.sleep(60))
            inner.cancel()
            await inner

    async with consuming(run=handle) as (broker, consumer):
        broker.deliver(1, 2)
        await broker.until(lambda: len(broker.named("FIN", "REQ")) == 2)
        assert (broker.answered("REQ"), broker.answered("FIN")) == ([1], [2])
        assert consumer.stats.workers == 1
    assert "handler failed for message" in caplog.text


async def test_as_many_handlers_as_asked_for_are_at_work() -> None:
    at_work = max_count = 0
    go = asyncio.Event()

    async def handle(_message: Message) -> None:
        nonlocal at_work, max_count
        at_work += 1
        max_count = max(max_count, at_work)
        await go.wait()
        at_work -= 1

    async with consuming(run=handle, concurrency=3) as (broker, _):
        broker.deliver(*range(10))
        await until(lambda: at_work == 3)
        await asyncio.sleep(0.02)
        go.set()
        await broker.until(lambda: len(broker.named("FIN")) == 10)
    assert max_count == 3


async def test_a_slow_handler_does_not_hold_up_the_messages_behind_it() -> None:
    go = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.body == b"body 0":
            await go.wait()

    async with consuming(run=handle, concurrency=2) as (broker, _):
        broker.deliver(*range(50))
        await broker.until(lambda: len(broker.named("FIN")) == 49)
        assert 0 not in broker.answered("FIN")
        go.set()


async def test_handlers_that_never_wait_leave_the_loop_its_turns() -> None:
    handled = 0

    async def handle(_message: Message) -> None:
        nonlocal handled
        handled += 1
        until_s = time.monotonic() + 0.0005
        while time.monotonic() < until_s:
            pass

    async with consuming(run=handle, concurrency=50) as (broker, _):
        broker.deliver(*range(200))
        turns = 0
        while handled < 200:
            await asyncio.sleep(0)
            turns += bool(handled)
        assert turns >= 40, "of a hundred thousandths of a second"


async def test_a_handler_runs_in_a_task_with_all_that_asyncio_offers() -> None:
    variable = contextvars.ContextVar[str]("variable")
    variable.set("outside")
    seen: list[object] = []

    async def handle(_message: Message) -> None:
        seen.append(variable.get())
        assert asyncio.current_task() is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(5)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))

    async with consuming(run=handle) as (broker, _):
        broker.deliver(1, 2)
        await broker.until(lambda: len(broker.named("FIN")) == 2)
    assert seen == ["outside", "outside"]


async def test_messages_that_waited_too_long_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    handled: list[bytes] = []
    go = asyncio.Event()

    async def handle(message: Message) -> None:
        handled.append(message.body)
        await go.wait()

    async with consuming(ScriptedBroker(msg_timeout=100), run=handle) as (broker, consumer):
        broker.deliver(1, 2)
        await asyncio.sleep(0.01)
        broker.deliver(3)
        await asyncio.sleep(0.2)
        go.set()
        broker.deliver(2, 3, attempts=2)
        await broker.until(lambda: len(broker.named("FIN")) == 3)
        assert consumer.counts.expired == 2
    assert handled == [b"body 1", b"body 2", b"body 3"]
    assert "lower max_in_flight" in caplog.text


async def test_stopping_ends_run_once_the_handlers_are_done() -> None:
    go = asyncio.Event()

    async def handle(message: Message) -> None:
        consumer.stop()
        await go.wait()

    async with consuming() as (broker, consumer):
        running = asyncio.create_task(consumer.run(handle, concurrency=4))
        broker.deliver(7)
        await broker.until(lambda: broker.ready_counts() == [200, 0])
        await asyncio.sleep(0.01)
        assert not running.done()
        go.set()
        await running
        assert [message async for message in consumer] == []
    assert broker.answered("FIN") == [7]


async def test_closing_waits_for_handlers_but_not_for_ever() -> None:
    async def handle(message: Message) -> None:
        await asyncio.sleep(0.05 if message.body == b"body 1" else 60)

    async with consuming(close_timeout_s=0.3) as (broker, consumer):
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        broker.deliver(1, 2)
        await asyncio.sleep(0.02)
    assert broker.answered("FIN") == [1]
    assert broker.answered("REQ") == [2], "its handler was cancelled"
    await asyncio.wait([running])


async def test_cancelling_requeues_messages_being_handled() -> None:
    async def handle(_message: Message) -> None:
        await asyncio.sleep(60)

    async with consuming() as (broker, consumer):
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        broker.deliver(1, 2)
        await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await broker.until(lambda: sorted(broker.answered("REQ")) == [1, 2])
