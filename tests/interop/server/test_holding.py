"""The memory of a broker that holds many clients, channels and messages, and its idle processor.

How long starts and stops take is printed, and to be seen with ``pytest -s``; no test judges it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.crash.wire import HttpRefused, Wire, http, http_now, mpub, until
from tests.interop.memory import MIB, anonymous_bytes, private_bytes

from martlet.testing import BrokerProcess

pytestmark = [pytest.mark.interop, pytest.mark.slow]

QUIET = "--log-level=warn"
CHANNELS = 1000
CONNECTIONS = 5000
BACKLOG = 10_000_000
BODY_BYTES = 200
BATCH = 1000


@contextmanager
def measured(name: str) -> Iterator[None]:
    began_s = time.monotonic()
    yield
    print(f"{name}: {time.monotonic() - began_s:.2f} s")


def cpu_s(process: BrokerProcess) -> float:
    times = psutil.Process(process.process_id).cpu_times()
    return float(times.user + times.system)


def start(process: BrokerProcess, name: str) -> None:
    """Start the broker, until it answers a client."""
    with measured(name):
        process.start()
        while True:
            try:
                assert http_now(process.http_address, "/ping") == b"OK"
            except (OSError, HttpRefused):
                time.sleep(0.01)
            else:
                return


def stop(process: BrokerProcess) -> None:
    with measured("stops"):
        assert process.stop() == 0


async def connected(process: BrokerProcess, number: int) -> list[Wire]:
    """Connections that heartbeats keep alive; the last ones made answer first."""
    wires: list[Wire] = []
    for _ in range(0, number, 100):
        wires += await asyncio.gather(*(Wire.open(process.tcp_address) for _ in range(100)))
    return wires


async def test_a_broker_stops_with_a_thousand_clients_and_keeps_their_messages(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path, QUIET) as process:
        wires = await connected(process, 1000)
        for wire in wires:
            wire.send(b"SUB t c\nRDY 10\n")
        for wire in wires:
            await wire.ok()
        for _ in range(20):
            await http(process.http_address, "/mpub?topic=t", b"\n".join([b"x" * 100] * 1000))
        await asyncio.to_thread(stop, process)
        for wire in wires:
            await wire.ended()
            wire.close()
        start(process, "starts again")
        stats = json.loads(await http(process.http_address, "/stats?format=json&topic=t"))
        assert stats["topics"][0]["channels"][0]["depth"] == 20_000


async def test_thousands_of_idle_connections_are_held(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, QUIET) as process:
        before = private_bytes(process)
        wires = await connected(process, CONNECTIONS)

        async def all_there() -> bool:
            return bool(psutil.Process(process.process_id).num_fds() >= CONNECTIONS)

        await until(all_there)
        grown = private_bytes(process) - before
        used_s, began_s = cpu_s(process), time.monotonic()
        await asyncio.sleep(5)
        share = (cpu_s(process) - used_s) / (time.monotonic() - began_s)
        print(
            f"{CONNECTIONS} idle connections: {grown / MIB:.0f} MiB,"
            f" {grown / CONNECTIONS / 1024:.1f} KiB each, {share:.2%} of a core"
        )
        assert grown < 200 * MIB
        assert share < 0.10
        for wire in (wires[0], wires[-1]):
            wire.send(mpub("t", [b"x"]))
            await wire.ok()
        for wire in wires:
            wire.close()
        stop(process)


async def test_idle_channels_cost_next_to_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, QUIET) as process:
        before = private_bytes(process)
        wires = await connected(process, CHANNELS)
        for number, wire in enumerate(wires):
            wire.send(f"SUB topic{number % 10} channel{number}\nRDY 10\n".encode())
        for wire in wires:
            await wire.ok()
        for number in range(10):
            await http(process.http_address, f"/pub?topic=topic{number}", b"x")
        for wire in wires:
            got = await wire.message()
            wire.send(b"FIN %b\n" % got.id)
        await asyncio.sleep(2)
        used_s, began_s = cpu_s(process), time.monotonic()
        await asyncio.sleep(10)
        share = (cpu_s(process) - used_s) / (time.monotonic() - began_s)
        grown = private_bytes(process) - before
        print(f"{CHANNELS} idle channels: {share:.2%} of a core, {grown / MIB:.0f} MiB")
        assert share < 0.02
        for wire in wires:
            wire.close()


async def fill(process: BrokerProcess) -> None:
    """Publish the backlog, a few batches ahead of the answers."""
    await http(process.http_address, "/topic/create?topic=t", b"")
    await http(process.http_address, "/channel/create?topic=t&channel=c", b"")
    command = mpub("t", [b"x" * BODY_BYTES] * BATCH)
    wire = await Wire.open(process.tcp_address)
    ahead = asyncio.Semaphore(8)

    async def read() -> None:
        for _ in range(BACKLOG // BATCH):
            await wire.ok()
            ahead.release()

    reading = asyncio.create_task(read())
    for _ in range(BACKLOG // BATCH):
        await ahead.acquire()
        wire.send(command)
    await reading
    wire.close()


async def has_all(process: BrokerProcess) -> None:
    """The backlog is there, and its first message comes."""
    stats = json.loads(await http(process.http_address, "/stats?format=json&topic=t"))
    assert stats["topics"][0]["channels"][0]["depth"] == BACKLOG
    wire = await Wire.subscribed(process.tcp_address, "t", "c")
    wire.send(b"RDY 1\n")
    assert (await wire.message()).body == b"x" * BODY_BYTES
    wire.close()


@pytest.mark.timeout(600)
async def test_ten_million_messages_wait(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, QUIET) as process:
        with measured(f"{BACKLOG} messages of {BODY_BYTES} bytes published"):
            await fill(process)
        held = private_bytes(process)
        print(f"private: {held / MIB:.0f} MiB, anonymous {anonymous_bytes(process) / MIB:.0f} MiB")
        await has_all(process)
        stop(process)
        start(process, "ready after a clean stop")
        await has_all(process)
        process.kill()
        start(process, "ready after kill -9")
        await has_all(process)
        process.kill()
        (tmp_path / "checkpoint").unlink()
        start(process, "ready without a checkpoint")
        await has_all(process)
        again = private_bytes(process)
        print(f"private: {again / MIB:.0f} MiB, anonymous {anonymous_bytes(process) / MIB:.0f} MiB")
        assert held < 200 * MIB
        assert again < 200 * MIB
