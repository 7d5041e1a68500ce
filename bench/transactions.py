"""Transactions a second beside the plain path, by Martlet's client over a socket, in one run.

    ./run bench transactions [--seconds 2] [--tasks 50] [--flush async]

For each size of a transaction, and as many tasks as are told: so many messages published one by
one and awaited together, the same by ``publish_many``, and the same in a transaction that is
committed, in one that is prepared before, and in one whose messages are added without waiting, so
that they and the commit are one request.  ``--tasks 1`` sends one after the other.  Then how long
one commit of many messages holds the broker up.  Client and broker share the machine; the rates
mean something on a quiet one alone.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import uvloop

from bench.flags import parse
from martlet.client import Producer
from martlet.testing import BrokerProcess

BODY = b"x" * 200
SIZES = (1, 5, 100)
LARGE = (10_000, 100_000, 500_000)
Work = Callable[[Producer, int, int], Awaitable[object]]


async def publishes(producer: Producer, size: int, number: int) -> None:
    """Plain messages, awaited together."""
    await asyncio.gather(*(producer.publish("plain", BODY) for _ in range(size)))


async def publishes_many(producer: Producer, size: int, number: int) -> None:
    """Plain messages in one piece."""
    await producer.publish_many("plain", [BODY] * size)


async def commits(producer: Producer, size: int, number: int) -> None:
    """A transaction over two topics."""
    async with producer.transaction() as transaction:
        topic = ("orders", "mails")[number % 2]
        await transaction.publish_many(topic, [BODY] * size)


async def prepares(producer: Producer, size: int, number: int) -> None:
    """The same, with all of it on the disk before it is decided."""
    async with producer.transaction() as transaction:
        topic = ("orders", "mails")[number % 2]
        await transaction.publish_many(topic, [BODY] * size)
        await transaction.prepare()


async def adds(producer: Producer, size: int, number: int) -> None:
    """A transaction in one request."""
    async with producer.transaction() as transaction:
        transaction.add(("orders", "mails")[number % 2], [BODY] * size)


WORKS: dict[str, Work] = {
    "publish": publishes,
    "publish_many": publishes_many,
    "transaction": commits,
    "prepared transaction": prepares,
    "transaction at once": adds,
}


async def rate(producer: Producer, work: Work, size: int, tasks: int, seconds: float) -> float:
    """How often a second it was done, over all tasks."""
    numbers = count()
    end_s = time.perf_counter() + seconds

    async def go_on() -> None:
        while time.perf_counter() < end_s:
            await work(producer, size, next(numbers))

    start_s = time.perf_counter()
    await asyncio.gather(*(go_on() for _ in range(tasks)))
    return next(numbers) / (time.perf_counter() - start_s)


async def large(producer: Producer, size: int) -> tuple[float, float]:
    """How many seconds it takes to add so many messages, and to commit them."""
    transaction = producer.transaction()
    start_s = time.perf_counter()
    await transaction.publish_many("large", [BODY] * size)
    added_s = time.perf_counter()
    await transaction.commit()
    return added_s - start_s, time.perf_counter() - added_s


async def measure(address: str, given: argparse.Namespace) -> None:
    """Print the figures."""
    async with Producer(address, timeout_s=120) as producer:
        print(f"{'':22}" + "".join(f"{f'{size} messages':>16}" for size in SIZES) + "   a second")
        for name, work in WORKS.items():
            rates = [await rate(producer, work, size, given.tasks, given.seconds) for size in SIZES]
            print(f"{name:22}" + "".join(f"{each:16,.0f}" for each in rates))
        print(f"\n{'messages of 200 bytes':>22}{'added in':>16}{'committed in':>16}")
        for size in LARGE:
            added_s, committed_s = await large(producer, size)
            print(f"{size:22,}{added_s:14.2f} s{committed_s * 1000:13.0f} ms")


def main(arguments: Sequence[str]) -> None:
    """Measure."""
    given = parse(__doc__, arguments, seconds=2.0, tasks=50, flush=("async", "sync"))
    with BrokerProcess(None, f"--flush={given.flush}", "--log-level=warn") as broker:
        uvloop.run(measure(broker.tcp_address, given))
