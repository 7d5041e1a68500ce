"""The consumer and its connections, against brokers that follow a script."""

import asyncio
import time

import pytest
from tests.polling import until
from tests.unit.client.consumer.consuming import consuming
from tests.unit.client.scripted_broker import Command, ScriptedBroker, at, message_frame

from martlet.client import (
    AlreadyAnswered,
    Backoff,
    Closed,
    Consumer,
    Identity,
    Message,
    Rotation,
    SubscribeRefused,
)
from martlet.client.transport import dialer

FAST = Backoff(first_s=0.01, max_s=0.05)


async def test_a_consumer_subscribes_and_asks_for_messages() -> None:
    async with consuming(max_in_flight=7) as (broker, consumer):
        assert consumer.connected_count == 1
        await broker.until(lambda: broker.named("RDY"))
        assert broker.commands[0].words == ["SUB", "t", "c"]
        assert broker.ready_counts() == [7]


async def test_a_lost_connection_hastens_those_to_other_addresses() -> None:
    backoff = Backoff(first_s=0.01, max_s=1000, jitter=0)
    async with asyncio.timeout(50), ScriptedBroker() as one, ScriptedBroker() as two:
        await two.go_away()
        addresses = [one.address, two.address]
        async with Consumer("t", "c", addresses, backoff=backoff) as consumer:
            dialer = consumer._brokers.sessions[1]._dialer
            dialer._failures = 100
            await until(lambda: dialer._failures > 100)
            await two.listen()
            await one.go_away()
            await two.until(lambda: two.named("RDY"))


async def test_messages_are_iterated_and_finished_by_the_application() -> None:
    async with consuming() as (broker, consumer):
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
        broker.deliver(2)
        async for following in consumer:
            following.requeue(1500, backoff=False)
            break
        with pytest.raises(ValueError, match="delay_ms=-1"):
            Message(None, 0, 1, b"", b"").requeue(-1)
        await broker.until(lambda: broker.named("REQ"))
        counts = consumer.counts
        assert (counts.received, counts.finished, counts.requeued) == (2, 1, 1)
    names = [command.name for command in broker.commands]
    assert names == ["SUB", "RDY", "TOUCH", "FIN", "REQ", "RDY", "CLS"]
    assert broker.named("REQ")[0].words[2] == "1500"


async def test_a_broker_that_falls_silent_is_left_for_a_new_connection() -> None:
    identity = Identity(heartbeat_interval_ms=1000)
    async with consuming(identity=identity, backoff=FAST) as (broker, _):
        assert broker.identities[0]["heartbeat_interval"] == 1000
        await asyncio.sleep(1.5)
        broker.peers[0].answer(b"_heartbeat_")
        await asyncio.sleep(1.7)
        assert len(broker.peers) == 1, "the heartbeat was a sign of life"
        await broker.until(lambda: len(broker.named("SUB")) == 2)


async def test_a_subscribe_that_is_not_answered_is_tried_on_a_new_connection() -> None:
    broker = ScriptedBroker(at("SUB", act=lambda peer: peer.answer(b"_heartbeat_"), times=1))
    async with consuming(broker, connect_timeout_s=0.2, backoff=FAST) as (_, consumer):
        assert "no answer to SUB within 0.2 s" in consumer.stats.connections[0].last_error
        await until(lambda: consumer.connected_count == 1)
        assert len(broker.peers) == 2


async def test_an_idle_connection_that_stood_for_a_while_is_made_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialer, "STEADY_HEARTBEATS", 0.05)
    never = Backoff(first_s=600, max_s=600, jitter=0)
    identity = Identity(heartbeat_interval_ms=1000)
    async with consuming(identity=identity, backoff=never) as (broker, consumer):
        for count in (1, 2, 3):
            await broker.until(lambda: len(broker.named("RDY")) == count)  # noqa: B023
            await asyncio.sleep(0.06)
            broker.peers[-1].hang_up()
        await broker.until(lambda: len(broker.named("RDY")) == 4)
        broker.peers[-1].hang_up()
        await until(lambda: consumer.connected_count == 0)
        await asyncio.sleep(0.02)
        assert len(broker.peers) == 4, "this one did not stand for long"


