"""What a command costs the broker's processor: the server without sockets.

    python bench/hot_path.py [--rows pub,mpub] [--seconds 1] [--repeat 5] [--profile ROW] [--trace]

A real server on a real folder, its connections fed by hand: what is measured is reading commands,
the core, the log and building answers, each turn of the loop one receive. The system's part of
receiving and sending is left out; that of writing the log is in. The best of the runs is shown, as
whatever else the machine does can only add to it. So small changes can be seen on a busy machine,
where rates say nothing.

`--profile ROW` prints where the time goes, by function (cProfile, which makes calls look dearer).
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import logging
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from random import Random
from typing import Any

import uvloop

from martlet.options import BrokerOptions
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.frames import FrameSplitter
from martlet.protocol.nsq.message_run import MessageRun
from martlet.server.nsq.connection import ClientConnection
from martlet.server.server import Server

TOPIC, CHANNEL = "hot", "path"
BODY = b"x" * 200
READY = 2500
FINISHES = 256
QUEUES = 8


class Wire(asyncio.Transport):
    """A transport that keeps what the server sends."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.sent: list[Any] = []
        self.write = self.sent.append  # type: ignore[method-assign, assignment]
        self.writelines = self.sent.extend  # type: ignore[method-assign, assignment]

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """What was sent is never held back."""

    def close(self) -> None:
        """What the server says before it closes is worth reading."""
        raise RuntimeError(f"the server closes: {self.sent[-1:]!r}")

    abort = close


class Client:
    """A connection of the server, and what its client does."""

    def __init__(self, server: Server) -> None:
        self._connection = ClientConnection(server)
        self.wire = Wire()
        self._connection.connection_made(self.wire)
        self.feed(commands.MAGIC)

    def feed(self, data: bytes) -> None:
        """Let the server receive that."""
        rest = memoryview(data)
        while rest:
            space = self._connection.get_buffer(-1)
            part = rest[: len(space)]
            space[: len(part)] = part
            self._connection.buffer_updated(len(part))
            rest = rest[len(part) :]

    def taken(self) -> bytes:
        """What the server has sent since the last time."""
        data = b"".join(self.wire.sent)
        self.wire.sent.clear()
        return data


Step = Callable[[], tuple[Client, bytes, int]]
"""Says what the server receives next: from whom, what, and how many commands that is."""


def publishing(server: Server, data: bytes, count: int) -> Step:
    """Two connections in turns, as a server of two producers sees it."""
    clients = [Client(server), Client(server)]

    def step() -> tuple[Client, bytes, int]:
        clients.reverse()
        clients[0].wire.sent.clear()
        return clients[0], data, count

    return step


def mixed(seed: int) -> list[bytes]:
    """Bodies of several sizes."""
    draw = Random(seed).randint
    return [b"x" * draw(100, 300) for _ in range(200)]


def subscriber(server: Server, ready: int) -> Client:
    """A consumer that is ready for so many messages."""
    client = Client(server)
    client.feed(commands.subscribe(TOPIC, CHANNEL))
    client.taken()
    client.feed(commands.ready(ready))
    return client


def consuming(server: Server) -> Step:
    """FINs of one receive, and the deliveries that answer them."""
    consumer = subscriber(server, READY)
    splitter = FrameSplitter()
    owed: list[bytes] = []

    def step() -> tuple[Client, bytes, int]:
        if not owed:
            runs = [r for r in splitter.feed(consumer.taken()) if isinstance(r, MessageRun)]
            ids = MessageRun.joined(runs).ids()
            owed.extend(
                commands.finish_array(ids[at : at + FINISHES])
                for at in range(0, len(ids), FINISHES)
            )
        data = owed.pop(0)
        return consumer, data, len(data) // 21

    return step


def pinging(server: Server) -> Step:
    """A PUB with its delivery, and then the FIN; together they count as one command."""
    producer, consumer = Client(server), subscriber(server, 1)
    data = commands.publish(TOPIC, BODY)

    def step() -> tuple[Client, bytes, int]:
        received = consumer.taken()
        producer.wire.sent.clear()
        if received:
            return consumer, b"FIN " + received[18:34] + b"\n", 0
        return producer, data, 1

    return step


