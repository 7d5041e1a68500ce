"""What a send costs beside a publish: numbered or not, with properties or without.

    python bench/sending.py [--seconds 0.5] [--repeat 5] [--messages 20000]

First the broker's processor, as in `hot_path.py`: a server without sockets, microseconds a command,
the best of the runs. PUB and MPUB stand beside SENDs of as many messages: plain ones, numbered ones
(a producer's id and a sequence, so that a repetition is recognised), and such whose messages have a
tag and a key each.

Then client and broker together, over a socket: messages a second one after the other, a thousand
tasks at once, and in bulk. Those are rates, and mean something on a quiet machine alone.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import uvloop

from bench.hot_path import BODY, CHANNEL, TOPIC, Client, Step, run
from martlet.client import Outgoing, Producer, Properties
from martlet.options import BrokerOptions
from martlet.properties.block import pack_block
from martlet.protocol.nsq import commands
from martlet.server.server import Server
from martlet.testing import BrokerProcess

TAGGED = Properties(tag="red", keys=("order-1234567",))
AT_ONCE = 1000


def sending(together: int, numbered: bool, tagged: bool) -> Callable[[Server], Step]:
    """SENDs of so many messages, from two producers in turns."""

    def step_of(server: Server) -> Step:
        clients = [(Client(server), os.urandom(16).hex(), count(1)) for _ in range(2)]
        for client, _, _ in clients:
            client.feed(commands.identify({"feature_negotiation": True, "martlet": True}))
        block = pack_block([(n, TAGGED.pack()) for n in range(together)]) if tagged else b""
        bodies = [BODY] * together

        def step() -> tuple[Client, bytes, int]:
            clients.reverse()
            client, producer, sequences = clients[0]
            client.wire.sent.clear()
            options = {"producer": producer, "sequence": next(sequences)} if numbered else {}
            return client, commands.send(TOPIC, bodies, options, block), 1

        return step

    return step_of


def publishing(data: bytes) -> Callable[[Server], Step]:
    """The same bytes again and again, from two producers in turns."""

    def step_of(server: Server) -> Step:
        clients = [Client(server), Client(server)]

        def step() -> tuple[Client, bytes, int]:
            clients.reverse()
            clients[0].wire.sent.clear()
            return clients[0], data, 1

        return step

    return step_of


ROWS: dict[str, Callable[[Server], Step]] = {
    "PUB": publishing(commands.publish(TOPIC, BODY)),
    "SEND of 1": sending(1, numbered=False, tagged=False),
    "SEND of 1, numbered": sending(1, numbered=True, tagged=False),
    "SEND of 1, numbered, with properties": sending(1, numbered=True, tagged=True),
    "MPUB of 200": publishing(commands.publish_many(TOPIC, [BODY] * 200)),
    "SEND of 200": sending(200, numbered=False, tagged=False),
    "SEND of 200, numbered": sending(200, numbered=True, tagged=False),
    "SEND of 200, numbered, with properties": sending(200, numbered=True, tagged=True),
}


async def processor(row: str, seconds: float, repeat: int) -> float:
    """The least processor time of a command, in microseconds."""
    best = float("inf")
    for _ in range(repeat):
        with tempfile.TemporaryDirectory(prefix="martlet-sending-") as folder:
            anywhere = "127.0.0.1:0"
            options = BrokerOptions(tcp_address=anywhere, http_address=anywhere, data_path=folder)
            server = Server(options, logging.getLogger("sending"))
            await server.start()
            server.broker.topic(TOPIC).channel(CHANNEL)
            best = min(best, await run(ROWS[row](server), seconds, None))
            for connection in list(server.connections):
                connection.connection_lost(None)
            await server.stop()
    return best


Work = Callable[[Producer, int], Awaitable[object]]


def one_by_one(send: Callable[[Producer], Awaitable[object]]) -> Work:
    """One message after the other."""

    async def work(producer: Producer, messages: int) -> None:
        for _ in range(messages // 10):
            await send(producer)

    return work


def at_once(send: Callable[[Producer], Awaitable[object]]) -> Work:
    """Many at once."""

    async def work(producer: Producer, messages: int) -> None:
        for _ in range(messages // AT_ONCE):
            await asyncio.gather(*(send(producer) for _ in range(AT_ONCE)))

    return work


SENDS: dict[str, Callable[[Producer], Awaitable[object]]] = {
    "publish": lambda p: p.publish(TOPIC, BODY),
    "send": lambda p: p.send(TOPIC, BODY),
    "send with properties": lambda p: p.send(TOPIC, BODY, tag="red", keys="order-1234567"),
}
TAGGED_BODY = Outgoing(BODY, TAGGED)
BULKS: dict[str, Work] = {
    "publish_many": lambda p, n: p.publish_many(TOPIC, [BODY] * n),
    "send_many": lambda p, n: p.send_many(TOPIC, [BODY] * n),
    "send_many with properties": lambda p, n: p.send_many(TOPIC, [TAGGED_BODY] * n),
}


async def rate(address: str, work: Work, messages: int, divisor: int, **settings: bool) -> float:
    """Messages a second."""
    async with Producer(address, send_timeout_s=60, **settings) as producer:
        await work(producer, min(messages, 1000))
        began_s = time.perf_counter()
        await work(producer, messages)
        return messages / divisor / (time.perf_counter() - began_s)


async def rates(address: str, messages: int, repeat: int) -> None:
    """Print the rates, each the best of the runs."""
    rows: list[tuple[str, Work, int]] = [
        *((f"{name}, one by one", one_by_one(send), 10) for name, send in SENDS.items()),
        *((f"{name}, {AT_ONCE} at once", at_once(send), 1) for name, send in SENDS.items()),
        *((name, work, 1) for name, work in BULKS.items()),
    ]
    for name, work, divisor in rows:
        for idempotent in (True, False) if "send" in name else (True,):
            best = 0.0
            for _ in range(repeat):
                now = await rate(address, work, messages, divisor, idempotent=idempotent)
                best = max(best, now)
            shown = name if idempotent else f"{name}, not idempotent"
            print(f"{shown:50} {best:10,.0f} messages/s", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000)
    given = parser.parse_args(arguments)
    for row in ROWS:
        cost = uvloop.run(processor(row, given.seconds, given.repeat))
        print(f"{row:50} {cost:10.2f} us a command", flush=True)
    with BrokerProcess() as broker:
        uvloop.run(rates(broker.tcp_address, given.messages, min(3, given.repeat)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
