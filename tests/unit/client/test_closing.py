"""Closing: in time, whatever brokers and handlers do, and nothing is kept from others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
from aiohttp import web
from tests.answering import answering
from tests.polling import until
from tests.unit.client.consumer.consuming import consuming
from tests.unit.client.scripted_broker import Mood, ScriptedBroker, silent_at

from martlet.client import AlreadyAnswered, Closed, Consumer, Message, Producer

Make = Callable[[str], Consumer | Producer]


async def test_unanswered_messages_are_given_back() -> None:
    async with consuming(max_in_flight=100) as (broker, consumer):
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
    assert {item.words[2] for item in broker.named("REQ")} == {"0"}
    assert broker.names()[-1] == "CLS"
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
        async with Consumer("t", "c", broker.address, close_timeout_s=0.2) as consumer:
            running = asyncio.create_task(consumer.run(handle))
            broker.deliver(1)
            await until(lambda: consumer.counts.received == 1 and not consumer.stats.waiting)
            await asyncio.sleep(0.01)
        assert broker.answered("REQ") == [1]
        go.set()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert broker.answered("FIN") == []
    assert "does not end, though it was cancelled" in caplog.text


async def test_a_broker_that_confirms_nothing_is_left_in_time() -> None:
    async with asyncio.timeout(50):
        async with consuming(ScriptedBroker(silent_at("CLS")), close_timeout_s=0.4) as (broker, _):
            await broker.until(lambda: broker.named("RDY"))


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
    async with asyncio.timeout(50), server:
        address = server.sockets[0].getsockname()
        async with Consumer("t", "c", address, close_timeout_s=0.4) as consumer:
            [subscription] = consumer._brokers.sessions
            assert subscription.connection is not None
            subscription.connection.write(b"NOP\n" * 4_000_000)
            assert not subscription.connection.can_write
        gone.set()
        await closed.wait()


async def test_forgotten_messages_are_not_remembered_for_ever() -> None:
    async with consuming(max_in_flight=5) as (broker, consumer):
        for number in range(100):
            broker.deliver(number)
            message = await anext(consumer)
            if number % 2:
                message.finish()
        assert len(consumer._handed_out._messages) <= 10


async def test_messages_received_after_raising_max_in_flight_are_given_back_too() -> None:
    async with consuming(max_in_flight=1) as (broker, consumer):
        consumer.change_max_in_flight(50)
        broker.deliver(*range(50))
        for _ in range(50):
            await anext(consumer)
        consumer.change_max_in_flight(1)
    assert sorted(broker.answered("REQ")) == [*range(50)]


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Accepts connections and says nothing; its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("make", [partial(Consumer, "t", "c"), Producer])
async def test_closing_ends_a_pending_connect(make: Make) -> None:
    async with silent_server() as address:
        client = make(address)
        entering = asyncio.create_task(client.__aenter__())
        await asyncio.sleep(0.01)
        async with asyncio.timeout(4):  # Less than an attempt to connect may take.
            await client.close()
            with pytest.raises(Closed, match="while it was connecting"):
                await entering


@pytest.mark.parametrize("make", [partial(Consumer, "t", "c"), Producer])
async def test_a_closed_client_does_not_connect(make: Make) -> None:
    async with ScriptedBroker() as broker:
        client = make(broker.address)
        await client.close()
        with pytest.raises(Closed, match="used once"):
            await client.__aenter__()
        assert not broker.peers


async def test_closing_a_producer_in_two_tasks_waits_for_answers_in_both() -> None:
    mood = Mood("hold")
    async with ScriptedBroker(mood) as broker, Producer(broker.address) as producer:
        stored = producer.submit("t", b"body")
        await broker.until(lambda: mood.held)
        closing = [asyncio.create_task(producer.close()) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in closing)
        mood.answer()
        await asyncio.gather(*closing)
        await stored


async def test_a_broker_that_goes_while_it_is_first_tried_is_not_waited_for() -> None:
    answers = [["silent"], []]

    async def lookup(_request: web.BaseRequest) -> web.Response:
        listed = answers.pop(0) if len(answers) > 1 else answers[0]
        producers = [
            {"broadcast_address": "127.0.0.1", "tcp_port": int(address.rpartition(":")[2])}
            for address in listed
        ]
        return web.json_response({"producers": producers})

    async with silent_server() as address:
        answers[0] = [address]
        async with (
            answering(lookup) as daemon,
            asyncio.timeout(4),  # Less than an attempt to connect may take.
            Consumer("t", "c", lookup=daemon, lookup_poll_s=0.3) as consumer,
        ):
            assert not consumer.connected_count
