"""Limits of the rate, of consumers and of channels, with real brokers."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Generator
from contextlib import closing
from typing import Any, cast

import pytest
from tests import brokers
from tests.crash.wire import channels_of

from martlet.client import (
    Consumer,
    Message,
    MessageView,
    Producer,
    PullConsumer,
    PulledMessage,
    SharedRate,
    sync,
)
from martlet.client.admin.admin import Admin
from martlet.testing import BrokerProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]

RATE_PER_S, BURST, COUNT = 100, 5, 25
LIMITED: dict[str, Any] = {"rate_per_s": RATE_PER_S, "rate_burst": BURST}
BODIES = [b"%d" % n for n in range(COUNT)]


broker = brokers.process()


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """A topic with messages."""
    name = f"t{next(_numbers)}"
    with sync.Producer(broker.tcp_address) as producer:
        producer.publish_many(name, BODIES)
    return name


_numbers = itertools.count()


class Times:
    """Notes when each message was handed out, and checks the rate."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.at_s: list[float] = []
        self.all_there = threading.Event()

    def note(self, *messages: object) -> bool:
        """Note messages; return whether all are there."""
        self.at_s += [time.monotonic()] * len(messages)
        if len(self.at_s) >= COUNT:
            self.all_there.set()
        return len(self.at_s) >= COUNT

    def check(self, rate_per_s: float = RATE_PER_S, burst: int = BURST) -> None:
        assert len(self.at_s) == COUNT
        for number, at_s in enumerate(self.at_s, 1):
            assert number <= burst + rate_per_s * (at_s - self.began_s) + 1e-3


async def test_a_consumer_that_iterates(broker: BrokerProcess, topic: str) -> None:
    times = Times()
    async with Consumer(topic, "c", broker.tcp_address, **LIMITED) as consumer:
        async for message in consumer:
            message.finish()
            if times.note(message):
                break
    times.check()


@pytest.mark.parametrize("counts_failures", [False, True])
@pytest.mark.parametrize("concurrency", [1, 8])
async def test_a_handler(
    broker: BrokerProcess, topic: str, concurrency: int, counts_failures: bool
) -> None:
    if counts_failures:
        async with Admin(broker.http_address) as admin:
            await admin.channels.create(topic, "c")
            await admin.channels.configure(topic, "c", max_attempts=5)
    consumer = Consumer(topic, "c", broker.tcp_address, **LIMITED)
    await _consume(consumer, concurrency=concurrency)


async def test_batches(broker: BrokerProcess, topic: str) -> None:
    times = Times()
    async with Consumer(topic, "c", broker.tcp_address, **LIMITED) as consumer:
        async for batch in consumer.batches():
            assert len(batch) <= BURST
            is_last = times.note(*batch.bodies)
            await batch.finish()
            if is_last:
                break
    times.check()


async def test_consumers_share_a_rate(broker: BrokerProcess, topic: str) -> None:
    rate = SharedRate(RATE_PER_S, BURST)
    consumers = [Consumer(topic, "c", broker.tcp_address, rate_per_s=rate) for _ in range(3)]
    await _consume(*consumers, concurrency=2)


async def test_the_rate_changes(broker: BrokerProcess, topic: str) -> None:
    times = Times()
    async with Consumer(topic, "c", broker.tcp_address, rate_per_s=0.01) as consumer:
        async for message in consumer:
            message.finish()
            if len(times.at_s) == 0:
                asyncio.get_running_loop().call_later(0.2, consumer.change_rate, 0)
            if times.note(message):
                break
    assert times.at_s[1] - times.at_s[0] >= 0.19


def test_a_blocking_consumer_that_iterates(broker: BrokerProcess, topic: str) -> None:
    times = Times()
    with sync.Consumer(topic, "c", broker.tcp_address, **LIMITED) as consumer:
        for message in consumer:
            message.finish()
            if times.note(message):
                break
    times.check()


