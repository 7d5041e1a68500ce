"""Closing: in time, whatever brokers and handlers do, and nothing is kept from others."""

import asyncio
import contextlib
import time

import pytest
from tests.unit.client.scripted_broker import Command, ScriptedBroker, eventually

from martlet.client import AlreadyAnswered, Consumer, Message
from martlet.client.lent import Lent


async def test_what_was_taken_and_not_answered_is_given_back() -> None:
    async with ScriptedBroker() as broker:
        async with Consumer("t", "c", broker.address, max_in_flight=100) as consumer:
            broker.deliver(*range(4))
            messages = [await anext(consumer) for _ in range(3)]
            messages[1].finish()
            broker.deliver(*range(10, 20))
            batches = consumer.batches(max_messages=5)
            first, second = await anext(batches), await anext(batches)
            await first.finish()
            await second.finish([0, 1])
        answered = broker.answered("FIN") + broker.answered("REQ")
        assert sorted(answered) == [*range(4), *range(10, 20)]
        with pytest.raises(AlreadyAnswered):
            messages[0].finish()
        assert consumer.counts.finished + consumer.counts.requeued == 14


async def test_a_handler_that_does_not_heed_its_end_keeps_nothing_from_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go = asyncio.Event()

    async def handle(_message: Message) -> None:
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    async with ScriptedBroker() as broker:
        began_s = time.monotonic()
        async with Consumer("t", "c", broker.address, close_timeout_s=0.2) as consumer:
            running = asyncio.create_task(consumer.run(handle))
            broker.deliver(1)
            await eventually(lambda: consumer.counts.received == 1 and not consumer.stats.waiting)
            await asyncio.sleep(0.01)
        assert time.monotonic() - began_s < 5
        assert broker.answered("REQ") == [1]
        go.set()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert broker.answered("FIN") == []
    assert "does not end, though it was cancelled" in caplog.text


async def test_a_broker_that_confirms_nothing_is_left_in_time() -> None:
    async def script(command: Command) -> bool:
        return command.name == "CLS"

    async with ScriptedBroker(script) as broker:
        async with Consumer("t", "c", broker.address, close_timeout_s=0.4):
            await broker.until(lambda: broker.named("RDY"))
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 5


async def test_a_broker_that_does_not_read_is_left_in_time() -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for command in (b"}", b"SUB t c\n"):
            came = b""
            while not came.endswith(command):
                came += await reader.read(100)
            writer.write(b"\0\0\0\6\0\0\0\0OK")
        await gone.wait()
        writer.transport.abort()
        closed.set()

    gone, closed = asyncio.Event(), asyncio.Event()
    server = await asyncio.start_server(hold, "127.0.0.1", limit=1)
    async with server:
        address = server.sockets[0].getsockname()
        async with Consumer("t", "c", address, close_timeout_s=0.4) as consumer:
            [subscription] = consumer._brokers.subscriptions
            assert subscription.connection is not None
            subscription.connection.write(b"NOP\n" * 4_000_000)
            assert not subscription.connection.can_write
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 5
        gone.set()
        await closed.wait()


def test_what_was_lent_is_remembered_within_a_limit() -> None:
    lent = Lent(10)
    messages = [Message(None, 0, 1, b"", b"") for _ in range(100)]
    for message in messages:
        lent.add(message)
    assert len(lent._messages) == 1, "all are answered but, perhaps, the last"


async def test_what_was_forgotten_is_not_remembered_for_ever() -> None:
    async with (
        ScriptedBroker() as broker,
        Consumer("t", "c", broker.address, max_in_flight=5) as consumer,
    ):
        for number in range(100):
            broker.deliver(number)
            message = await anext(consumer)
            if number % 2:
                message.finish()
        assert len(consumer._lent._messages) <= 10