async def test_handlers_that_block_the_loop_are_not_taken_for_a_silent_broker() -> None:
    identity = Identity(heartbeat_interval_ms=1000)
    async with consuming(identity=identity, backoff=FAST) as (broker, consumer):
        broker.deliver(1)
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
        brokers = (one, two, three)
        addresses = [broker.address for broker in brokers]
        async with Consumer("t", "c", addresses, max_in_flight=9, backoff=FAST) as consumer:

            def last() -> list[int]:
                return [count for broker in brokers for count in broker.ready_counts()[-1:]]

            await until(lambda: last() == [3, 3, 3])
            await two.go_away()
            await until(lambda: sorted((last()[0], last()[2])) == [4, 5])
            assert consumer.connected_count == 2
            await two.listen()
            await until(lambda: len(two.named("SUB")) == 2 and last() == [3, 3, 3])


async def test_a_ready_count_is_never_above_the_broker_s_limit() -> None:
    async with consuming(ScriptedBroker(max_rdy_count=50), max_in_flight=1000) as (broker, _):
        await broker.until(lambda: broker.ready_counts() == [50])


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
    async with consuming(backoff=FAST) as (broker, consumer):
        broker.deliver(1, 2, 3)
        first = await anext(consumer)
        assert first.body == b"body 1"
        broker.peers[0].hang_up()
        await broker.until(lambda: len(broker.named("RDY")) == 2)
        first.finish()
        broker.deliver(1, 2, 3, attempts=2)
        for number in (1, 2, 3):
            message = await anext(consumer)
            assert (message.body, message.attempts) == (b"body %d" % number, 2)
            message.finish()
        await broker.until(lambda: len(broker.named("FIN")) == 3)


async def test_answers_that_came_too_late_are_counted_and_harm_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(command: Command) -> bool:
        if command.name == "FIN":
            command.peer.fail(
                b"E_FIN_FAILED FIN %b failed not in flight" % command.words[1].encode()
            )
        return False

    async with consuming(ScriptedBroker(script)) as (broker, consumer):
        broker.deliver(*range(5))
        for _ in range(5):
            (await anext(consumer)).finish()
        broker.deliver(9)
        (await anext(consumer)).finish()
        await until(lambda: consumer.counts.late == 6)
        assert len(broker.peers) == 1
    assert caplog.text.count("too late") == 1, "not a line for each of thousands"


async def test_a_channel_name_that_the_broker_refuses_is_reported() -> None:
    refuse = at("SUB", act=lambda peer: peer.fail(b"E_BAD_CHANNEL SUB channel name is not valid"))
    with pytest.raises(SubscribeRefused, match="E_BAD_CHANNEL"):
        async with consuming(ScriptedBroker(refuse)):
            pass


async def test_a_refusal_at_reconnect_ends_waiting_calls() -> None:
    async with consuming(backoff=FAST) as (broker, consumer):
        refusal = b"E_BAD_TOPIC SUB topic name is not valid"
        broker.script = at("SUB", act=lambda peer: peer.fail(refusal))
        running = asyncio.create_task(consumer.run(lambda _message: None, concurrency=2))
        await asyncio.sleep(0)
        broker.peers[0].hang_up()
        for waiting in (running, anext(consumer), anext(consumer.batches())):
            with pytest.raises(SubscribeRefused, match="E_BAD_TOPIC"):
                await waiting


async def test_a_channel_that_is_full_is_tried_again() -> None:
    refusal = b"E_SUB_FAILED SUB failed too many channel consumers"
    full = ScriptedBroker(at("SUB", act=lambda peer: peer.fail(refusal), times=2))
    async with consuming(full, backoff=FAST) as (broker, _):
        await broker.until(lambda: broker.named("RDY"))
        assert len(broker.named("SUB")) == 3


async def test_a_consumer_is_used_in_its_block_and_once() -> None:
    consumer = Consumer("t", "c", "a:1")
    for call in (consumer.run(print), anext(consumer)):
        with pytest.raises(Closed, match="async with"):
            await call
    async with consuming() as (_, consumer):
        with pytest.raises(Closed, match="used once"):
            await consumer.__aenter__()
        with pytest.raises(ValueError, match="concurrency=0"):
            await consumer.run(print, concurrency=0)
        with pytest.raises(ValueError, match="max_messages=0"):
            await anext(consumer.batches(max_messages=0))


async def test_connections_take_turns_where_there_are_too_many() -> None:
    rotation = Rotation(
        low_rdy_idle_timeout_s=0.01, low_rdy_timeout_s=0.5, rdy_redistribute_interval_s=0.02
    )
    async with (
        ScriptedBroker() as one,
        ScriptedBroker() as two,
        Consumer("t", "c", [one.address, two.address], max_in_flight=1, rotation=rotation),
    ):
        await until(lambda: {1, 0} == set(one.ready_counts()) == set(two.ready_counts()))
        await until(lambda: len(one.ready_counts()) > 4 and len(two.ready_counts()) > 4)
