"""What replicas cost: the same work at a broker alone and at one with standbys, in turns.

    ./run bench replicas [--seconds 3] [--repeat 5] [--standbys 2] [--window 16] [--pin]
                         [--flush async|sync]

The rows are MPUB of 200 messages of 100 bytes from 4 connections with `--window` commands in flight
each, a lone PUB from one connection, and the copying of a log to an empty standby. All
processes share this machine: with fewer processors than processes, a standby takes its time from
the primary. `--pin` gives the primary a processor of its own, and the standbys and the load the
others.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench.flags import parse
from bench.stopwatch import processor_s
from martlet.protocol.nsq import commands
from martlet.server.metadata.sqlite_store import SqliteStore
from martlet.testing.ports import free_port

BODIES = [b"x" * 100] * 200
TOPIC = "bench"
_CONNECTIONS = 4
_OK = b"\0\0\0\6\0\0\0\0OK"
_START_S = 30


@dataclass
class Running:
    """A broker, alone or with standbys.

    Attributes:
        name: how the table calls it.
        folder: holds the data folders.
        processes: the primary's first.
        address: of the primary's TCP port.
    """

    name: str
    folder: Path
    arguments: Sequence[str]
    standby_count: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    address: tuple[str, int] = ("", 0)

    def start(self, pins: Sequence[set[int]]) -> None:
        """Start all processes, and wait until all replicas are in sync."""
        names = "abcdefghi"[: self.standby_count + 1]
        replicas = {name: f"127.0.0.1:{free_port()}" for name in names}
        for number, name in enumerate(names):
            port = free_port()
            command = [
                *(sys.executable, "-m", "martlet", "broker", "--log-level=warn"),
                *(f"--tcp-address=127.0.0.1:{port}", "--http-address="),
                f"--data-path={self.folder / name}",
                *self.arguments,
            ]
            if self.standby_count:
                initial = ",".join(f"{each}={address}" for each, address in replicas.items())
                command += [
                    *(f"--replica-name={name}", f"--replica-address={replicas[name]}"),
                    *(
                        f"--metadata=sqlite:{self.folder}/replicas.db",
                        f"--initial-replicas={initial}",
                        "--min-in-sync=1",  # So that the only standby can be emptied.
                    ),
                ]
            if not number:
                self.address = ("127.0.0.1", port)
            self.commands.append(command)
            self.processes.append(self._started(command, pins[min(number, 1)]))
        self.wait()

    def _started(self, command: list[str], pin: set[int]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command)
        if pin:
            os.sched_setaffinity(process.pid, pin)
        return process

    def wait(self) -> None:
        """Wait until the broker takes clients, and all replicas are in sync."""
        deadline_s = time.monotonic() + _START_S
        while not uvloop.run(self._is_ready()):
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{self.name} did not start within {_START_S} s")
            time.sleep(0.02)

    async def _is_ready(self) -> bool:
        if self.standby_count:
            store = SqliteStore(self.folder / "replicas.db", "martlet")
            found = (await store.read()).replica_set
            await store.close()
            if found is None or len(found.in_sync) <= self.standby_count:
                return False
        try:
            _, writer = await asyncio.open_connection(*self.address)
        except OSError:
            return False
        writer.close()
        return True

    def copy_mb_s(self) -> float:
        """Empty the folder of the last standby; return how fast it copies the log, from its first
        segment until it is in sync.
        """
        last = self.processes.pop()
        last.kill()
        last.wait()
        folder = self.folder / "abcdefghi"[self.standby_count]
        size = sum(file.stat().st_blocks * 512 for file in (folder / "log").iterdir())
        shutil.rmtree(folder)
        uvloop.run(self._until_out())
        self.processes.append(self._started(self.commands[-1], set()))
        while not any((folder / "log").glob("*")):
            time.sleep(0.001)
        began_s = time.monotonic()
        self.wait()
        return size / 1e6 / (time.monotonic() - began_s)

    async def _until_out(self) -> None:
        """Wait until the primary has taken a standby out of sync."""
        store = SqliteStore(self.folder / "replicas.db", "martlet")
        while (found := (await store.read()).replica_set) is not None:
            if len(found.in_sync) <= self.standby_count:
                break
            await asyncio.sleep(0.05)  # The store tells nobody.
        await store.close()

    def stop(self) -> None:
        """Kill all processes."""
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Load(asyncio.Protocol):
    """One connection that keeps commands under way.

    Args:
        command: the same again and again.
        window: how many are under way.
    """

    def __init__(self, command: bytes, window: int) -> None:
        self._command = command
        self._window = window
        self._sent_s: list[float] = []
        self._rest = b""
        self.latencies_s: list[float] = []
        self.is_stopping = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = transport
        self._write(b"  V2")
        for _ in range(self._window):
            self._send()

    def _write(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]

    def _send(self) -> None:
        self._sent_s.append(time.perf_counter())
        self._write(self._command)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._rest += data
        while self._rest.startswith(_OK):
            self._rest = self._rest[len(_OK) :]
            self.latencies_s.append(time.perf_counter() - self._sent_s.pop(0))
            if not self.is_stopping:
                self._send()
        if len(self._rest) >= len(_OK):
            raise SystemExit(f"the broker answered {self._rest!r}")


async def loaded(
    address: tuple[str, int], command: bytes, connections: int, window: int, seconds: float
) -> list[float]:
    """Load a broker; return the time of each command, in seconds."""
    loop = asyncio.get_running_loop()
    loads = [
        (await loop.create_connection(lambda: Load(command, window), *address))[1]
        for _ in range(connections)
    ]
    await asyncio.sleep(seconds)
    for load in loads:
        load.is_stopping = True
        load._transport.close()
    return [latency for load in loads for latency in load.latencies_s]


@dataclass
class Measured:
    """The runs of one broker.

    Attributes:
        batches: messages a second by MPUB.
        lone: microseconds of a lone PUB, the median.
        shares: the processor of each standby, as a part of the primary's.
        copies: MB/s of a log that is copied.
    """

    batches: list[float] = field(default_factory=list)
    lone: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)


def measure(running: Running, window: int, seconds: float, into: Measured) -> None:
    """Measure all rows once."""
    before = [processor_s(process.pid) for process in running.processes]
    batch = commands.publish_many(TOPIC, BODIES)
    found = uvloop.run(loaded(running.address, batch, _CONNECTIONS, window, seconds))
    into.batches.append(len(found) * len(BODIES) / seconds)
    used = [
        processor_s(process.pid) - was
        for process, was in zip(running.processes, before, strict=True)
    ]
    into.shares += [each / used[0] for each in used[1:] if used[0]]
    found = uvloop.run(
        loaded(running.address, commands.publish(TOPIC, BODIES[0]), 1, 1, seconds / 3)
    )
    into.lone.append(statistics.median(found) * 1e6)
    if running.standby_count:
        into.copies.append(running.copy_mb_s())


def main(arguments: Sequence[str]) -> None:
    """Measure brokers in turns, each begun anew with each turn."""
    given = parse(
        __doc__,
        arguments,
        seconds=3.0,
        repeat=5,
        standbys=2,
        window=16,
        flush=("async", "sync"),
        pin=False,
        data_path=None,
    )
    kinds = {
        "alone": (0, []),
        "--replication=async": (given.standbys, ["--replication=async"]),
        "--replication=sync": (given.standbys, ["--replication=sync"]),
    }
    cores = sorted(os.sched_getaffinity(0))
    pins = [{cores[0]}, set(cores[1:])] if given.pin else [set(), set()]
    if given.pin:
        os.sched_setaffinity(0, pins[1])
    measured = {name: Measured() for name in kinds}
    for turn in range(given.repeat):
        for name, (standby_count, more) in kinds.items():
            with ExitStack() as undo:
                folder = Path(tempfile.mkdtemp(prefix="martlet-bench-", dir=given.data_path))
                running = Running(name, folder, [f"--flush={given.flush}", *more], standby_count)
                undo.callback(running.stop)
                running.start(pins)
                measure(running, given.window, given.seconds, measured[name])
            print(
                f"turn {turn + 1}, {name}: {measured[name].batches[-1]:,.0f} msg/s", file=sys.stderr
            )
    Console().print(table(measured, given.standbys, given.flush))


def table(measured: dict[str, Measured], standby_count: int, flush: str) -> Table:
    """The medians."""
    found = Table(title=f"{standby_count} standbys, --flush={flush}, {os.cpu_count()} processors")
    for heading in (
        *("broker", "MPUB msg/s", "beside alone", "PUB p50 us", "standby's processor", "copy MB/s"),
    ):
        found.add_column(heading, justify="left" if heading == "broker" else "right")
    alone = statistics.median(measured["alone"].batches)
    for name, runs in measured.items():
        rate = statistics.median(runs.batches)
        found.add_row(
            name,
            f"{rate:,.0f}",
            f"{rate / alone:.2f} x",
            f"{statistics.median(runs.lone):.0f}",
            _median(runs.shares, "{:.0%}".format),
            _median(runs.copies, "{:.0f}".format),
        )
    return found


def _median(values: list[float], shown: Callable[[float], str]) -> str:
    return shown(statistics.median(values)) if values else ""
