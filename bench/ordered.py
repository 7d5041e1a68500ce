"""Ordered consumption beside the plain one: the same messages, one handler, one broker.

    ./run bench ordered [--messages=60000] [--repeat=3] [--keys=1000] [--queues=8]

Messages of 200 bytes, each with an order key, are stored in a topic of several queues, each key in
the queue that is its own. Then a consumer handles all of them in turns: in no order, in the order
of each key, in the order of each queue, each time through a channel of its own.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Literal

from bench.contest import Contest, Run, by_handler
from bench.flags import parse
from bench.http_api import post
from martlet.addresses import Address
from martlet.client import Consumer, Identity
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


def channel_of(name: str, number: int) -> str:
    """A channel of its own for each turn."""
    return f"{WAYS[name] or 'none'}-{number}"


async def store(address: str, given: argparse.Namespace) -> None:
    """Make the channels, and fill the topic."""
    for name in WAYS:
        for number in range(given.repeat):
            async with Consumer("orders", channel_of(name, number), address):
                pass
    connection = await Connection.open(Address.parse(address), Identity())
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


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the table."""
    given = parse(__doc__, arguments, messages=60_000, repeat=3, keys=1000, queues=8)
    with BrokerProcess(None) as broker:
        address = broker.tcp_address
        post(broker.http_address, f"topic/create?topic=orders&queues={given.queues}")
        asyncio.run(store(address, given))

        async def run(name: str, number: int) -> Run:
            consumer = Consumer(
                "orders",
                channel_of(name, number),
                address,
                max_in_flight=IN_FLIGHT,
                order=WAYS[name],
            )
            return await by_handler(consumer, given.messages, len(BODY))

        def contestant(name: str, number: int) -> Run:
            return asyncio.run(run(name, number))

        Contest(
            f"{given.messages:,} messages of {len(BODY)} bytes, {given.keys} keys,"
            f" {given.queues} queues",
            {name: partial(contestant, name) for name in WAYS},
            first="in no order",
            beside="in no order is",
        ).hold(given.repeat)
