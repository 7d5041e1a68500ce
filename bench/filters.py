"""Filters beside each other: a channel passes over a backlog in which they accept only the end.

    ./run bench filters [--messages=400000] [--together=200] [--repeat=3]

Messages of 200 bytes, with a tag, a key and three headers each, are published `--together` at a
time. Then a consumer with a filter waits for the last one, which all the filters accept, each time
through a channel of its own. The processor's time is the broker's. A text that no message has is
found missing by a search; a number, and `<>`, have to be read from each message.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import psutil

from bench.contest import Contest, Run
from bench.flags import parse
from martlet.addresses import Address
from martlet.client import Consumer, Identity
from martlet.client.transport.connection import Connection
from martlet.properties.block import pack_block
from martlet.properties.model import Properties
from martlet.protocol.nsq import commands
from martlet.testing import BrokerProcess

BODY = b"x" * 200
WINDOW = 50
WAYS: dict[str, dict[str, Any]] = {
    "a tag": {"tags": "wanted"},
    "TAGS = 'wanted'": {"filter": "TAGS = 'wanted'"},
    "region = 'eu'": {"filter": "region = 'eu'"},
    "region STARTSWITH 'e'": {"filter": "region STARTSWITH 'e'"},
    "price > 1000": {"filter": "price > 1000"},
    "route MATCHES '*.paid.#'": {"filter": "route MATCHES '*.paid.#'"},
    "region <> 'ap' AND price > 1000": {"filter": "region <> 'ap' AND price > 1000"},
    "all of them": {
        "filter": "region IN ('eu', 'uk') AND price BETWEEN 1001 AND 2000"
        " OR route MATCHES '*.paid.#' AND NOT route ENDSWITH '.test'"
    },
}


def channel_of(name: str, number: int) -> str:
    """A channel of its own for each turn."""
    return f"way-{list(WAYS).index(name)}-{number}"


def entry(number: int) -> bytes:
    """The properties of a message that no filter accepts."""
    headers = {
        "region": ("us-east", "us-west", "ap")[number % 3],
        "price": str(number % 1000),
        "route": f"orders.{('new', 'sent')[number % 2]}.{number % 100}",
    }
    return Properties("other", (f"key {number}",), headers).pack()


async def store(address: str, given: argparse.Namespace) -> None:
    """Make the channels, and fill the topic."""
    for name, wanted in WAYS.items():
        for number in range(given.repeat):
            async with Consumer("orders", channel_of(name, number), address, **wanted):
                pass
    connection = await Connection.open(Address.parse(address), Identity())
    bodies = [BODY] * given.together
    for first in range(0, given.messages, WINDOW * given.together):
        sent = []
        for start in range(
            first, min(first + WINDOW * given.together, given.messages), len(bodies)
        ):
            entries = [(place, entry(start + place)) for place in range(len(bodies))]
            sent.append(connection.ask(commands.send("orders", bodies, {}, pack_block(entries))))
        await asyncio.gather(*sent)
    headers = {"region": "eu", "price": "1001", "route": "orders.paid.1"}
    last = pack_block([(0, Properties("wanted", (), headers).pack())])
    await connection.ask(commands.send("orders", [BODY], {}, last))
    connection.close()


async def pass_over(address: str, broker: psutil.Process, channel: str, messages: int) -> Run:
    """Wait for the one message that the channel's filter accepts."""
    processor_s, started_s = sum(broker.cpu_times()[:2]), time.perf_counter()
    async with Consumer("orders", channel, address) as consumer:
        message = await anext(aiter(consumer))
        took_s = time.perf_counter() - started_s
        assert message.properties.headers["region"] == "eu"
        message.finish()
    return Run(messages, took_s, sum(broker.cpu_times()[:2]) - processor_s)


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the table."""
    given = parse(__doc__, arguments, messages=400_000, together=200, repeat=3)
    with BrokerProcess(None) as process:
        address = process.tcp_address
        asyncio.run(store(address, given))
        broker = psutil.Process(process.process_id)

        def contestant(name: str, number: int) -> Run:
            channel = channel_of(name, number)
            return asyncio.run(pass_over(address, broker, channel, given.messages))

        Contest(
            f"{given.messages:,} messages passed over, published {given.together} at a time",
            {name: partial(contestant, name) for name in WAYS},
            first="a tag",
            beside="a tag is",
        ).hold(given.repeat)
