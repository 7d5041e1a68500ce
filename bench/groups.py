"""Fetching by offset beside the plain consumer: the same messages, one client, one broker.

    python bench/groups.py [--messages=200000] [--repeat=3] [--batch=1000]

Messages of 200 bytes are stored in a topic of one queue.  Then one client takes all of them in
turns: as a consumer whose handler gets each message and finishes it, as one that takes and finishes
batches, and as the member of a group: by bare calls, so many at a time, committing each time, the
next fetch under way meanwhile; and as a `PullConsumer`, message by message with a handler, and in
batches.  In each way all bodies are looked at.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable

from rich.console import Console

from bench.contest import Contest, Run
from bench.stopwatch import Stopwatch
from martlet.addresses import Address
from martlet.client import Consumer, Identity, Message, PullConsumer, PulledMessage
from martlet.client.transport.calls import Answer
from martlet.client.transport.connection import Connection
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.frames import FrameSplitter
from martlet.protocol.nsq.message_run import MessageRun
from martlet.testing import BrokerProcess

TOPIC = "orders"
BODY = b"x" * 200
IN_FLIGHT = 2500
STORED_AT_ONCE = 500

Way = Callable[[BrokerProcess, argparse.Namespace, str], Awaitable[Run]]


async def store(broker: BrokerProcess, given: argparse.Namespace) -> None:
    """Make channels and groups, and fill the topic."""
    connection = await Connection.open(Address.parse(broker.tcp_address), Identity())
    await connection.call("channel.want", topic=TOPIC, channel="all", policy={})
    for number in range(given.repeat):
        for way in WAYS.values():
            kind = "offsets" if way in GROUPS else "shared"
            name = channel_of(way, number)
            await connection.call("channel.want", topic=TOPIC, channel=name, policy={"kind": kind})
    for _ in range(given.messages // STORED_AT_ONCE):
        await connection.ask(commands.publish_many(TOPIC, [BODY] * STORED_AT_ONCE))
    connection.close()


def channel_of(way: Way, number: int) -> str:
    """A channel of its own for each turn."""
    return f"{way.__name__}-{number}"


async def handle(broker: BrokerProcess, given: argparse.Namespace, channel: str) -> Run:
    """A handler for each message."""
    left = given.messages
    done = asyncio.Event()

    def take(message: Message) -> None:
        nonlocal left
        assert len(message.body) == len(BODY)
        left -= 1
        if not left:
            done.set()

    watch = Stopwatch()
    async with Consumer(TOPIC, channel, broker.tcp_address, max_in_flight=IN_FLIGHT) as consumer:
        task = asyncio.create_task(consumer.run(take))
        await done.wait()
        result = watch.result()
    await task
    return Run(given.messages, result["seconds"], result["processor_s"])


async def batches(broker: BrokerProcess, given: argparse.Namespace, channel: str) -> Run:
    """Batches, each finished as a whole."""
    left = given.messages
    watch = Stopwatch()
    async with Consumer(TOPIC, channel, broker.tcp_address, max_in_flight=IN_FLIGHT) as consumer:
        async for batch in consumer.batches(max_messages=given.batch):
            assert all(len(body) == len(BODY) for body in batch.bodies)
            left -= len(batch.bodies)
            await batch.finish()
            if not left:
                break
        result = watch.result()
    return Run(given.messages, result["seconds"], result["processor_s"])


async def fetch(broker: BrokerProcess, given: argparse.Namespace, channel: str) -> Run:
    """Fetches by offset, and commits."""
    connection = await Connection.open(Address.parse(broker.tcp_address), Identity())
    watch = Stopwatch()
    place = {"topic": TOPIC, "group": channel}
    joined = (await connection.call("group.join", client_id="bench", **place)).fields
    place["member"] = joined["member"]
    left = given.messages

    def ask(offset: int) -> asyncio.Task[Answer]:
        call = connection.call(
            "group.fetch", **place, queue=0, offset=offset, max_messages=given.batch
        )
        return asyncio.create_task(call)

    coming = ask(joined["queues"][0]["offset"])
    while left:
        answer = await coming
        offset = answer.fields["next_offset"]
        if left > given.batch:
            coming = ask(offset)
        for piece in FrameSplitter().feed(answer.data):
            assert isinstance(piece, MessageRun)
            bodies = piece.bodies()
            assert all(len(body) == len(BODY) for body in bodies)
            left -= len(bodies)
        committed = {"generation": joined["generation"], "offsets": {"0": offset}}
        await connection.call("group.commit", **place, **committed)
    result = watch.result()
    connection.close()
    return Run(given.messages, result["seconds"], result["processor_s"])


async def pull(broker: BrokerProcess, given: argparse.Namespace, channel: str) -> Run:
    """A pull consumer's handler gets each message."""
    left = given.messages
    done = asyncio.Event()

    def take(message: PulledMessage) -> None:
        nonlocal left
        assert len(message.body) == len(BODY)
        left -= 1
        if not left:
            done.set()

    watch = Stopwatch()
    async with puller(broker, given, channel) as consumer:
        task = asyncio.create_task(consumer.run(take))
        await done.wait()
        await consumer.commit()
        result = watch.result()
    await task
    return Run(given.messages, result["seconds"], result["processor_s"])


async def pull_batches(broker: BrokerProcess, given: argparse.Namespace, channel: str) -> Run:
    """A pull consumer's batches."""
    left = given.messages
    watch = Stopwatch()
    async with puller(broker, given, channel) as consumer:
        async for batch in consumer.batches(max_messages=given.batch):
            assert all(len(body) == len(BODY) for body in batch.bodies)
            left -= len(batch.bodies)
            batch.finish()
            if not left:
                break
        await consumer.commit()
        result = watch.result()
    return Run(given.messages, result["seconds"], result["processor_s"])


def puller(broker: BrokerProcess, given: argparse.Namespace, channel: str) -> PullConsumer:
    """It has two fetches of a batch here at most."""
    return PullConsumer(
        TOPIC,
        channel,
        broker.tcp_address,
        fetch_messages=given.batch,
        max_messages=2 * given.batch,
        max_span=4 * given.batch,
    )


GROUPS = (fetch, pull, pull_batches)
WAYS: dict[str, Way] = {
    "a consumer, each message": handle,
    "a consumer, batches": batches,
    "a group's member, fetches": fetch,
    "a pull consumer, each message": pull,
    "a pull consumer, batches": pull_batches,
}


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1000)
    given = parser.parse_args()
    given.messages -= given.messages % STORED_AT_ONCE
    with BrokerProcess(None) as broker:
        asyncio.run(store(broker, given))

        def contestant(way: Way) -> Callable[[int], Run]:
            async def run(number: int) -> Run:
                return await way(broker, given, channel_of(way, number))

            return lambda number: asyncio.run(run(number))

        contest = Contest(
            f"{given.messages:,} messages of {len(BODY)} bytes, batches of {given.batch}",
            {name: contestant(way) for name, way in WAYS.items()},
            first="a consumer, each message",
            beside="a consumer is",
        )
        Console().print(contest.table(contest.take_turns(given.repeat)))


if __name__ == "__main__":
    main()
