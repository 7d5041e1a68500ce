"""Only what a handler had in its hands fails: with Martlet's clients, and with NSQ's as far as
that can be known.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.polling import until
from tests.unit.client.consumer.consuming import running

from martlet.broker.channel.channel import Channel
from martlet.broker.dead_letters.dead_letter import CHANNEL
from martlet.broker.dead_letters.redrive import DeadLetter, letters
from martlet.broker.policy import ChannelPolicy
from martlet.broker.queue.peek import PeekState, peek
from martlet.client import Consumer, Identity, Message, Producer, sync
from martlet.testing import Broker

AMPLE_S = 60
CRASHED = 17
"""How an agent's process ends."""
AGENT = Path(__file__).parents[2] / "agents" / "crashing_agent.py"
GOOD = [b"good %d" % number for number in range(100)]


def configure(broker: Broker, **policy: Any) -> Channel:
    topic = broker.server.broker.topic("work")
    channel = topic.channel("main")
    topic.configure_channel("main", ChannelPolicy().changed(policy))
    return channel


async def publish(broker: Broker, *bodies: bytes) -> None:
    async with Producer(broker.tcp_address) as producer:
        await producer.publish_many("work", list(bodies))


def dead(broker: Broker) -> list[bytes]:
    """The bodies of the dead letters."""
    return [letter.body for letter in dead_letters(broker)]


def dead_letters(broker: Broker) -> list[DeadLetter]:
    topic = broker.server.broker.topics.get("work.main.dead")
    if topic is None:
        return []
    return letters(topic.channels[CHANNEL], 0, 1000)[0]


@asynccontextmanager
async def agent(
    how: str, broker: Broker, concurrency: int, seconds_each: float
) -> AsyncIterator[asyncio.subprocess.Process]:
    arguments = (how, broker.tcp_address, str(concurrency), str(seconds_each))
    process = await asyncio.create_subprocess_exec(sys.executable, str(AGENT), *arguments)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def crash_until_all_is_done(
    broker: Broker, channel: Channel, how: str, concurrency: int, seconds_each: float
) -> None:
    """Run consumers, a new one when one has crashed, until nothing is left."""

    def is_done() -> bool:
        return not (channel.depth or channel.in_flight_count or channel.deferred_count)

    for _ in range(20):
        async with agent(how, broker, concurrency, seconds_each) as process:
            ended = asyncio.create_task(process.wait())
            done = asyncio.create_task(until(is_done, AMPLE_S))
            await asyncio.wait({ended, done}, return_when=asyncio.FIRST_COMPLETED)
            done.cancel()
            await asyncio.gather(done, return_exceptions=True)
            if is_done():
                ended.cancel()
                return
            assert process.returncode == CRASHED
    raise AssertionError("20 consumers have crashed")


@pytest.mark.parametrize(
    ("how", "concurrency", "seconds_each"),
    [
        ("run", 1, 0.002),
        ("run", 1, 0),
        ("run", 10, 0.02),
        ("run", 10, 0),
        ("threads", 10, 0.02),
        ("iteration", 1, 0),
        ("tasks", 10, 0.02),
        ("sync_tasks", 10, 0.02),
        ("batch_tasks", 10, 0.02),
        ("exit", 10, 0.02),
        ("sync_exit", 1, 0),
        ("batches", 10, 0),
        ("sync", 1, 0),
        ("sync_run", 10, 0.02),
    ],
)
async def test_only_a_message_that_kills_its_process_becomes_a_dead_letter(
    broker: Broker, how: str, concurrency: int, seconds_each: float
) -> None:
    channel = configure(broker, max_attempts=3, retry_delays_ms=[100])
    await publish(broker, *GOOD[:30], b"poison", *GOOD[30:])
    await crash_until_all_is_done(broker, channel, how, concurrency, seconds_each)
    (letter,) = dead_letters(broker)
    assert (letter.body, letter.note("failures")) == (b"poison", "3")


@pytest.mark.parametrize("how", ["pynsq", "ansq"])
async def test_of_nsqs_clients_the_first_unanswered_one_is_the_one(
    broker: Broker, how: str
) -> None:
    channel = configure(broker, max_attempts=3, retry_delays_ms=[100])
    await publish(broker, *GOOD[:30], b"poison", *GOOD[30:])
    await crash_until_all_is_done(broker, channel, how, 1, 0.002)
    assert dead(broker) == [b"poison"]


