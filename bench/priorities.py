"""A backlog of mixed priorities beside one of a single priority: the same messages, one consumer.

    ./run bench priorities [--messages=1000000] [--repeat=5] [--priorities=10]

Messages of 200 bytes are stored in two topics, with a priority of each in turn, and without. Then a
consumer handles all of a topic, in turns, each time through a channel of its own. The table is
followed by the broker's memory, and the time of its start with these messages.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.contest import Contest, Run, by_handler
from bench.flags import parse
from bench.stopwatch import anonymous_bytes
from martlet.client import Consumer, Producer
from martlet.testing import BrokerProcess

BODY = b"x" * 200
IN_FLIGHT = 2500
TOGETHER = 10_000
TOPICS = {"one priority": "one", "mixed priorities": "mixed"}


def channel_of(number: int) -> str:
    """A channel of its own for each turn."""
    return f"turn-{number}"


async def store(address: str, given: argparse.Namespace) -> None:
    """Make the channels, and fill the topics."""
    for topic in TOPICS.values():
        for number in range(given.repeat):
            async with Consumer(topic, channel_of(number), address):
                pass
    bodies = [BODY] * TOGETHER
    async with Producer(address) as producer:
        for number in range(given.messages // TOGETHER):
            await producer.send_many("one", bodies)
            await producer.send_many("mixed", bodies, priority=number % given.priorities)


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the table."""
    given = parse(__doc__, arguments, messages=1_000_000, repeat=5, priorities=10)
    with TemporaryDirectory() as folder, BrokerProcess(Path(folder)) as broker:
        asyncio.run(store(broker.tcp_address, given))

        async def run(topic: str, number: int) -> Run:
            consumer = Consumer(
                topic, channel_of(number), broker.tcp_address, max_in_flight=IN_FLIGHT
            )
            return await by_handler(consumer, given.messages // TOGETHER * TOGETHER, len(BODY))

        def contestant(topic: str, number: int) -> Run:
            return asyncio.run(run(topic, number))

        Contest(
            f"{given.messages:,} messages of {len(BODY)} bytes, {given.priorities} priorities",
            {name: partial(contestant, topic) for name, topic in TOPICS.items()},
            first="one priority",
            beside="one priority is",
        ).hold(given.repeat)
        memory_bytes = anonymous_bytes(broker.process_id)
        broker.kill()
        began_s = time.perf_counter()
        broker.start()
        started_s = time.perf_counter() - began_s
    print(f"memory beside the log: {memory_bytes >> 20} MB; start after a kill: {started_s:.2f} s")
