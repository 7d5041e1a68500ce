"""The client with real brokers: Martlet's as a process, and nsqd where there is one."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.interop.asking import ask
from tests.interop.asking import until as until_answer
from tests.interop.client.kit import BOTH, take
from tests.polling import until

from martlet.client import (
    Backoff,
    Consumer,
    Identity,
    Limits,
    Message,
    Producer,
    PublishRefused,
)
from martlet.testing import BrokerProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]

FAST = Backoff(first_s=0.02, max_s=0.2)

Start = Callable[..., BrokerProcess]


@pytest.fixture(params=BOTH)
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts brokers, with arguments, that end with the test."""
    started: list[BrokerProcess] = []

    def start_one(*arguments: str) -> BrokerProcess:
        started.append(stack.enter_context(request.param(None, *arguments)))
        return started[-1]

    with ExitStack() as stack:
        yield start_one
        for broker in started:
            print(broker.log())


async def until_stats(broker: BrokerProcess, topic: str, **expected: int) -> None:
    """Wait until the broker reports these numbers for the topic's first channel."""

    def is_so() -> bool:
        (reported,) = ask(broker.http_address, f"/stats?format=json&topic={topic}")["topics"]
        stats = reported["channels"][0]
        return {name: stats[name] for name in expected} == expected

    await asyncio.to_thread(until_answer, is_so)


async def test_batches_arrive_and_are_finished(start: Start) -> None:
    pa = pytest.importorskip("pyarrow")
    broker = start()
    dice = random.Random(7)
    bodies = [dice.randbytes(dice.randint(1, 300)) for _ in range(6000)]
    bodies += [b"%0200d" % number for number in range(6000)]
    async with Producer(broker.tcp_address) as producer:
        await producer.publish_many("t", bodies)
    received: list[bytes] = []
    async with Consumer("t", "c", broker.tcp_address, max_in_flight=2000) as consumer:
        async for batch in consumer.batches():
            assert batch.arrow().equals(pa.array(batch.bodies, pa.binary()))
            received += batch.bodies
            await batch.finish()
            if len(received) >= len(bodies):
                break
        await until_stats(broker, "t", depth=0, in_flight_count=0, timeout_count=0)
    assert Counter(received) == Counter(bodies)


async def test_delays_are_kept(start: Start) -> None:
    broker = start()
    loop = asyncio.get_running_loop()
    async with (
        Consumer("t", "c", broker.tcp_address) as consumer,
        Producer(broker.tcp_address) as producer,
    ):
        began_s = loop.time()
        await producer.publish("t", b"deferred", defer_ms=400)
        await producer.publish("t", b"requeued")
        first = await anext(consumer)
        assert first.body == b"requeued"
        first.requeue(200, backoff=False)
        came_s = {}
        for _ in range(2):
            message = await anext(consumer)
            came_s[message.body, message.attempts] = loop.time() - began_s
            message.finish()
        assert came_s.keys() == {(b"requeued", 2), (b"deferred", 1)}
        assert came_s[b"requeued", 2] >= 0.2
        assert came_s[b"deferred", 1] >= 0.4


async def test_a_touched_message_is_not_delivered_again_and_a_forgotten_one_is(
    start: Start,
) -> None:
    broker = start()
    identity = Identity(message_timeout_ms=2000)
    async with (
        Consumer("t", "c", broker.tcp_address, identity=identity, auto_touch=False) as consumer,
        Producer(broker.tcp_address) as producer,
    ):
        await producer.publish("t", b"long work")
        message = await anext(consumer)
        for _ in range(3):
            await asyncio.sleep(0.8)
            message.touch()
        message.finish()
        await until_stats(broker, "t", depth=0, in_flight_count=0, timeout_count=0)
        await producer.publish("t", b"forgotten")
        forgotten = await anext(consumer)
        again = await anext(consumer)
        assert (again.body, again.attempts) == (b"forgotten", 2)
        again.finish()
        forgotten.finish()
        await until(lambda: consumer.counts.late == 1)  # The refusal may come after the stats.
        await until_stats(broker, "t", depth=0, in_flight_count=0, timeout_count=1)


