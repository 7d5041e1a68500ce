"""The processor time of a command in the broker: a server without sockets.

    ./run bench hot-path [--rows pub,mpub] [--seconds 1] [--repeat 5] [--profile ROW] [--trace]

See `bench.inprocess` for what is measured. `--profile ROW` prints where the time goes, by function
(cProfile, which makes calls look dearer); `--trace` has the broker record traces.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable, Sequence
from random import Random

import uvloop

from bench.flags import parse
from bench.inprocess import BODY, CHANNEL, TOPIC, Client, Step, least_cost_us, publishing
from martlet.broker.policy import ChannelPolicy
from martlet.properties.block import pack_block
from martlet.properties.model import Properties
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.frames import FrameSplitter
from martlet.protocol.nsq.message_run import MessageRun
from martlet.server.server import Server

READY = 2500
FINISHES = 256
QUEUES = 8
KEYS, SENDS = 1000, 20


def mixed(seed: int) -> list[bytes]:
    """Bodies of several sizes."""
    draw = Random(seed).randint
    return [b"x" * draw(100, 300) for _ in range(200)]


def keyed() -> list[bytes]:
    """SENDs of a message for each of the keys, some in a receive."""
    sends = []
    for number in range(KEYS):
        order_key = f"customer {number}"
        block = pack_block([(0, Properties(order_key=order_key).pack())])
        sends.append(commands.send(TOPIC, [BODY], {"order_key": order_key}, block))
    return [b"".join(sends[at : at + SENDS]) for at in range(0, KEYS, SENDS)]


def subscriber(server: Server, ready: int) -> Client:
    """A consumer with a ready count, which takes properties."""
    client = Client(server)
    client.feed(commands.identify({"feature_negotiation": True, "martlet": True}))
    client.taken()
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


PUB = commands.publish(TOPIC, BODY)
MPUB = commands.publish_many(TOPIC, [BODY] * 200)
MPUB_1000 = commands.publish_many(TOPIC, [BODY] * 1000)
MIXED = commands.publish_many(TOPIC, mixed(1))
LARGE = commands.publish_many(TOPIC, [b"x" * 1000] * 100)
ROWS: dict[str, tuple[str, Callable[[Server], Step]]] = {
    "mpub": ("MPUB of 200", publishing(MPUB)),
    "mpub-mixed": ("MPUB of 200, sizes 100 to 300", publishing(MIXED)),
    "mpub-1000": ("MPUB of 100 x 1,000 bytes", publishing(LARGE)),
    "pub-50": ("PUB, 50 in a receive", publishing(PUB * 50, 50)),
    "pub": ("PUB, one in a receive", publishing(PUB)),
    "consume": ("delivery + FIN, 256 in a receive", consuming),
    "pub-queues": (f"PUB, one in a receive, to {QUEUES} queues", publishing(PUB)),
    "mpub-queues": (f"MPUB of 200, to {QUEUES} queues", publishing(MPUB)),
    "consume-queues": (f"delivery + FIN of {QUEUES} queues", consuming),
    "consume-keyed": (f"the same of {KEYS} order keys", consuming),
    "consume-by-key": ("the same in the order of each key", consuming),
    "consume-by-queue": ("the same in the order of each queue", consuming),
    "ping": ("PUB, delivery, FIN, one by one", pinging),
}


def measure(
    row: str, seconds: float, repeat: int, trace: bool, profile: cProfile.Profile | None = None
) -> float:
    """Return the least processor time of a command of the row, in microseconds."""
    backlog = int(10_000 * seconds) + 60 if row.startswith("consume") else 0
    queues, fill = (QUEUES if row.endswith("-queues") else 1), [MPUB_1000]
    if row.startswith(("consume-by", "consume-keyed")):
        queues, fill, backlog = QUEUES, keyed(), int(600 * seconds) + 20
    order = row.removeprefix("consume-by-")
    policy = ChannelPolicy(order=order) if order in ("key", "queue") else None
    return uvloop.run(
        least_cost_us(
            ROWS[row][1],
            seconds,
            repeat,
            queues=queues,
            backlog=backlog,
            fill=fill,
            policy=policy,
            trace=trace,
            profile=profile,
        )
    )


def main(arguments: Sequence[str]) -> None:
    """Measure the rows that are named."""
    given = parse(
        __doc__, arguments, rows=",".join(ROWS), seconds=0.5, repeat=5, profile="", trace=False
    )
    if given.profile:
        profile = cProfile.Profile()
        measure(given.profile, given.seconds, 1, given.trace, profile)
        pstats.Stats(profile).sort_stats("tottime").print_stats(28)
        return
    for row in given.rows.split(","):
        cost_us = measure(row, given.seconds, given.repeat, given.trace)
        print(f"{ROWS[row][0]:34} {cost_us:8.2f} us a command", flush=True)
