"""The consumer against brokers that do what the test tells them."""

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Callable

import pytest
from tests.unit.client.scripted_broker import Command, ScriptedBroker, message_frame

from martlet.client import (
    AlreadyAnswered,
    Backoff,
    Closed,
    Consumer,
    Identity,
    InvalidName,
    Message,
    SubscribeRefused,
)

FAST = Backoff(first_s=0.01, max_s=0.05)


def ready_counts(broker: ScriptedBroker) -> list[int]:
    return [int(command.words[1]) for command in broker.named("RDY")]


def deliver(broker: ScriptedBroker, *numbers: int, attempts: int = 1) -> None:
    broker.peers[-1].send(
        b"".join(
            message_frame(b"body %d" % number, number=number, attempts=attempts)
            for number in numbers
        )
    )


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def answered(broker: ScriptedBroker, name: str) -> list[int]:
    return [int(command.words[1], 16) for command in broker.named(name)]


async def test_it_subscribes_and_asks_for_messages() -> None:
    async with (
        ScriptedBroker() as broker,
        Consumer("orders", "billing", broker.address, max_in_flight=7) as consumer,
    ):
        assert consumer.connected_count == 1
        await broker.until(lambda: broker.named("RDY"))
        assert broker.commands[0].words == ["SUB", "orders", "billing"]
        assert ready_counts(broker) == [7]


async def test_messages_are_iterated_and_finished_by_the_application() -> None:
    async with ScriptedBroker() as broker, Consumer("t", "c", broker.address) as consumer:
        broker.peers[0].send(message_frame(b"one", number=1, attempts=3, stamp=1234))
        message = await anext(consumer)
        assert (message.id, message.body) == (b"%016x" % 1, b"one")
        assert (message.attempts, message.timestamp_ns) == (3, 1234)
        before = message.is_answered
        message.touch()
        message.finish()
        assert (before, message.is_answered) == (False, True)
        assert "answered" in repr(message)
        for again in (message.finish, message.requeue, message.touch):
            with pytest.raises(AlreadyAnswered):
                again()
        deliver(broker, 2)
        async for following in consumer:
            following.requeue(1500)
            break
        with pytest.raises(ValueError, match="delay_ms=-1"):
            Message(None, 0, 1, b"", b"").requeue(-1)
        await broker.until(lambda: broker.named("REQ"))
        assert consumer.counts.received == 2
        assert consumer.counts.finished == 1
        assert consumer.counts.requeued == 1
    names = [each.name for each in broker.commands]
    assert names == ["SUB", "RDY", "TOUCH", "FIN", "REQ", "RDY", "CLS"]
    assert broker.named("REQ")[0].words[2] == "1500"


async def test_what_is_finished_in_one_turn_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    from martlet.client.connection import Connection

    written: list[bytes] = []
    write = Connection.write

    def record(connection: Connection, data: bytes) -> None:
        written.append(data)
        write(connection, data)

    monkeypatch.setattr(Connection, "write", record)
    async with (
        ScriptedBroker() as broker,
        Consumer("t", "c", broker.address, max_in_flight=1000) as consumer,
    ):
        deliver(broker, *range(100))
        seen = 0

        def handle(_message: Message) -> None:
            nonlocal seen
            seen += 1

        running = asyncio.create_task(consumer.run(handle))
        await broker.until(lambda: len(broker.named("FIN")) == 100)
        assert seen == 100
        assert answered(broker, "FIN") == list(range(100))
        writes = [data for data in written if data.startswith(b"FIN")]
        assert len(writes) <= 3, "a thousandth of a second may end in the middle of them"
        consumer.stop()
        await running


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
    async with (
        ScriptedBroker() as broker,
        Consumer("t", "c", broker.address, retry=retry) as consumer,
    ):
        running = asyncio.create_task(consumer.run(handle, concurrency=concurrency))
        deliver(broker, 1, 2, 3, 4)
        deliver(broker, 2, attempts=2)
        deliver(broker, 2, attempts=3)
        await broker.until(lambda: len(broker.named("FIN", "REQ")) == 6)
        consumer.stop()
        await running
    assert answered(broker, "FIN") == [1]
    requeued = sorted(tuple(each.words[1:]) for each in broker.named("REQ"))
    delays = [(int(message_id, 16), int(delay)) for message_id, delay in requeued]
    assert delays == [(2, 1000), (2, 2000), (2, 3000), (3, 5), (4, 6)]
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(failures) == 4
    assert "attempt 3; again in 3000 ms" in caplog.text
    assert "it had answered it" in caplog.text


