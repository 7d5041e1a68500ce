"""The cost of a send beside a publish: numbered or not, with properties or without.

    ./run bench sending [--seconds 0.5] [--repeat 5] [--messages 20000]

First the broker's processor, as in `bench.hot_path`: a server without sockets, microseconds a
command, the best of the runs. PUB and MPUB stand beside SENDs of as many messages: plain ones,
numbered ones (a producer's id and a sequence, so that a repetition is recognised), and such whose
messages have a tag and a key each.

Then client and broker together, over a socket: messages a second one after the other, a thousand
tasks at once, in bulk, and in calls of 200 messages, eight at once, in turns. Of the messages with
a tag and a header, all of a call have equal ones as its options, or each has a header of its own.
The rates mean something on a quiet machine alone, the
client's processor a message is steadier.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import uvloop

from bench.contest import Run
from bench.flags import parse
from bench.inprocess import BODY, TOPIC, Client, Step, least_cost_us, publishing
from bench.stopwatch import Stopwatch
from martlet.client import Outgoing, Producer, Properties
from martlet.properties.block import pack_block
from martlet.protocol.nsq import commands
from martlet.server.server import Server
from martlet.testing import BrokerProcess

TAGGED = Properties(tag="red", keys=("order-1234567",))
AT_ONCE = 1000
A_CALL, CALLS_AT_ONCE = 200, 8


def sending(together: int, *, numbered: bool, tagged: bool) -> Callable[[Server], Step]:
    """SENDs of `together` messages, from two producers in turns."""

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


def rows() -> dict[str, Callable[[Server], Step]]:
    """The rows of the broker's processor."""
    found = {}
    for size in (1, 200):
        data = commands.publish(TOPIC, BODY)
        if size > 1:
            data = commands.publish_many(TOPIC, [BODY] * size)
        found["PUB" if size == 1 else f"MPUB of {size}"] = publishing(data)
        send = f"SEND of {size}"
        found[send] = sending(size, numbered=False, tagged=False)
        found[f"{send}, numbered"] = sending(size, numbered=True, tagged=False)
        found[f"{send}, numbered, with properties"] = sending(size, numbered=True, tagged=True)
    return found


Work = Callable[[Producer, int], Awaitable[object]]
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


OWN = [Outgoing(BODY, Properties("red", headers={"trace": f"{n:032x}"})) for n in range(A_CALL)]
CALLS: dict[str, Callable[[Producer], Awaitable[object]]] = {
    "publish_many": lambda p: p.publish_many(TOPIC, [BODY] * A_CALL),
    "send_many": lambda p: p.send_many(TOPIC, [BODY] * A_CALL),
    "send_many with a tag and a header": lambda p: p.send_many(
        TOPIC, [BODY] * A_CALL, tag="red", headers={"source": "shop-1"}
    ),
    "send_many with a tag and own headers": lambda p: p.send_many(TOPIC, OWN),
}


def in_calls(call: Callable[[Producer], Awaitable[object]]) -> Work:
    """Make calls of `A_CALL` messages, from `CALLS_AT_ONCE` tasks."""

    async def work(producer: Producer, messages: int) -> None:
        async def task() -> None:
            for _ in range(messages // (A_CALL * CALLS_AT_ONCE)):
                await call(producer)

        await asyncio.gather(*(task() for _ in range(CALLS_AT_ONCE)))

    return work


def in_groups(send: Callable[[Producer], Awaitable[object]], together: int) -> Work:
    """Send `together` messages at once, then the next ones."""

    async def work(producer: Producer, messages: int) -> None:
        for _ in range(messages // together):
            if together == 1:
                await send(producer)
            else:
                await asyncio.gather(*(send(producer) for _ in range(together)))

    return work


async def timed(address: str, work: Work, messages: int, *, idempotent: bool) -> Run:
    """Do the work once."""
    async with Producer(address, send_timeout_s=60, idempotent=idempotent) as producer:
        await work(producer, min(messages, 1000))
        watch = Stopwatch()
        await work(producer, messages)
        return Run.of(messages, watch)


async def rates(address: str, messages: int, repeat: int) -> None:
    """Let each take its turn in each round, and print the medians."""
    works: list[tuple[str, Work, int]] = [
        *(
            (f"{name}, one by one", in_groups(send, 1), messages // 10)
            for name, send in SENDS.items()
        ),
        *(
            (f"{name}, {AT_ONCE} at once", in_groups(send, AT_ONCE), messages)
            for name, send in SENDS.items()
        ),
        *((name, work, messages) for name, work in BULKS.items()),
        *(
            (f"{name}, {A_CALL} a call", in_calls(call), 10 * messages)
            for name, call in CALLS.items()
        ),
    ]
    runs: dict[str, list[Run]] = {}
    for _ in range(repeat):
        for name, work, sent in works:
            for idempotent in (True, False) if "send" in name else (True,):
                shown = name if idempotent else f"{name}, not idempotent"
                run = await timed(address, work, sent, idempotent=idempotent)
                runs.setdefault(shown, []).append(run)
    for shown, done in runs.items():
        median = statistics.median(run.rate for run in done)
        processor_us = statistics.median(run.processor_us for run in done)
        print(f"{shown:50} {median:10,.0f} messages/s {processor_us:6.2f} us of the client's each")


def main(arguments: Sequence[str]) -> None:
    """Measure."""
    given = parse(__doc__, arguments, seconds=0.5, repeat=5, messages=20_000)
    for name, step_of in rows().items():
        cost_us = uvloop.run(least_cost_us(step_of, given.seconds, given.repeat))
        print(f"{name:50} {cost_us:10.2f} us a command", flush=True)
    with BrokerProcess() as broker:
        uvloop.run(rates(broker.tcp_address, given.messages, min(3, given.repeat)))
