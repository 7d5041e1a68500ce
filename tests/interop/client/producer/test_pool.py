"""A producer over real brokers that are killed, stopped, come and go; an nsqd among them."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from tests.interop.lookup_process import LookupProcess
from tests.interop.nsqd_process import NSQD, NsqdProcess
from tests.polling import until

from martlet.client import Backoff, Consumer, Producer
from martlet.testing import Broker, BrokerProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]

FAST = Backoff(first_s=0.02, max_s=0.2)


@pytest.fixture(scope="module")
def three() -> Iterator[list[BrokerProcess]]:
    """Three brokers, of which the last is an nsqd where there is one."""
    with ExitStack() as stack:
        kinds = [BrokerProcess, BrokerProcess, BrokerProcess if NSQD is None else NsqdProcess]
        yield [stack.enter_context(kind()) for kind in kinds]


@pytest.fixture
def brokers(three: list[BrokerProcess]) -> list[BrokerProcess]:
    """The three, all of them running again whatever the last test did."""
    for broker in three:
        if not broker.is_running:
            broker.start()
    return three


async def connected(producer: Producer, count: int) -> None:
    await until(lambda: producer.stats.connected == count)


async def read(topic: str, count: int, *brokers: BrokerProcess | Broker) -> list[bytes]:
    """Return the brokers' messages of the topic, repeated ones included."""
    received: list[bytes] = []
    addresses = [broker.tcp_address for broker in brokers]
    async with (
        asyncio.timeout(50),
        Consumer(topic, "c", addresses, max_in_flight=3000) as consumer,
    ):
        async for batch in consumer.batches():
            received += batch.bodies
            await batch.finish()
            if len(set(received)) >= count:
                break
    return received


async def test_published_messages_are_stored_though_one_of_three_brokers_is_killed(
    brokers: list[BrokerProcess],
) -> None:
    """The ledger: each publish that returned, or whose future has its result."""
    ledger: set[bytes] = set()
    is_over = False

    async def publish(producer: Producer, name: int) -> None:
        number = 0
        while not is_over:
            bodies = [b"%d-%d" % (name, number + more) for more in range(20)]
            number += 20
            if name % 3 == 0:
                await producer.publish_many("ledger", bodies)
            elif name % 3 == 1:
                await asyncio.gather(*(producer.publish("ledger", body) for body in bodies))
            else:
                await asyncio.gather(*(producer.submit("ledger", body) for body in bodies))
            ledger.update(bodies)

    async with Producer(
        [broker.tcp_address for broker in brokers], backoff=FAST, answer_timeout_s=2
    ) as producer:
        await connected(producer, 3)
        publishing = [asyncio.create_task(publish(producer, name)) for name in range(9)]
        await asyncio.sleep(0.3)
        await asyncio.to_thread(brokers[0].kill)
        before = len(ledger)
        await until(lambda: len(ledger) >= before + 2000)
        await asyncio.to_thread(brokers[0].restart)
        await connected(producer, 3)
        is_over = True
        async with asyncio.timeout(50):
            await asyncio.gather(*publishing)
        stats = producer.stats
        assert (stats.pending_messages, stats.timed_out) == (0, 0)
        assert all(broker.stored > 100 for broker in stats.brokers), stats
        assert stats.stored == len(ledger)

    assert set(await read("ledger", len(ledger), *brokers)) >= ledger


async def test_brokers_that_lookup_daemons_know_come_and_go(tmp_path: Path) -> None:
    numbers: list[int] = []
    is_over = False

    async def publish(producer: Producer) -> None:
        while not is_over:
            await producer.publish("t", b"%d" % len(numbers))
            numbers.append(len(numbers))

    def listed() -> set[str]:
        return {broker.address for broker in producer.stats.brokers}

    with LookupProcess() as lookup:
        registers = {
            "lookupd_tcp_addresses": (lookup.tcp_address,),
            "broadcast_address": "127.0.0.1",
        }
        producer = Producer(lookup=lookup.http_address, lookup_poll_s=0.3, backoff=FAST)
        entering = asyncio.create_task(producer.__aenter__())  # It waits until there is a broker.
        async with asyncio.timeout(50), AsyncExitStack() as stack:
            async with Broker(tmp_path / "one", **registers):
                await entering
                stack.push_async_exit(producer)
                publishing = asyncio.create_task(publish(producer))
                two = await stack.enter_async_context(Broker(tmp_path / "two", **registers))
                await connected(producer, 2)
                at = len(numbers)
                await until(lambda: len(numbers) >= at + 50)
            at = len(numbers)
            await until(lambda: listed() == {two.tcp_address} and len(numbers) >= at + 50)
            is_over = True
            await publishing
            one = await stack.enter_async_context(Broker(tmp_path / "one"))
            received = await read("t", producer.stats.brokers[0].stored, two)
            received += await read("t", len(numbers) - len(set(received)), one)
            assert {int(body) for body in received} == set(numbers)


async def test_messages_that_a_full_disk_refuses_go_to_another_broker() -> None:
    bodies = [b"%d-%s" % (number, b"x" * 1000) for number in range(8000)]
    async with (
        Broker(max_bytes_per_file=1 << 20, max_disk_bytes=4 << 20) as small,
        Broker() as big,
        Producer([small.tcp_address, big.tcp_address]) as producer,
    ):
        await connected(producer, 2)
        for start in range(0, len(bodies), 100):
            await producer.publish_many("t", bodies[start : start + 100])
        full, other = producer.stats.brokers
        assert full.refused > 0
        assert full.stored > 500
        assert full.stored + other.stored == len(bodies)
        received = await read("t", full.stored, small) + await read("t", other.stored, big)
        assert sorted(received) == sorted(bodies)