async def test_a_message_handled_for_long_is_not_delivered_again(start: Start) -> None:
    """In a coroutine, in a thread, in a batch and by iterating, for longer than the timeout."""
    broker = start()
    identity = Identity(message_timeout_ms=2000)
    consumers = [
        Consumer(f"t{number}", "c", broker.tcp_address, identity=identity) for number in range(4)
    ]

    async def handle(_message: Message) -> None:
        await asyncio.sleep(2.5)

    async with contextlib.AsyncExitStack() as stack:
        for consumer in consumers:
            await stack.enter_async_context(consumer)
        async with Producer(broker.tcp_address) as producer:
            for number in range(4):
                await producer.publish(f"t{number}", b"long work")
        running = [
            asyncio.create_task(consumers[0].run(handle)),
            asyncio.create_task(consumers[1].run(lambda _message: time.sleep(2.5), on="threads")),
        ]
        batch = await anext(consumers[2].batches())
        message = await anext(consumers[3])
        await asyncio.sleep(2.5)
        await batch.finish()
        message.finish()
        for number, consumer in enumerate(consumers):
            counts = {"depth": 0, "in_flight_count": 0, "timeout_count": 0, "requeue_count": 0}
            await until_stats(broker, f"t{number}", **counts)
            consumer.stop()
            assert (consumer.counts.received, consumer.counts.late) == (1, 0)
        await asyncio.gather(*running)


async def test_the_broker_refuses_one_message_and_takes_the_others(start: Start) -> None:
    broker = start("--max-msg-size=1000")
    limits = Limits(max_message_bytes=5000)
    async with Producer(broker.tcp_address, limits=limits, backoff=FAST) as producer:
        sizes = [100] * 5 + [2000] + [100] * 5
        outcomes = await asyncio.gather(
            *(producer.publish("t", b"x" * size) for size in sizes), return_exceptions=True
        )
        assert [outcome is None for outcome in outcomes] == [size == 100 for size in sizes]
        refused = outcomes[5]
        assert isinstance(refused, PublishRefused)
        assert refused.code == "E_BAD_MESSAGE"
        assert "2000 > 1000" in refused.text
        async with Consumer("t", "c", broker.tcp_address) as consumer:
            assert len(await take(consumer, 10)) == 10


async def test_messages_not_handed_out_go_to_another_consumer_at_once(start: Start) -> None:
    broker = start()
    async with Producer(broker.tcp_address) as producer:
        await producer.publish_many("t", [b"%d" % number for number in range(50)])
    async with Consumer("t", "c", broker.tcp_address) as consumer:
        await take(consumer, 10)
        await until_stats(broker, "t", in_flight_count=40)
    async with Consumer("t", "c", broker.tcp_address) as consumer:
        async with asyncio.timeout(50):
            assert len(await take(consumer, 40)) == 40
        await until_stats(broker, "t", depth=0, in_flight_count=0)


async def test_nothing_answered_is_lost_when_the_broker_is_killed(
    martlet_broker_process: BrokerProcess,
) -> None:
    """Producers and a consumer go on by themselves over three kills."""
    broker = martlet_broker_process
    published: set[bytes] = set()
    received: Counter[bytes] = Counter()
    done = asyncio.Event()

    async def publish(producer: Producer, name: int) -> None:
        number = 0
        while not done.is_set():
            bodies = [b"%d-%d" % (name, number + more) for more in range(50)]
            if name == 0:
                for body in bodies[:5]:
                    await producer.publish("t", body)
                published.update(bodies[:5])
            else:
                await producer.publish_many("t", bodies)
                published.update(bodies)
            number += 50
            await asyncio.sleep(0)

    async def handle(message: Message) -> None:
        received[message.body] += 1

    async def kill() -> None:
        for _ in range(3):
            await asyncio.sleep(0.4)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.restart)
        done.set()

    async with (
        Producer(broker.tcp_address, backoff=FAST) as one,
        Producer(broker.tcp_address, backoff=FAST) as two,
        Consumer("t", "c", broker.tcp_address, backoff=FAST, max_in_flight=500) as consumer,
    ):
        async with asyncio.timeout(60):
            running = asyncio.create_task(consumer.run(handle, concurrency=3))
            await asyncio.gather(publish(one, 0), publish(two, 1), kill())
            while published - received.keys():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        consumer.stop()
        await running
        assert len(published) > 500
        assert consumer.counts.received == received.total()


def test_the_client_runs_on_uvloop(martlet_broker_process: BrokerProcess) -> None:
    uvloop = pytest.importorskip("uvloop")
    address = martlet_broker_process.tcp_address

    async def main() -> int:
        handled = 0

        async def handle(_message: Message) -> None:
            nonlocal handled
            handled += 1
            if handled == 5000:
                consumer.stop()

        async with (
            Producer(address) as producer,
            Consumer("t", "c", address, max_in_flight=1000) as consumer,
        ):
            await producer.publish_many("t", [b"x" * 100] * 5000)
            await asyncio.wait_for(consumer.run(handle, concurrency=4), 50)
            await producer.publish("t", b"last")
        return handled

    assert uvloop.run(main()) == 5000
