"""Ordered consumption beside the plain one: the same messages, one handler, one broker.

    python bench/ordered.py [--messages=60000] [--repeat=3] [--keys=1000] [--queues=8]

Messages of 200 bytes, each with an order key, are stored in a topic of several queues, each key in
the queue that is its own.  Then a consumer handles all of them in turns: in no order, in the order
of each key, in the order of each queue, each time through a channel of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import urllib.request
from collections.abc import Callable
from typing import Literal

from rich.console import Console

from bench.contest import Contest, Run
from bench.stopwatch import Stopwatch
from martlet.addresses import Address
from martlet.client import Consumer, Identity, Message
from martlet.client.transport.connection import Connection
from martlet.properties.block import pack_block
from martlet.properties.model import Properties
from martlet.protocol.nsq import commands
from martlet.testing import BrokerProcess

BODY = b"x" * 200
IN_FLIGHT = 2500
WAYS: dict[str, Literal["key", "queue"] | None] = {
    "in no order": None,
    "in order of each key": "key",
    "in order of each queue": "queue",
}


async def store(broker: BrokerProcess, given: argparse.Namespace) -> None:
    """Make the channels, and fill the topic."""
    for way in WAYS.values():
        for number in range(given.repeat):
            async with Consumer("orders", f"{way or 'none'}-{number}", broker.tcp_address):
                pass
    connection = await Connection.open(Address.parse(broker.tcp_address), Identity())
    for _ in range(given.messages // given.keys):
        sent = []
        for key in range(given.keys):
            order_key = f"customer {key}"
            block = pack_block([(0, Properties(order_key=order_key).pack())])
            sent.append(
                connection.ask(commands.send("orders", [BODY], {"order_key": order_key}, block))
            )
        await asyncio.gather(*sent)
    connection.close()


async def handle_all(
    broker: BrokerProcess, way: Literal["key", "queue"] | None, number: int, messages: int
) -> Run:
    """Handle each message once."""
    left = messages
    done = asyncio.Event()

    def handle(message: Message) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    channel = f"{way or 'none'}-{number}"
    watch = Stopwatch()
    async with Consumer(
        "orders", channel, broker.tcp_address, max_in_flight=IN_FLIGHT, order=way
    ) as consumer:
        task = asyncio.create_task(consumer.run(handle))
        await done.wait()
        result = watch.result()
    await task
    return Run(messages, result["seconds"], result["processor_s"])


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--queues", type=int, default=8)
    given = parser.parse_args()
    with BrokerProcess(None) as broker:
        url = f"http://{broker.http_address}/topic/create?topic=orders&queues={given.queues}"
        urllib.request.urlopen(urllib.request.Request(url, method="POST")).close()
        asyncio.run(store(broker, given))

        def contestant(way: Literal["key", "queue"] | None) -> Callable[[int], Run]:
            return lambda number: asyncio.run(handle_all(broker, way, number, given.messages))

        contest = Contest(
            f"{given.messages:,} messages of {len(BODY)} bytes, {given.keys} keys,"
            f" {given.queues} queues",
            {name: contestant(way) for name, way in WAYS.items()},
            first="in no order",
            beside="in no order is",
        )
        Console().print(contest.table(contest.take_turns(given.repeat)))


if __name__ == "__main__":
    main()
