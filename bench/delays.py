"""Delayed messages: what millions of them cost a broker, and how exactly they come.

    ./run bench delays [--pending 5000000] [--sent 100000] [--due 20000] [--over 20]
        [--lead-ms 1] [--burst 200000] [--load 2000] [--json FILE]

One broker, a process of its own, and this one beside it:

publish   `--sent` messages of 100 bytes, one a SEND, due at random in 30 to 60 minutes
fill      the core alone, in a process of its own, publishes as many to its folder as are missing to
          `--pending`, one by one: what the broker needs for a message beside the wire
restart   the broker is started with all of them: until it listens
exact     `--due` messages due at random within `--over` seconds, while those wait and `--load`
          messages a second are published to another topic and consumed from it: how late each came
          here, in milliseconds. An early one fails the benchmark.
burst     `--burst` messages due at one time, until the last has come

For the broker: resident memory (anonymous memory is its own; the rest are pages of the log and the
indexes, which the kernel takes back when it needs them), and microseconds of its processor for a
message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import struct
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.flags import parse
from martlet.broker.broker import BrokerCore
from martlet.broker.recovery.restore import restore
from martlet.broker.retention.checkpoint import begin_checkpoint, end_checkpoint
from martlet.options import BrokerOptions
from martlet.protocol.nsq import commands
from martlet.server.clock import Clock
from martlet.server.data_folder import open_folder
from martlet.testing import BrokerProcess

BODY_BYTES = 100
AT_ONCE = 500
_HEAD = struct.Struct(">II")
_DUE = struct.Struct(">q")
_FRAME_BYTES = 34
_RESPONSE, _MESSAGE = 0, 2


class Wire:
    """A connection that asks for extensions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, address: str) -> Wire:
        """Connect."""
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
        wire = cls(reader, writer)
        wire.send(b"  V2" + commands.identify({"martlet": True, "feature_negotiation": True}))
        await wire.frame()
        return wire

    def send(self, data: bytes) -> None:
        """Write commands."""
        self._writer.write(data)

    async def frame(self) -> tuple[int, bytes]:
        """Kind and content of the next frame that is no heartbeat."""
        while True:
            size, kind = _HEAD.unpack(await self._reader.readexactly(8))
            content = await self._reader.readexactly(size - 4)
            if content != b"_heartbeat_":
                return kind, content
            self.send(b"NOP\n")

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


def due(at_ms: int) -> bytes:
    """A SEND of one message that tells when it is due."""
    body = _DUE.pack(at_ms).ljust(BODY_BYTES, b".")
    return commands.send("delayed", [body], {"deliver_at_ms": at_ms})


async def publish(address: str, times_ms: list[int]) -> None:
    """Send messages for some times."""
    wire = await Wire.open(address)
    for start in range(0, len(times_ms), AT_ONCE):
        some = times_ms[start : start + AT_ONCE]
        wire.send(b"".join(map(due, some)))
        for _ in some:
            _, answer = await wire.frame()
            if b'"OK"' not in answer:
                raise SystemExit(f"refused: {answer!r}")
    wire.close()


async def subscribed(address: str, topic: str) -> Wire:
    """A connection that consumes a topic."""
    wire = await Wire.open(address)
    wire.send(b"SUB %b c\nRDY 2500\n" % topic.encode())
    await wire.frame()
    return wire


async def consume(wire: Wire, count: int) -> list[float]:
    """How late each message comes, in milliseconds."""
    late_ms: list[float] = []
    while len(late_ms) < count:
        kind, content = await wire.frame()
        if kind == _MESSAGE:
            late_ms.append(time.time() * 1000 - _DUE.unpack_from(content, _FRAME_BYTES - 8)[0])
            wire.send(b"FIN %b\n" % content[10:26])
    return late_ms


