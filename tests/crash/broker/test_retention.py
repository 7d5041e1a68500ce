"""History on a really small disk: it stays while there is space, and hinders no publish."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.log.test_disk_full import small_disk
from tests.crash.wire import Wire, drain, http, mpub, until

from martlet.cli.main import main
from martlet.testing import BrokerProcess

__all__ = ["small_disk"]

pytestmark = pytest.mark.crash

MIB = 1 << 20
BODY_BYTES = 50_000


@pytest.fixture
async def broker(small_disk: Path) -> AsyncIterator[BrokerProcess]:
    with BrokerProcess(
        small_disk / "data",
        f"--max-bytes-per-file={MIB}",
        f"--min-free-bytes={2 * MIB}",
        "--journal-interval=10ms",
        "--checkpoint-interval=100ms",
        "--retention=1h",
    ) as process:
        await http(process.http_address, "/topic/create?topic=t", b"")
        await http(process.http_address, "/channel/create?topic=t&channel=c", b"")
        yield process


async def publish(broker: BrokerProcess, numbers: range) -> list[bytes]:
    bodies = [b"%010d" % number * (BODY_BYTES // 10) for number in numbers]
    wire = await Wire.open(broker.tcp_address)
    for start in range(0, len(bodies), 5):
        wire.send(mpub("t", bodies[start : start + 5]))
        await wire.ok()
    wire.close()
    return bodies


async def described(broker: BrokerProcess) -> Any:
    return json.loads(await http(broker.http_address, "/call/topic.describe", b'{"topic": "t"}'))


async def start_offset(broker: BrokerProcess) -> int:
    start: int = (await described(broker))["queues"][0]["start_offset"]
    return start


async def replayed(broker: BrokerProcess, start: int) -> list[bytes]:
    query = f"/channel/replay?topic=t&channel=c&offset={start}"
    await http(broker.http_address, query, b"")
    got = await drain(broker.tcp_address, broker.http_address, "t", "c")
    return sorted(message.body for message in got)


async def test_history_fills_a_small_disk_to_its_mark_and_refuses_no_publish(
    broker: BrokerProcess,
) -> None:
    bodies = await publish(broker, range(200))
    await drain(broker.tcp_address, broker.http_address, "t", "c")
    assert await replayed(broker, 0) == bodies, "10 MB of a disk of 40 MiB: all of it is there"
    for start in range(200, 1_400, 400):
        bodies += await publish(broker, range(start, start + 400))
        await drain(broker.tcp_address, broker.http_address, "t", "c")

    async def has_free_space() -> bool:
        return await start_offset(broker) > 600

    await until(has_free_space)
    start = await start_offset(broker)
    assert start < 1_200, "what fits stays"
    assert await replayed(broker, start) == bodies[start:]
    broker.kill()
    assert main(["log", "verify", str(broker.data_path)]) == 0
    broker.start()
    start = await start_offset(broker)
    assert await replayed(broker, start) == bodies[start:]


async def test_unfinished_messages_are_not_dropped_for_the_mark(
    broker: BrokerProcess,
) -> None:
    bodies = await publish(broker, range(690))
    disk = os.statvfs(broker.data_path)
    assert disk.f_bavail < 0.15 * disk.f_blocks
    stats = json.loads(await http(broker.http_address, "/stats?format=json"))
    assert stats["health"] == "OK"
    got = await drain(broker.tcp_address, broker.http_address, "t", "c")
    assert sorted(message.body for message in got) == bodies
