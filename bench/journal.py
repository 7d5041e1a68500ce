"""The cost of writing moved cursors to the journal at an interval: the server without sockets.

    ./run bench journal [--channels 1,1000,10000] [--intervals 1s,100ms,10ms] [--repeat 5]

Each channel, of a topic of its own with one consumer, gets a message and finishes it, one channel
after the other, as fast as the broker can. Each interval is measured in turn, and that is repeated;
shown are the medians of the processor time of a message (its PUB, delivery and FIN, with the two
turns of the loop): the mean, the 99th percentile and the maximum, and what the log grew by in
cursors a second. It is the processor's time, so whatever else the machine does counts little.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from statistics import median

import numpy as np
import uvloop

from bench.flags import parse
from bench.inprocess import BODY, Client, serving
from martlet.log.record import lone_length
from martlet.protocol.nsq import commands
from martlet.text import parse_duration

Measured = tuple[float, float, float, float]
"""Mean, 99th percentile and maximum in microseconds, and bytes of the journal a second."""


async def measure(channels: int, interval_ns: int, seconds: float) -> Measured:
    """Run a server with busy channels for some seconds."""
    async with serving(journal_interval_ns=interval_ns, max_topics=0) as server:
        producer = Client(server)
        consumers = []
        for number in range(channels):
            consumer = Client(server)
            consumer.feed(commands.subscribe(f"t{number}", "c"))
            consumer.feed(commands.ready(1))
            consumer.taken()
            consumers.append(consumer)
        publishes = [commands.publish(f"t{number}", BODY) for number in range(channels)]
        for number in range(channels):  # Each index and queue has begun by then.
            await pass_one(producer, consumers[number], publishes[number])
        position = server.broker.log.position
        took_ns: list[int] = []
        began_s = time.monotonic()
        while time.monotonic() < began_s + seconds:
            started_ns = time.thread_time_ns()
            at = len(took_ns) % channels
            await pass_one(producer, consumers[at], publishes[at])
            took_ns.append(time.thread_time_ns() - started_ns)
        grown = server.broker.log.position - position - len(took_ns) * lone_length(len(BODY))
        elapsed_s = time.monotonic() - began_s
    spent_us = np.array(took_ns) / 1000
    p99_us = float(np.percentile(spent_us, 99))
    return spent_us.mean(), p99_us, spent_us.max(), max(0, grown) / elapsed_s


async def pass_one(producer: Client, consumer: Client, publish: bytes) -> None:
    """Publish a message, and finish it."""
    producer.wire.sent.clear()
    producer.feed(publish)
    await asyncio.sleep(0)
    received = consumer.taken()
    consumer.feed(b"FIN " + received[-len(BODY) - 16 : -len(BODY)] + b"\n")
    await asyncio.sleep(0)


def main(arguments: Sequence[str]) -> None:
    """Measure all intervals in turn, several times."""
    given = parse(
        __doc__,
        arguments,
        channels="1,1000,10000",
        intervals="1s,100ms,10ms",
        seconds=3.0,
        repeat=5,
    )
    for channels in map(int, given.channels.split(",")):
        runs: dict[str, list[Measured]] = {each: [] for each in given.intervals.split(",")}
        for _ in range(given.repeat):
            for interval, found in runs.items():
                wanted_ns = parse_duration(interval)
                found.append(uvloop.run(measure(channels, wanted_ns, given.seconds)))
        for interval, found in runs.items():
            cost, p99, peak, grown = (median(column) for column in zip(*found, strict=True))
            print(
                f"{channels:6} channels, each {interval:>6}: {cost:7.2f} us a message;"
                f" p99 {p99:7.1f} us, max {peak / 1000:6.2f} ms;"
                f" {grown / 1e6:6.3f} MB of journal a second",
                flush=True,
            )