async def load(address: str, rate: int) -> None:
    """Other messages, at a rate, until cancelled."""
    publisher, consumer = await Wire.open(address), await subscribed(address, "other")

    async def take() -> None:
        while True:
            kind, content = await consumer.frame()
            if kind == _MESSAGE:
                consumer.send(b"FIN %b\n" % content[10:26])

    taking = asyncio.create_task(take())
    try:
        while True:
            publisher.send(commands.publish_many("other", [b"x" * BODY_BYTES] * max(1, rate // 50)))
            await publisher.frame()
            await asyncio.sleep(0.02)
    finally:
        taking.cancel()
        publisher.close()
        consumer.close()


class Gauge:
    """The time, processor and memory that a process uses from now on."""

    def __init__(self, process_id: int | None = None) -> None:
        self._process = psutil.Process(process_id)
        self._began = time.perf_counter()
        self._cpu = self._used()

    def _used(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def row(self, count: int) -> dict[str, Any]:
        """The row of a table, for `count` messages."""
        memory = self._process.memory_info()
        return {
            "messages": count,
            "seconds": round(time.perf_counter() - self._began, 2),
            "cpu_us": round((self._used() - self._cpu) * 1e6 / max(1, count), 2),
            "own_mb": round((memory.rss - memory.shared) / 1e6),
            "resident_mb": round(memory.rss / 1e6),
        }


def later_ms(chance: random.Random) -> int:
    """A time in 30 to 60 minutes."""
    return time.time_ns() // 10**6 + chance.randrange(1_800_000, 3_600_000)


def fill(folder: Path, count: int) -> dict[str, Any]:
    """Publish messages to a data folder that no broker has open."""
    options = BrokerOptions()
    storage = open_folder(folder, options, logging.getLogger("martlet")).storage
    broker, _ = restore(storage, Clock(), random.Random(2), segment_bytes=options.segment_bytes)
    topic, chance = broker.topic("delayed"), random.Random(3)
    gauge = Gauge()
    for number in range(count):
        at_ms = later_ms(chance)
        body = _DUE.pack(at_ms).ljust(BODY_BYTES, b".")
        broker.delays.publish(topic, [body], at_ms * 10**6)
        if number % 100_000 == 0:
            checkpoint(broker)
    checkpoint(broker)
    row = gauge.row(count)
    storage.close()
    return row


def checkpoint(broker: BrokerCore) -> None:
    """Save where everything is."""
    job = begin_checkpoint(broker)
    job.flush.run()
    job.save()
    end_checkpoint(broker, job)


async def run(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Measure all of it."""
    rows: dict[str, dict[str, Any]] = {}
    chance = random.Random(1)
    with BrokerProcess(None, "--log-level=warn") as broker:
        rows["empty"] = Gauge(broker.process_id).row(0)
        times = [later_ms(chance) for _ in range(given.sent)]
        gauge = Gauge(broker.process_id)
        await publish(broker.tcp_address, times)
        rows["publish"] = gauge.row(given.sent)
        broker.kill()
        with ProcessPoolExecutor(1, get_context("spawn")) as other:
            job = other.submit(fill, broker.data_path, given.pending - given.sent)
            rows["fill"] = job.result()
        began = time.perf_counter()
        broker.start()
        rows["restart"] = Gauge(broker.process_id).row(0) | {
            "seconds": round(time.perf_counter() - began, 2)
        }

        consumer = await subscribed(broker.tcp_address, "delayed")
        loading = asyncio.create_task(load(broker.tcp_address, given.load))
        soon_ms = time.time_ns() // 10**6 + 3000 + given.due * given.lead_ms
        times = [soon_ms + chance.randrange(given.over * 1000) for _ in range(given.due)]
        gauge = Gauge(broker.process_id)
        consuming = asyncio.create_task(consume(consumer, given.due))
        await publish(broker.tcp_address, times)
        if time.time_ns() // 10**6 > soon_ms:
            raise SystemExit("publishing took too long: some were due before; see --lead-ms")
        late_ms = sorted(await consuming)
        rows["exact"] = gauge.row(given.due) | {
            "late_ms": {
                name: round(late_ms[min(len(late_ms) - 1, int(len(late_ms) * part))], 2)
                for name, part in (("min", 0), ("p50", 0.5), ("p99", 0.99), ("max", 1))
            }
        }
        if late_ms[0] < 0:
            raise SystemExit(f"one came {-late_ms[0]} ms before its time")
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)

        at_ms = time.time_ns() // 10**6 + 3000 + given.burst * given.lead_ms
        await publish(broker.tcp_address, [at_ms] * given.burst)
        await asyncio.sleep(max(0, at_ms / 1000 - time.time()))
        gauge = Gauge(broker.process_id)
        await consume(consumer, given.burst)
        rows["burst"] = gauge.row(given.burst)
        consumer.close()
    return rows


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(
        "", "messages", "seconds", "a second", "CPU us", "own MB", "resident MB", "late ms"
    )
    for name, row in rows.items():
        count = row["messages"]
        late = row.get("late_ms", {})
        table.add_row(
            name,
            f"{count:,}",
            f"{row['seconds']:.2f}",
            f"{count / row['seconds']:,.0f}" if count else "",
            f"{row['cpu_us']:.1f}" if count else "",
            str(row["own_mb"]),
            str(row["resident_mb"]),
            ", ".join(f"{key} {value}" for key, value in late.items()),
        )
    Console(width=120).print(table)


def main(arguments: Sequence[str]) -> None:
    """Measure, and print it. `--over` is in seconds, `--load` in messages a second."""
    given = parse(
        __doc__,
        arguments,
        pending=5_000_000,
        sent=100_000,
        due=20_000,
        over=20,
        lead_ms=1,
        burst=200_000,
        load=2000,
        json=None,
    )
    rows = asyncio.run(run(given))
    show(rows)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))