async def test_as_many_handlers_as_asked_for_are_at_work() -> None:
    at_work = most = 0
    go = asyncio.Event()

    async def handle(_message: Message) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await go.wait()
        at_work -= 1

    async with ScriptedBroker() as broker, Consumer("t", "c", broker.address) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=3))
        deliver(broker, *range(10))
        await eventually(lambda: at_work == 3)
        await asyncio.sleep(0.02)
        assert at_work == 3
        go.set()
        await broker.until(lambda: len(broker.named("FIN")) == 10)
        consumer.stop()
        await running
    assert most == 3


async def test_a_slow_handler_does_not_hold_up_the_messages_behind_it() -> None:
    go = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.body == b"body 0":
            await go.wait()

    async with ScriptedBroker() as broker, Consumer("t", "c", broker.address) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        deliver(broker, *range(50))
        await broker.until(lambda: len(broker.named("FIN")) == 49)
        assert 0 not in answered(broker, "FIN")
        go.set()
        await broker.until(lambda: len(broker.named("FIN")) == 50)
        consumer.stop()
        await running


async def test_handlers_that_never_wait_leave_the_loop_its_turns() -> None:
    handled = 0

    async def handle(_message: Message) -> None:
        nonlocal handled
        handled += 1
        until_s = time.monotonic() + 0.0005
        while time.monotonic() < until_s:
            pass

    async with ScriptedBroker() as broker, Consumer("t", "c", broker.address) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=50))
        deliver(broker, *range(200))
        turns = 0
        while handled < 200:
            await asyncio.sleep(0)
            turns += bool(handled)
        assert turns >= 40, "of a hundred thousandths of a second"
        consumer.stop()
        await running


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

    async with ScriptedBroker() as broker, Consumer("t", "c", broker.address) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        deliver(broker, 1, 2)
        await broker.until(lambda: len(broker.named("FIN")) == 2)
        consumer.stop()
        await running
    assert seen == ["outside", "outside"]


async def test_heartbeats_are_answered_while_a_handler_is_at_work() -> None:
    go = asyncio.Event()

    async def handle(_message: Message) -> None:
        await go.wait()

    async with ScriptedBroker() as broker, Consumer("t", "c", broker.address) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        deliver(broker, 1)
        broker.peers[0].answer(b"_heartbeat_")
        broker.peers[0].answer(b"_heartbeat_")
        await broker.until(lambda: broker.nops == 2)
        go.set()
        consumer.stop()
        await running


async def test_a_broker_that_falls_silent_is_left_for_a_new_connection() -> None:
    identity = Identity(heartbeat_interval_ms=1000)
    async with (
        ScriptedBroker() as broker,
        Consumer("t", "c", broker.address, identity=identity, backoff=FAST),
    ):
        assert broker.identities[0]["heartbeat_interval"] == 1000
        await asyncio.sleep(1.5)
        broker.peers[0].answer(b"_heartbeat_")
        await asyncio.sleep(1.7)
        assert len(broker.peers) == 1, "the heartbeat was a sign of life"
        await broker.until(lambda: len(broker.named("SUB")) == 2)


async def test_handlers_that_block_the_loop_are_not_taken_for_a_silent_broker() -> None:
    identity = Identity(heartbeat_interval_ms=1000)
    async with (
        ScriptedBroker() as broker,
        Consumer("t", "c", broker.address, identity=identity, backoff=FAST) as consumer,
    ):
        deliver(broker, 1)
        message = await anext(consumer)
        broker.peers[0].answer(b"_heartbeat_")
        await asyncio.sleep(0)
        time.sleep(3.2)  # noqa: ASYNC251
        message.finish()
        await broker.until(lambda: broker.named("FIN"))
        assert broker.nops == 1
        assert len(broker.peers) == 1


async def test_ready_counts_are_shared_and_shared_again() -> None:
    async with ScriptedBroker() as one, ScriptedBroker() as two, ScriptedBroker() as three:
        addresses = [each.address for each in (one, two, three)]
        async with Consumer("t", "c", addresses, max_in_flight=9, backoff=FAST) as consumer:
            brokers = (one, two, three)

            def last() -> list[int]:
                return [count for each in brokers for count in ready_counts(each)[-1:]]

            await eventually(lambda: last() == [3, 3, 3])
            await two.go_away()
            await eventually(lambda: sorted((last()[0], last()[2])) == [4, 5])
            assert consumer.connected_count == 2
            await two.listen()
            await eventually(lambda: len(two.named("SUB")) == 2 and last() == [3, 3, 3])


