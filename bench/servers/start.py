"""What a broker costs that does nothing: its start, its memory, clients that are idle.

    ./run bench start [--messages=10000000] [--connections=5000] [--seconds=10] [--repeat=5]

An empty broker is started, then one with a backlog, after a clean stop and after a kill: the time
until it takes clients, and the processor's until it answers over HTTP. The memory is what is no
part of a file. The idle connections are left alone, but for heartbeats.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.flags import parse
from bench.stopwatch import anonymous_bytes, processor_s
from martlet.addresses import Address
from martlet.client import Identity
from martlet.client.transport.connection import Connection
from martlet.protocol.nsq import commands
from martlet.testing import BrokerProcess

_BODY = b"x" * 200
_BATCH = 1000


async def store(address: str, count: int) -> None:
    """Publish a backlog to a channel."""
    connection = await Connection.open(Address.parse(address), Identity())
    await connection.call("channel.want", topic="backlog", channel="all", policy={})
    for _ in range(count // _BATCH):
        await connection.ask(commands.publish_many("backlog", [_BODY] * _BATCH))
    connection.close()


def started(broker: BrokerProcess, start: Callable[[], None]) -> tuple[float, float]:
    """Start a broker; returns the seconds until it takes clients, and the processor's."""
    began_s = time.monotonic()
    start()
    wall_s = time.monotonic() - began_s
    urllib.request.urlopen(f"http://{broker.http_address}/ping").close()  # HTTP is loaded later.
    return wall_s, processor_s(broker.process_id)


def show(work: str, runs: Sequence[tuple[float, float]]) -> None:
    """Print the medians."""
    wall_s, busy_s = (statistics.median(each) for each in zip(*runs, strict=True))
    print(f"{work}: {wall_s:.2f} s, {busy_s:.2f} s of processor", flush=True)


async def idle(broker: BrokerProcess, count: int, seconds: float) -> None:
    """Connect consumers, leave them alone, and print what they cost."""
    before = anonymous_bytes(broker.process_id)
    address = Address.parse(broker.tcp_address)
    connections = [await Connection.open(address, Identity()) for _ in range(count)]
    grown = anonymous_bytes(broker.process_id) - before
    began_s = processor_s(broker.process_id)
    await asyncio.sleep(seconds)
    share = (processor_s(broker.process_id) - began_s) / seconds
    print(f"{count:,} idle connections: {grown >> 20} MiB, {share:.1%} of a processor")
    for connection in connections:
        connection.close()


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the lines."""
    given = parse(__doc__, arguments, messages=10_000_000, connections=5000, seconds=10.0, repeat=5)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    empty = []
    for _ in range(given.repeat):
        broker = BrokerProcess()
        empty.append(started(broker, broker.start))
        broker.close()
    show("start of an empty broker", empty)
    with TemporaryDirectory() as folder, BrokerProcess(Path(folder)) as broker:
        asyncio.run(store(broker.tcp_address, given.messages))
        clean, killed = [], []
        for _ in range(given.repeat):
            broker.stop()
            clean.append(started(broker, broker.start))
            broker.kill()
            killed.append(started(broker, broker.start))
        show(f"start with {given.messages:,} messages, after a clean stop", clean)
        show("the same after a kill", killed)
        print(f"memory beside the log: {anonymous_bytes(broker.process_id) >> 20} MiB")
        asyncio.run(idle(broker, given.connections, given.seconds))
