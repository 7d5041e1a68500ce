"""Fetching by offset beside the plain consumer: the same messages, one client, one broker.

    ./run bench groups [--messages=200000] [--repeat=3] [--batch=1000]

Messages of 200 bytes are stored in a topic of one queue. Then one client takes all of them in
turns: as a consumer whose handler gets each message and finishes it, as one that takes and finishes
batches, and as the member of a group: by bare calls of `--batch` messages, with a commit for each,
the next fetch under way meanwhile; and as a `PullConsumer`, message by message with a handler, and
in batches. In each way all bodies are looked at.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from bench.contest import Contest, Run, by_batches, by_handler
from bench.flags import parse
from bench.stopwatch import Stopwatch
from martlet.addresses import Address
from martlet.client import Consumer, Identity, PullConsumer
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

Way = Callable[[str, argparse.Namespace, str], Awaitable[Run]]
"""Takes all messages from the broker of an address, through a channel."""


async def store(address: str, given: argparse.Namespace) -> None:
    """Make channels and groups, and fill the topic."""
    connection = await Connection.open(Address.parse(address), Identity())
    await connection.call("channel.want", topic=TOPIC, channel="all", policy={})
    for number in range(given.repeat):
        for name in WAYS:
            kind = "shared" if name.startswith("a consumer") else "offsets"
            channel = channel_of(name, number)
            policy = {"kind": kind}
            await connection.call("channel.want", topic=TOPIC, channel=channel, policy=policy)
    for _ in range(given.messages // STORED_AT_ONCE):
        await connection.ask(commands.publish_many(TOPIC, [BODY] * STORED_AT_ONCE))
    connection.close()


def channel_of(name: str, number: int) -> str:
    """A channel of its own for each turn."""
    return f"{list(WAYS).index(name)}-{number}"


def plain(address: str, channel: str) -> Consumer:
    """A consumer of the channel."""
    return Consumer(TOPIC, channel, address, max_in_flight=IN_FLIGHT)


def puller(address: str, channel: str, batch: int) -> PullConsumer:
    """A member of the group that has two fetches of a batch at most."""
    return PullConsumer(
        TOPIC,
        channel,
        address,
        fetch_messages=batch,
        max_messages=2 * batch,
        max_span=4 * batch,
    )


async def handle(address: str, given: argparse.Namespace, channel: str) -> Run:
    """A handler for each message."""
    return await by_handler(plain(address, channel), given.messages, len(BODY))


async def batches(address: str, given: argparse.Namespace, channel: str) -> Run:
    """Batches, each finished at once."""
    return await by_batches(plain(address, channel), given.messages, len(BODY), given.batch)


async def fetch(address: str, given: argparse.Namespace, channel: str) -> Run:
    """Fetches by offset, and commits."""
    connection = await Connection.open(Address.parse(address), Identity())
    watch = Stopwatch()
    member = {"topic": TOPIC, "group": channel}
    joined = (await connection.call("group.join", client_id="bench", **member)).fields
    member["member"] = joined["member"]
    left = given.messages

    def ask(offset: int) -> asyncio.Task[Answer]:
        call = connection.call(
            "group.fetch", **member, queue=0, offset=offset, max_messages=given.batch
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
        await connection.call("group.commit", **member, **committed)
    run = Run.of(given.messages, watch)
    connection.close()
    return run


async def pull(address: str, given: argparse.Namespace, channel: str) -> Run:
    """A pull consumer's handler gets each message."""
    consumer = puller(address, channel, given.batch)
    return await by_handler(consumer, given.messages, len(BODY))


async def pull_batches(address: str, given: argparse.Namespace, channel: str) -> Run:
    """A pull consumer's batches."""
    consumer = puller(address, channel, given.batch)
    return await by_batches(consumer, given.messages, len(BODY), given.batch)


WAYS: dict[str, Way] = {
    "a consumer, each message": handle,
    "a consumer, batches": batches,
    "a group's member, fetches": fetch,
    "a pull consumer, each message": pull,
    "a pull consumer, batches": pull_batches,
}


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the table."""
    given = parse(__doc__, arguments, messages=200_000, repeat=3, batch=1000)
    given.messages -= given.messages % STORED_AT_ONCE
    with BrokerProcess(None) as broker:
        address = broker.tcp_address
        asyncio.run(store(address, given))

        async def run(name: str, number: int) -> Run:
            return await WAYS[name](address, given, channel_of(name, number))

        def contestant(name: str, number: int) -> Run:
            return asyncio.run(run(name, number))

        Contest(
            f"{given.messages:,} messages of {len(BODY)} bytes, batches of {given.batch}",
            {name: partial(contestant, name) for name in WAYS},
            first="a consumer, each message",
            beside="a consumer is",
        ).hold(given.repeat)
