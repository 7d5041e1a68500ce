"""More time for slow handlers, and none for messages that are answered or forgotten."""

import asyncio
import gc
import time

import pytest
from tests.polling import until
from tests.unit.client.consumer.consuming import consuming
from tests.unit.client.scripted_broker import ScriptedBroker

from martlet.client import Message


async def test_a_message_is_touched_while_its_handler_works(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.body == b"body 1":
            await go.wait()

    timed = ScriptedBroker(msg_timeout=500, max_msg_timeout=1600)
    async with consuming(timed, run=handle, concurrency=2) as (broker, consumer):
        broker.deliver(1, 2)
        await broker.until(lambda: len(broker.answered("TOUCH")) >= 4)
        assert not consumer.counts.expired
        await until(lambda: "delivers it again" in caplog.text)
        touches = len(broker.named("TOUCH"))
        await asyncio.sleep(0.4)
        assert len(broker.named("TOUCH")) == touches, "the broker would not heed it"
        go.set()
        await broker.until(lambda: broker.answered("FIN") == [2, 1])
        assert set(broker.answered("TOUCH")) == {1}
        assert caplog.text.count("--max-msg-timeout") == 1


async def test_a_message_that_has_waited_is_touched_when_its_handler_begins() -> None:
    go = asyncio.Event()

    async def handle(_message: Message) -> None:
        await go.wait()

    async with consuming(ScriptedBroker(msg_timeout=2000)) as (broker, consumer):
        broker.deliver(1, 2)
        await until(lambda: consumer.counts.received == 2)
        await asyncio.sleep(1.2)  # Over half of the timeout, and long before they are given back.
        running = asyncio.create_task(consumer.run(handle))
        await broker.until(lambda: broker.answered("TOUCH") == [1])
        go.set()
        await broker.until(lambda: broker.answered("FIN") == [1, 2])
        assert broker.answered("TOUCH") == [1, 2]
        consumer.stop()
        await running


async def test_a_batch_is_touched_as_long_as_it_is_held() -> None:
    timed = ScriptedBroker(msg_timeout=120, max_msg_timeout=60_000)
    async with consuming(timed) as (broker, consumer):
        broker.deliver(1, 2, 3)
        batches = consumer.batches()
        batch = await anext(batches)
        await batch.finish([0])
        await broker.until(lambda: len(broker.answered("TOUCH")) >= 4)
        assert set(broker.answered("TOUCH")) == {2, 3}
        await batch.finish()
        await broker.until(lambda: len(broker.answered("FIN")) == 3)
        done = len(broker.named("TOUCH"))
        broker.deliver(4)
        batch = await anext(batches)
        await batches.aclose()  # type: ignore[attr-defined]
        del batch
        gc.collect()
        await asyncio.sleep(0.1)
        assert len(broker.named("TOUCH")) - done <= 1, "what nobody holds nobody answers"


async def test_nothing_is_touched_where_it_is_not_wanted() -> None:
    async with consuming(
        ScriptedBroker(msg_timeout=80), run=lambda _message: asyncio.sleep(0.2), auto_touch=False
    ) as (broker, _):
        broker.deliver(1)
        await broker.until(lambda: broker.answered("FIN") == [1])
        assert broker.answered("TOUCH") == []


async def test_iterated_messages_are_touched_while_they_are_held(
    caplog: pytest.LogCaptureFixture,
) -> None:
    timed = ScriptedBroker(msg_timeout=60_000, max_msg_timeout=600)
    async with consuming(timed) as (broker, consumer):
        consumer._auto_touch.connected(0.08)  # as if a broker gave messages so little time
        broker.deliver(1, 2, 3)
        messages = [await anext(consumer) for _ in range(3)]
        messages.pop().finish()
        del messages[0]  # It can no longer be answered.
        await broker.until(lambda: broker.answered("TOUCH"))
        await until(lambda: "delivers it again" in caplog.text)
        assert set(broker.answered("TOUCH")) == {2}
        assert not messages[0].is_answered
    assert caplog.text.count("--max-msg-timeout") == 1
    assert broker.answered("REQ") == [2]


async def test_touches_that_no_longer_help_are_logged_however_late_that_is_seen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    timed = ScriptedBroker(msg_timeout=60_000, max_msg_timeout=200)
    async with consuming(timed) as (broker, consumer):
        consumer._auto_touch.connected(0.08)
        broker.deliver(1)
        message = await anext(consumer)
        await broker.until(lambda: broker.answered("TOUCH"))
        time.sleep(0.3)  # noqa: ASYNC251, the application holds the event loop up
        await until(lambda: "delivers it again" in caplog.text)
        message.finish()


async def test_a_message_that_has_waited_is_touched_when_iterating_hands_it_out() -> None:
    async with consuming(ScriptedBroker(msg_timeout=60_000)) as (broker, consumer):
        broker.deliver(1, 2)
        await until(lambda: consumer.counts.received == 2)
        (subscription,) = consumer._brokers.sessions
        assert subscription._answers is not None
        subscription._answers.touch_before_s = 61.0  # all have waited for long
        messages = [await anext(consumer) for _ in range(2)]
        await broker.until(lambda: broker.answered("TOUCH") == [1, 2])
        assert not any(message.is_answered for message in messages)


async def test_nothing_that_iterating_has_handed_out_is_touched_where_it_is_not_wanted() -> None:
    async with consuming(ScriptedBroker(msg_timeout=80), auto_touch=False) as (broker, consumer):
        broker.deliver(1, 2)
        message = await anext(consumer)
        assert consumer._auto_touch._timer is None
        message.finish()
        await broker.until(lambda: broker.answered("FIN") == [1])
    assert broker.answered("TOUCH") == []