ROWS: dict[str, tuple[str, Callable[[Server], Step]]] = {
    "mpub": (
        "MPUB of 200",
        lambda s: publishing(s, commands.publish_many(TOPIC, [BODY] * 200), 1),
    ),
    "mpub-mixed": (
        "MPUB of 200, sizes 100 to 300",
        lambda s: publishing(s, commands.publish_many(TOPIC, mixed(1)), 1),
    ),
    "mpub-1000": (
        "MPUB of 100 x 1,000 bytes",
        lambda s: publishing(s, commands.publish_many(TOPIC, [b"x" * 1000] * 100), 1),
    ),
    "pub-50": (
        "PUB, 50 in a receive",
        lambda s: publishing(s, commands.publish(TOPIC, BODY) * 50, 50),
    ),
    "pub": ("PUB, one in a receive", lambda s: publishing(s, commands.publish(TOPIC, BODY), 1)),
    "consume": ("delivery + FIN, 256 in a receive", consuming),
    "pub-queues": (
        f"PUB, one in a receive, to {QUEUES} queues",
        lambda s: publishing(s, commands.publish(TOPIC, BODY), 1),
    ),
    "mpub-queues": (
        f"MPUB of 200, to {QUEUES} queues",
        lambda s: publishing(s, commands.publish_many(TOPIC, [BODY] * 200), 1),
    ),
    "consume-queues": (f"delivery + FIN of {QUEUES} queues", consuming),
    "ping": ("PUB, delivery, FIN, one by one", pinging),
}


async def measure(
    row: str, seconds: float, repeat: int, profile: cProfile.Profile | None, *, trace: bool
) -> float:
    """The least processor time of a command, in microseconds."""
    best = float("inf")
    for _ in range(repeat):
        with tempfile.TemporaryDirectory(prefix="martlet-hot-") as folder:
            anywhere = "127.0.0.1:0"
            options = BrokerOptions(
                tcp_address=anywhere, http_address=anywhere, data_path=folder, trace=trace
            )
            server = Server(options, logging.getLogger("hot"))
            await server.start()
            queues = QUEUES if row.endswith("-queues") else 1
            server.broker.set_queues(TOPIC, queues).channel(CHANNEL)
            if row.startswith("consume"):
                await backlog(server, seconds)
            step = ROWS[row][1](server)
            cost = await run(step, seconds, profile)
            best = min(best, cost)
            for connection in list(server.connections):
                connection.connection_lost(None)
            await server.stop()
    return best


async def backlog(server: Server, seconds: float) -> None:
    """Enough for any consumer."""
    step = publishing(server, commands.publish_many(TOPIC, [BODY] * 1000), 1)
    for _ in range(int(5000 * seconds) + 10):
        client, data, _ = step()
        client.feed(data)
        await asyncio.sleep(0)


async def run(step: Step, seconds: float, profile: cProfile.Profile | None) -> float:
    """Take steps for some time; returns the processor time of a command in microseconds."""
    count = 0
    spent_ns = 0
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        client, data, commands_in_it = step()
        if profile:
            profile.enable()
        started_ns = time.thread_time_ns()
        client.feed(data)
        await asyncio.sleep(0)
        spent_ns += time.thread_time_ns() - started_ns
        if profile:
            profile.disable()
        count += commands_in_it
    return spent_ns / count / 1000


def main() -> int:
    """Measure the rows that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--profile", choices=ROWS)
    parser.add_argument("--trace", action="store_true", help="write down what becomes of messages")
    given = parser.parse_args()
    if given.profile:
        profile = cProfile.Profile()
        uvloop.run(measure(given.profile, given.seconds, 1, profile, trace=given.trace))
        pstats.Stats(profile).sort_stats("tottime").print_stats(28)
        return 0
    for row in given.rows.split(","):
        cost = uvloop.run(measure(row, given.seconds, given.repeat, None, trace=given.trace))
        print(f"{ROWS[row][0]:34} {cost:8.2f} us a command", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