async def test_a_ready_count_is_never_above_what_the_broker_takes() -> None:
    async with (
        ScriptedBroker(max_rdy_count=50) as broker,
        Consumer("t", "c", broker.address, max_in_flight=1000),
    ):
        await broker.until(lambda: ready_counts(broker) == [50])


async def test_a_broker_that_is_not_there_is_tried_until_it_is() -> None:
    async with ScriptedBroker() as here, ScriptedBroker() as away:
        await away.go_away()
        addresses = [here.address, away.address]
        async with Consumer("t", "c", addresses, backoff=FAST) as consumer:
            assert consumer.connected_count == 1
            await away.listen()
            await away.until(lambda: away.named("RDY"))
            assert consumer.connected_count == 2


async def test_messages_of_a_lost_connection_are_not_handed_out() -> None:
    async with (
        ScriptedBroker() as broker,
        Consumer("t", "c", broker.address, backoff=FAST) as consumer,
    ):
        deliver(broker, 1, 2, 3)
        first = await anext(consumer)
        assert first.body == b"body 1"
        broker.peers[0].hang_up()
        await broker.until(lambda: len(broker.named("RDY")) == 2)
        first.finish()
        deliver(broker, 1, 2, 3, attempts=2)
        for number in (1, 2, 3):
            message = await anext(consumer)
            assert (message.body, message.attempts) == (b"body %d" % number, 2)
            message.finish()
        await broker.until(lambda: len(broker.named("FIN")) == 3)


async def test_messages_that_waited_too_long_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    handled: list[bytes] = []
    go = asyncio.Event()

    async def handle(message: Message) -> None:
        handled.append(message.body)
        await go.wait()

    async with (
        ScriptedBroker(msg_timeout=100) as broker,
        Consumer("t", "c", broker.address) as consumer,
    ):
        running = asyncio.create_task(consumer.run(handle))
        deliver(broker, 1, 2)
        await asyncio.sleep(0.01)
        deliver(broker, 3)
        await asyncio.sleep(0.2)
        go.set()
        deliver(broker, 2, 3, attempts=2)
        await broker.until(lambda: len(broker.named("FIN")) == 3)
        assert consumer.counts.expired == 2
        consumer.stop()
        await running
    assert handled == [b"body 1", b"body 2", b"body 3"]
    assert "lower max_in_flight" in caplog.text


async def test_answers_that_came_too_late_are_counted_and_harm_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(command: Command) -> bool:
        if command.name == "FIN":
            command.peer.fail(
                b"E_FIN_FAILED FIN %b failed not in flight" % command.words[1].encode()
            )
        return False

    async with ScriptedBroker(script) as broker, Consumer("t", "c", broker.address) as consumer:
        deliver(broker, *range(5))
        for _ in range(5):
            (await anext(consumer)).finish()
        deliver(broker, 9)
        (await anext(consumer)).finish()
        await eventually(lambda: consumer.counts.late == 6)
        assert len(broker.peers) == 1
    assert caplog.text.count("too late") == 1, "not a line for each of thousands"


async def test_a_channel_that_the_broker_will_not_have_is_told() -> None:
    async def script(command: Command) -> bool:
        if command.name == "SUB":
            command.peer.fail(b"E_BAD_CHANNEL SUB channel name is not valid")
            return True
        return False

    async with ScriptedBroker(script) as broker:
        with pytest.raises(SubscribeRefused, match="E_BAD_CHANNEL"):
            async with Consumer("t", "c", broker.address):
                pass
    with pytest.raises(InvalidName, match="channel"):
        Consumer("t", "c c", broker.address)


async def test_a_refusal_when_connecting_again_ends_what_waits_for_messages() -> None:
    refuse = False

    async def script(command: Command) -> bool:
        if command.name == "SUB" and refuse:
            command.peer.fail(b"E_BAD_TOPIC SUB topic name is not valid")
            return True
        return False

    async with (
        ScriptedBroker(script) as broker,
        Consumer("t", "c", broker.address, backoff=FAST) as consumer,
    ):
        refuse = True
        running = asyncio.create_task(consumer.run(lambda _message: None, concurrency=2))
        await asyncio.sleep(0)
        broker.peers[0].hang_up()
        with pytest.raises(SubscribeRefused, match="E_BAD_TOPIC"):
            await running
        with pytest.raises(SubscribeRefused):
            await anext(consumer)
        with pytest.raises(SubscribeRefused):
            async for _ in consumer.batches():
                pass


