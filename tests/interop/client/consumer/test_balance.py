"""Brokers and consumers come and go: all is handled, none starves, and not too much comes."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from tests.interop.client.consumer.ready_proxy import ReadyProxy
from tests.interop.client.kit import BOTH
from tests.interop.nsqd_process import NsqdProcess
from tests.polling import until
from tests.unit.client.consumer.consuming import running

from martlet.client import Backoff, Consumer, FailureBackoff, Message, Producer, Rotation
from martlet.testing import BrokerProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]

FAST = Backoff(first_s=0.02, max_s=0.1)
TURNS = Rotation(
    low_rdy_idle_timeout_s=0.05, low_rdy_timeout_s=0.15, rdy_redistribute_interval_s=0.03
)
Handler = Callable[[Message], Awaitable[None]]


@pytest.fixture(scope="module", params=BOTH)
def brokers(request: pytest.FixtureRequest) -> Iterator[list[BrokerProcess]]:
    """Three brokers, started at the same time; each test has a topic of its own."""
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        made = [request.param() for _ in range(3)]
        for broker in made:
            stack.callback(broker.close)
        list(pool.map(lambda broker: broker.start(), made))
        yield made


async def publish(broker: BrokerProcess, topic: str, bodies: list[bytes]) -> None:
    async with Producer(broker.tcp_address, backoff=FAST) as producer:
        await producer.publish_many(topic, bodies)


def consumer_of(proxy: ReadyProxy, topic: str, max_in_flight: int) -> Consumer:
    return Consumer(
        topic,
        "c",
        proxy.addresses,
        max_in_flight=max_in_flight,
        rotation=TURNS,
        failure_backoff=FailureBackoff(multiplier_s=0.01, max_s=0.05),
        retry=Backoff(first_s=0.02, max_s=0.1),
        backoff=FAST,
    )


async def test_three_brokers_share_one_message_in_flight(brokers: list[BrokerProcess]) -> None:
    """Two of them are never empty; the third has a message now and then, and does not starve."""
    handled: Counter[bytes] = Counter()
    addresses = [broker.tcp_address for broker in brokers]

    async def handle(message: Message) -> None:
        handled[message.body] += 1
        await asyncio.sleep(0.001)

    await asyncio.gather(*(publish(broker, "turns", [b"busy"] * 20_000) for broker in brokers[:2]))
    async with (
        ReadyProxy(addresses, 1) as proxy,
        consumer_of(proxy, "turns", 1) as consumer,
        running(consumer, handle),
    ):
        for number in range(4):
            await publish(brokers[2], "turns", [b"rare %d" % number] * 3)
            await until(lambda: handled[b"rare %d" % number] == 3)  # noqa: B023
        await until(lambda: min(proxy.rises.values()) >= 3)
        # A turn has a time: on a busy machine a broker needs more of them for its messages.
        await until(lambda: min(stats.finished for stats in consumer.stats.connections) >= 12)
    assert proxy.highest == 1


async def test_brokers_and_consumers_come_and_go_and_all_is_handled(
    brokers: list[BrokerProcess],
) -> None:
    """Two brokers end and come back under load, some messages fail, consumers change."""
    dice = random.Random(5)
    published: set[bytes] = set()
    handled: Counter[bytes] = Counter()
    failed: set[bytes] = set()
    addresses = [broker.tcp_address for broker in brokers]
    is_over = False

    async def handle(message: Message) -> None:
        if dice.random() < 0.02 and message.body not in failed:
            failed.add(message.body)
            raise RuntimeError("not now")
        if dice.random() < 0.2:
            await asyncio.sleep(0.002)
        handled[message.body] += 1

    async def load(number: int) -> None:
        async with Producer(addresses[number], backoff=FAST) as producer:
            batch = 0
            while not is_over:
                bodies = [b"%d-%d-%d" % (number, batch, index) for index in range(10)]
                await producer.publish_many("change", bodies)
                published.update(bodies)
                batch += 1
                await asyncio.sleep(0.05)

    async def consume(max_in_flight: int, stop: asyncio.Event) -> int:
        async with (
            ReadyProxy(addresses, max_in_flight) as proxy,
            consumer_of(proxy, "change", max_in_flight) as consumer,
            running(consumer, handle, concurrency=4),
        ):
            await stop.wait()
        assert not proxy.too_many
        return proxy.highest

    async with asyncio.TaskGroup() as group:
        loads = [group.create_task(load(number)) for number in range(3)]
        steady, brief, last = asyncio.Event(), asyncio.Event(), asyncio.Event()
        consumers = [group.create_task(consume(10, steady)), group.create_task(consume(2, brief))]
        await asyncio.sleep(0.15)
        await asyncio.to_thread(brokers[0].restart)
        if not isinstance(brokers[1], NsqdProcess):  # It loses messages then.
            await asyncio.to_thread(brokers[1].kill)
        await asyncio.to_thread(brokers[1].restart)
        brief.set()
        consumers.append(group.create_task(consume(2, last)))
        await asyncio.sleep(0.2)
        is_over = True
        await asyncio.gather(*loads)
        steady.set()  # The rest is for two in flight over three brokers.
        await until(lambda: published <= handled.keys())
        last.set()
    assert [await consumer for consumer in consumers] == [10, 2, 2]
    assert failed
    assert {body.split(b"-")[0] for body in published} == {b"0", b"1", b"2"}