def test_a_blocking_handler(broker: BrokerProcess, topic: str) -> None:
    times = Times()
    with sync.Consumer(topic, "c", broker.tcp_address, **LIMITED) as consumer:

        def handle(message: MessageView) -> None:
            if times.note(message):
                consumer.stop()

        consumer.run(handle, concurrency=3)
    times.check()


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("is_awaited", [False, True])
async def test_a_pull_consumer(
    broker: BrokerProcess, topic: str, is_awaited: bool, concurrency: int
) -> None:
    times = Times()
    async with PullConsumer(topic, "g", broker.tcp_address, start="first", **LIMITED) as consumer:

        def handle(message: PulledMessage) -> Awaitable[object] | None:
            if times.note(message):
                consumer.stop()
            return asyncio.sleep(0) if is_awaited else None

        await consumer.run(handle, concurrency=concurrency)
    times.check()


def test_a_blocking_pull_consumer_with_batches(broker: BrokerProcess, topic: str) -> None:
    times = Times()
    with (
        sync.PullConsumer(topic, "g", broker.tcp_address, start="first", **LIMITED) as consumer,
        closing(cast("Generator[Any]", consumer.batches())) as batches,
    ):
        for batch in batches:
            assert len(batch) <= BURST
            if times.note(*batch.bodies):
                break
    times.check()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rate_per_s": -1}, "rate_per_s=-1: must be from 0.001 to 1,000,000,000; 0 stands"),
        ({"rate_per_s": float("nan")}, "rate_per_s=nan: must be"),
        ({"rate_per_s": 1, "rate_burst": -1}, "rate_burst=-1: must be a whole number from 0"),
        ({"rate_burst": 5}, "rate_burst=5 needs a rate_per_s"),
    ],
)
def test_bad_rates_are_refused(options: dict[str, float], text: str) -> None:
    for make in (Consumer, PullConsumer):
        with pytest.raises(ValueError, match=text.replace("(", r"\(")):
            make("t", "c", **options)  # type: ignore[arg-type]


async def _limited(broker: BrokerProcess, topic: str) -> None:
    async with Admin(broker.http_address) as admin:
        await admin.topics.create(topic)
        await admin.channels.create(topic, "c")
        await admin.channels.configure(topic, "c", **LIMITED)


async def _consume(*consumers: Consumer, concurrency: int = 1) -> None:
    """Have consumers handle all messages, and check the rate."""
    times = Times()

    async def handle(message: Message) -> None:
        if times.note(message):
            for consumer in consumers:
                consumer.stop()

    async def run(consumer: Consumer) -> None:
        async with consumer:
            await consumer.run(handle, concurrency=concurrency)

    await asyncio.gather(*map(run, consumers))
    times.check()


@pytest.mark.parametrize("one_at_a_time", [False, True])
async def test_a_limited_channel(broker: BrokerProcess, topic: str, one_at_a_time: bool) -> None:
    """Also where the compiled path would store and deliver each message."""
    name = f"{topic}.limited"
    async with Producer(broker.tcp_address) as producer:
        if not one_at_a_time:
            await producer.publish_many(name, BODIES)
        await _limited(broker, name)
        count = 1 if one_at_a_time else 2
        consumers = [Consumer(name, "c", broker.tcp_address) for _ in range(count)]
        running = asyncio.create_task(_consume(*consumers))
        for body in BODIES if one_at_a_time else ():
            await producer.publish(name, body)
        await running


async def test_a_channel_keeps_its_rate_and_shows_it() -> None:
    with BrokerProcess(None) as broker:
        async with Producer(broker.tcp_address) as producer:
            await producer.publish_many("t", BODIES)
        await _limited(broker, "t")
        broker.kill()
        broker.start()
        shown = (await channels_of(broker.http_address))["t", "c"]
        assert shown["rate_per_s"] == RATE_PER_S
        async with Admin(broker.http_address) as admin:
            stats = await admin.nodes.stats()
        channels = [c for node in stats.values.values() for t in node.topics for c in t.channels]
        assert [channel.rate_per_s for channel in channels] == [RATE_PER_S]
        await _consume(Consumer("t", "c", broker.tcp_address))