async def test_a_channel_that_is_full_is_tried_again() -> None:
    async def script(command: Command) -> bool:
        if command.name == "SUB" and len(broker.named("SUB")) < 3:
            command.peer.fail(b"E_SUB_FAILED SUB failed too many channel consumers")
            return True
        return False

    async with ScriptedBroker(script) as broker:
        async with Consumer("t", "c", broker.address, backoff=FAST):
            await broker.until(lambda: broker.named("RDY"))
        assert len(broker.named("SUB")) == 3


async def test_stopping_ends_what_runs_once_the_handlers_are_done() -> None:
    go = asyncio.Event()

    async def handle(message: Message) -> None:
        consumer.stop()
        await go.wait()

    async with ScriptedBroker() as broker, Consumer("t", "c", broker.address) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=4))
        deliver(broker, 7)
        await broker.until(lambda: ready_counts(broker) == [200, 0])
        await asyncio.sleep(0.01)
        assert not running.done()
        go.set()
        await running
        assert [message async for message in consumer] == []
    assert answered(broker, "FIN") == [7]


async def test_closing_gives_back_what_was_not_handed_out() -> None:
    async with ScriptedBroker() as broker:
        async with Consumer("t", "c", broker.address) as consumer:
            deliver(broker, *range(6))
            (await anext(consumer)).finish()
            await anext(consumer)
            deliver(broker, *range(10, 13))
            await asyncio.sleep(0.02)
        assert answered(broker, "FIN") == [0]
        assert answered(broker, "REQ") == [2, 3, 4, 5, 10, 11, 12]
        assert all(each.words[2] == "0" for each in broker.named("REQ"))
        assert broker.names()[-1] == "CLS"
        assert consumer.counts.requeued == 7


async def test_closing_waits_for_handlers_but_not_for_ever() -> None:
    async def handle(message: Message) -> None:
        await asyncio.sleep(0.05 if message.body == b"body 1" else 60)

    async with ScriptedBroker() as broker:
        async with Consumer("t", "c", broker.address, close_timeout_s=0.3) as consumer:
            running = asyncio.create_task(consumer.run(handle, concurrency=2))
            deliver(broker, 1, 2)
            await asyncio.sleep(0.02)
        assert answered(broker, "FIN") == [1]
        assert answered(broker, "REQ") == [2], "its handler was cancelled"
        await asyncio.wait([running])


async def test_cancelling_requeues_what_is_being_handled() -> None:
    async def handle(_message: Message) -> None:
        await asyncio.sleep(60)

    async with ScriptedBroker() as broker, Consumer("t", "c", broker.address) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        deliver(broker, 1, 2)
        await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await broker.until(lambda: sorted(answered(broker, "REQ")) == [1, 2])


async def test_what_is_senseless_is_told() -> None:
    with pytest.raises(ValueError, match="max_in_flight=0"):
        Consumer("t", "c", "a:1", max_in_flight=0)
    consumer = Consumer("t", "c", "a:1")
    with pytest.raises(Closed, match="async with"):
        await consumer.run(print)
    with pytest.raises(Closed, match="async with"):
        await anext(consumer)
    async with ScriptedBroker() as broker, Consumer("t", "c", broker.address) as consumer:
        with pytest.raises(Closed, match="used once"):
            await consumer.__aenter__()
        with pytest.raises(ValueError, match="concurrency=0"):
            await consumer.run(print, concurrency=0)
        with pytest.raises(ValueError, match="max_messages=0"):
            await anext(consumer.batches(max_messages=0))


async def test_connections_take_turns_where_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("martlet.client.consumer.ROTATE_S", 0.02)
    async with (
        ScriptedBroker() as one,
        ScriptedBroker() as two,
        Consumer("t", "c", [one.address, two.address], max_in_flight=1),
    ):
        await eventually(lambda: {1, 0} == set(ready_counts(one)) == set(ready_counts(two)))
        await eventually(lambda: len(ready_counts(one)) > 4 and len(ready_counts(two)) > 4)
