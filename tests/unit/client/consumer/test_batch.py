"""Batches: many messages at once, answered in one write."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
from tests.unit.client.consumer.consuming import consuming
from tests.unit.client.scripted_broker import ScriptedBroker, message_frame

from martlet.client import AlreadyAnswered, Batch, Consumer

SAME = [b"%04d" % number for number in range(100)]
MIXED = [b"x" * (number % 7 + 1) for number in range(100)]


def deliver(broker: ScriptedBroker, bodies: list[bytes]) -> None:
    broker.peers[-1].send(
        b"".join(
            message_frame(body, number=number, attempts=number % 3 + 1, stamp=number * 10**9)
            for number, body in enumerate(bodies)
        )
    )


async def one_batch(consumer: Consumer) -> Batch:
    return await anext(consumer.batches(max_wait_ms=500, max_messages=100))


@pytest.mark.parametrize("bodies", [SAME, MIXED], ids=["same size", "mixed sizes"])
async def test_a_batch_has_the_sent_messages(bodies: list[bytes]) -> None:
    pa = pytest.importorskip("pyarrow")
    async with consuming() as (broker, consumer):
        deliver(broker, bodies)
        batch = await one_batch(consumer)
        assert len(batch) == batch.count == batch.unanswered_count == 100
        assert batch.bodies == bodies
        assert batch.ids.tolist() == [b"%016x" % number for number in range(100)]
        assert batch.attempts.tolist() == [number % 3 + 1 for number in range(100)]
        assert batch.attempts.dtype == np.uint16
        assert batch.timestamps_ns.tolist() == [number * 10**9 for number in range(100)]
        assert batch.timestamps_ns.dtype == np.int64
        array = batch.arrow()
        assert array.type == pa.binary()
        assert array.to_pylist() == bodies
        array.validate(full=True)


@pytest.mark.parametrize("bodies", [SAME, MIXED], ids=["same size", "mixed sizes"])
async def test_a_batch_is_answered_in_parts(bodies: list[bytes]) -> None:
    async with consuming() as (broker, consumer):
        deliver(broker, bodies)
        batch = await one_batch(consumer)
        await batch.requeue(2500, where=batch.attempts == 3)
        await batch.finish(where=[0, 1])
        await batch.touch()
        await batch.finish(where=slice(3, 5))
        assert batch.unanswered_count == 100 - 33 - 4
        for where in ([0], slice(0, 3)):
            with pytest.raises(AlreadyAnswered, match="some of these"):
                await batch.finish(where=where)
        await batch.finish()
        assert batch.unanswered_count == 0
        with pytest.raises(AlreadyAnswered, match="all were"):
            await batch.finish()
        with pytest.raises(AlreadyAnswered):
            await batch.requeue()
        with pytest.raises(ValueError, match="delay_ms=-5"):
            await batch.requeue(-5)
        await broker.until(lambda: len(broker.named("FIN", "REQ")) == 100)
        counts = consumer.counts
        assert (counts.received, counts.finished, counts.requeued) == (100, 67, 33)
    requeued = set(broker.answered("REQ"))
    assert requeued == set(range(2, 100, 3))
    assert {command.words[2] for command in broker.named("REQ")} == {"2500"}
    finished = broker.answered("FIN")
    assert sorted(finished) == sorted(set(range(100)) - requeued)
    assert finished[:4] == [0, 1, 3, 4]
    assert len(broker.named("TOUCH")) == 100 - 33 - 2


async def test_batches_are_no_larger_than_asked_for() -> None:
    async with consuming() as (broker, consumer):
        deliver(broker, SAME)
        received: list[bytes] = []
        sizes: list[int] = []
        async for batch in consumer.batches(max_messages=30):
            sizes.append(batch.count)
            received += batch.bodies
            await batch.finish()
            if len(received) == 100:
                break
        assert received == SAME
        assert max(sizes) <= 30
        await broker.until(lambda: len(broker.named("FIN")) == 100)


async def test_a_batch_may_wait_until_it_is_full() -> None:
    async with consuming() as (broker, consumer):

        async def trickle() -> None:
            for body in SAME[:10]:
                broker.peers[0].send(message_frame(body))
                await asyncio.sleep(0.005)

        trickling = asyncio.create_task(trickle())
        batches = consumer.batches(max_messages=10, max_wait_ms=10_000)
        assert (await anext(batches)).bodies == SAME[:10]
        await trickling
        hurried = consumer.batches(max_messages=10, max_wait_ms=30)
        broker.peers[0].send(message_frame(b"alone"))
        assert (await anext(hurried)).bodies == [b"alone"]


async def test_one_batch_is_of_one_broker() -> None:
    async with (
        ScriptedBroker() as one,
        ScriptedBroker() as two,
        Consumer("t", "c", [one.address, two.address], max_in_flight=400) as consumer,
    ):
        deliver(one, SAME)
        deliver(two, MIXED)
        await asyncio.sleep(0.05)
        received: list[list[bytes]] = []
        async for batch in consumer.batches():
            await batch.finish()
            received.append(batch.bodies)
            if sum(map(len, received)) == 200:
                break
        assert sorted(received) == sorted([SAME, MIXED])
        await one.until(lambda: len(one.named("FIN")) == 100)
        await two.until(lambda: len(two.named("FIN")) == 100)


async def test_single_messages_and_batches_may_take_turns() -> None:
    async with consuming() as (broker, consumer):
        deliver(broker, SAME)
        await asyncio.sleep(0.02)
        assert (await anext(consumer)).body == SAME[0]
        batches = consumer.batches(max_messages=10)
        assert (await anext(batches)).bodies == SAME[1:11]
        assert (await anext(consumer)).body == SAME[11]
        assert (await anext(batches)).bodies == SAME[12:22]


async def test_batches_end_when_the_consumer_is_stopped() -> None:
    async with consuming() as (broker, consumer):

        async def count(batches: AsyncIterator[Batch]) -> int:
            return sum([batch.count async for batch in batches])

        counting = asyncio.create_task(count(consumer.batches()))
        deliver(broker, SAME[:1])
        await asyncio.sleep(0.02)
        consumer.stop()
        assert await counting == 1
