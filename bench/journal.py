"""What it costs to write cursors down every so often: the server without sockets.

    python bench/journal.py [--channels 1,1000,10000] [--intervals 1s,100ms,10ms] [--repeat 5]

So many channels, each of a topic of its own with one consumer, get a message and finish it, one
channel after the other, as fast as the broker can.  Each interval is measured in turn, and that is
repeated; shown are the medians of the processor time of a message (its PUB, delivery and FIN, with
the two turns of the loop): the mean, the 99th percentile and the worst, and what the log grew by in
cursors a second.  It is the processor's time, so whatever else the machine does counts little.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from statistics import median
from typing import NamedTuple

import numpy as np
import uvloop

from bench.hot_path import BODY, Client
from martlet.durations import parse_duration
from martlet.log.single_record import lone_length
from martlet.options import BrokerOptions
from martlet.protocol.nsq import commands
from martlet.server.server import Server


class Measured(NamedTuple):
    """One run."""

    cost_us: float
    p99_us: float
    max_us: float
    journal_bytes_s: float


async def measure(channels: int, interval_ns: int, seconds: float) -> Measured:
    """Run a server with so many busy channels for some seconds."""
    with tempfile.TemporaryDirectory(prefix="martlet-journal-") as folder:
        anywhere = "127.0.0.1:0"
        options = BrokerOptions(
            tcp_address=anywhere,
            http_address=anywhere,
            data_path=folder,
            journal_interval_ns=interval_ns,
            max_topics=0,
        )
        server = Server(options, logging.getLogger("journal"))
        await server.start()
        producer = Client(server)
        consumers = []
        for number in range(channels):
            consumer = Client(server)
            consumer.feed(commands.subscribe(f"t{number}", "c"))
            consumer.feed(commands.ready(1))
            consumer.taken()
            consumers.append(consumer)
        log = server.broker.log
        publishes = [commands.publish(f"t{number}", BODY) for number in range(channels)]
        for number in range(channels):  # Each index and queue has begun by then.
            await one(producer, consumers[number], publishes[number])
        position, took_ns = log.position, []
        began_s = time.monotonic()
        number = 0
        while time.monotonic() < began_s + seconds:
            started_ns = time.thread_time_ns()
            at = number % channels
            await one(producer, consumers[at], publishes[at])
            took_ns.append(time.thread_time_ns() - started_ns)
            number += 1
        grown = log.position - position - number * lone_length(len(BODY))
        elapsed_s = time.monotonic() - began_s
        for connection in list(server.connections):
            connection.connection_lost(None)
        await server.stop()
    spent_us = np.array(took_ns) / 1000
    p99_us = float(np.percentile(spent_us, 99))
    return Measured(spent_us.mean(), p99_us, spent_us.max(), max(0, grown) / elapsed_s)


async def one(producer: Client, consumer: Client, publish: bytes) -> None:
    """Publish a message, and finish it."""
    producer.wire.sent.clear()
    producer.feed(publish)
    await asyncio.sleep(0)
    received = consumer.taken()
    consumer.feed(b"FIN " + received[-len(BODY) - 16 : -len(BODY)] + b"\n")
    await asyncio.sleep(0)


def main() -> int:
    """Measure all intervals in turn, several times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--channels", default="1,1000,10000")
    parser.add_argument("--intervals", default="1s,100ms,10ms")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    intervals = given.intervals.split(",")
    for channels in map(int, given.channels.split(",")):
        runs: dict[str, list[Measured]] = {interval: [] for interval in intervals}
        for _ in range(given.repeat):
            for interval in intervals:
                wanted_ns = parse_duration(interval)
                runs[interval].append(uvloop.run(measure(channels, wanted_ns, given.seconds)))
        for interval, found in runs.items():
            cost, p99, worst, grown = (median(column) for column in zip(*found, strict=True))
            print(
                f"{channels:6} channels, each {interval:>6}: {cost:7.2f} us a message;"
                f" p99 {p99:7.1f} us, max {worst / 1000:6.2f} ms;"
                f" {grown / 1e6:6.3f} MB of journal a second",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