@pytest.mark.parametrize("how", ["pynsq", "ansq"])
async def test_a_slow_client_of_nsq_makes_no_dead_letters_of_prefetched_messages(
    broker: Broker, how: str
) -> None:
    channel = configure(broker, max_attempts=3, retry_delays_ms=[100])
    await publish(broker, *GOOD[:40])
    await crash_until_all_is_done(broker, channel, how, 1, 0.16)
    assert channel.timeout_count or how == "ansq"  # which has one message at a time
    assert dead(broker) == []


def quick(broker: Broker, message_timeout_ms: int = 1000, **settings: Any) -> Consumer:
    identity = Identity(message_timeout_ms=message_timeout_ms)
    return Consumer("work", "main", broker.tcp_address, identity=identity, **settings)


async def test_a_slow_handler_makes_no_dead_letters_of_waiting_messages(broker: Broker) -> None:
    channel = configure(broker, max_attempts=3, retry_delays_ms=[100])
    await publish(broker, *GOOD[:40])
    seen: list[tuple[bytes, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.body, message.attempts))
        await asyncio.sleep(0.16)

    # The last ones wait for longer than that, and a busy machine runs late.
    async with quick(broker, message_timeout_ms=4000) as consumer, running(consumer, handle):
        await until(lambda: len(seen) == 40 and not channel.in_flight_count, AMPLE_S)
        assert consumer.counts.expired == 0
    assert dead(broker) == []
    assert sorted(seen) == sorted((body, 1) for body in GOOD[:40])


async def test_a_handler_that_hangs_keeps_nothing_from_others(broker: Broker) -> None:
    channel = configure(broker, max_attempts=3)
    go_on = asyncio.Event()
    await publish(broker, *GOOD[:40])
    seen: list[bytes] = []

    async def hang(message: Message) -> None:
        await go_on.wait()

    async def handle(message: Message) -> None:
        seen.append(message.body)

    async with quick(broker) as hanging, running(hanging, hang):
        await until(lambda: channel.in_flight_count == 40, AMPLE_S)
        async with quick(broker) as other, running(other, handle):
            await until(lambda: len(seen) == 39, AMPLE_S)
            go_on.set()
            await until(lambda: not channel.in_flight_count, AMPLE_S)
    assert channel.timeout_count == 0
    assert dead(broker) == []


@pytest.mark.parametrize("policy", [{"max_attempts": 2}, {"max_attempts": -1}])
async def test_messages_prefetched_at_a_stop_come_at_once(
    broker: Broker, policy: dict[str, int]
) -> None:
    channel = configure(broker, **policy)
    await publish(broker, *GOOD[:50])
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.body)
        consumer.stop()

    for _ in range(2):
        async with Consumer("work", "main", broker.tcp_address) as consumer:
            await consumer.run(handle)
    assert (len(seen), channel.depth, channel.deferred_count) == (2, 48, 0)
    async with Consumer("work", "main", broker.tcp_address) as consumer:
        async for batch in consumer.batches():
            assert set(batch.attempts.tolist()) == {1}
            seen += batch.bodies
            await batch.finish()
            if len(seen) == 50:
                break
    assert dead(broker) == []


async def test_a_blocking_consumer_gives_back_free_of_charge_too(broker: Broker) -> None:
    channel = configure(broker, max_attempts=2)
    await publish(broker, *GOOD[:50])

    def take_one() -> None:
        with sync.Consumer("work", "main", broker.tcp_address) as consumer:
            next(consumer).finish()

    for _ in range(2):
        await asyncio.to_thread(take_one)
    await until(lambda: not channel.in_flight_count, AMPLE_S)
    assert (channel.depth, channel.deferred_count, dead(broker)) == (48, 0, [])
    assert {message.attempts for message in peek(channel, 0, 100, [PeekState.DUE])} == {0}


async def test_a_consumer_learns_when_failures_begin_to_count(broker: Broker) -> None:
    channel = broker.server.broker.topic("work").channel("main")
    await publish(broker, b"1", b"2")
    async with Consumer("work", "main", broker.tcp_address, max_in_flight=1) as consumer:
        first = await anext(consumer)
        assert (first.tries, first.failures) == (1, 0)
        configure(broker, max_attempts=3, retry_delays_ms=[1])
        first.requeue(backoff=False)
        (await anext(consumer)).finish()
        again = await anext(consumer)
        assert (again.body, again.tries, again.failures) == (b"1", 2, 1)
        (held,) = channel.cursor.pending.by_offset.values()
        assert held.owner is not None
        assert held.owner.progress.charges(held.rank, 0, 0, channel.context.clock())
        again.finish()
