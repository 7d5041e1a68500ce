"""A broker that may take little of the disk and drops the oldest, under a producer that never
ends, and killed in between.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.wire import Wire, drain, http, mpub

from martlet.cli.main import main
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

SEGMENT_BYTES = 1 << 17
MAX_BYTES = 8 * SEGMENT_BYTES
INDEX_BYTES = 1 << 16
"""Growth of the indexes until the next segment is made, and all is counted."""
BATCH = 50
BODY_BYTES = 500


@pytest.fixture(params=["async", pytest.param("sync", marks=pytest.mark.slow)])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(
        tmp_path / "data",
        f"--max-bytes-per-file={SEGMENT_BYTES}",
        f"--max-disk-bytes={MAX_BYTES}",
        "--min-free-bytes=0",
        "--disk-full-policy=drop-oldest",
        "--checkpoint-interval=50ms",
        f"--flush={request.param}",
    ) as process:
        yield process


def taken_bytes(broker: BrokerProcess) -> int:
    return sum(path.stat().st_size for path in broker.data_path.glob("*/*"))


async def dropped_count(broker: BrokerProcess) -> int:
    stats = json.loads(await http(broker.http_address, "/stats?format=json&topic=t"))
    (topic,) = stats["topics"]
    (channel,) = topic["channels"]
    assert topic["dropped_count"] == channel["dropped_count"]
    count = channel["dropped_count"]
    metrics = (await http(broker.http_address, "/metrics")).decode()
    dropped = re.findall(
        r"^martlet_(?:channel|topic)_dropped_messages_total{.*} (\d+)$", metrics, re.M
    )
    assert dropped == [str(count)] * 2
    assert isinstance(count, int)
    return count


async def test_publishing_never_ends(broker: BrokerProcess) -> None:
    numbers = itertools.count()
    answered: list[bytes] = []

    async def publish(wire: Wire, count: int) -> None:
        for _ in range(count):
            bodies = [b"%09d " % next(numbers) * (BODY_BYTES // 10) for _ in range(BATCH)]
            wire.send(mpub("t", bodies))
            await wire.ok()
            answered.extend(bodies)
            assert taken_bytes(broker) <= MAX_BYTES + INDEX_BYTES

    await http(broker.http_address, "/topic/create?topic=t", b"")
    await http(broker.http_address, "/channel/create?topic=t&channel=c", b"")
    wire = await Wire.open(broker.tcp_address)
    await publish(wire, 80)
    assert await http(broker.http_address, "/ping") == b"OK"
    before = await dropped_count(broker)
    assert before > len(answered) // 3
    broker.kill()
    wire.close()
    assert main(["log", "verify", str(broker.data_path)]) == 0
    broker.start()
    wire = await Wire.open(broker.tcp_address)
    await publish(wire, 40)
    wire.close()
    dropped = before + await dropped_count(broker)
    got = await drain(broker.tcp_address, broker.http_address, "t", "c")
    assert [message.body for message in got] == answered[dropped:]
    assert all(message.attempts == 1 for message in got)
    assert broker.stop() == 0
    assert main(["log", "verify", str(broker.data_path)]) == 0
    lines = re.findall(
        r"the oldest segment, of \d+ bytes, has gone with (\d+) .*: t/c \d+$", broker.log(), re.M
    )
    assert sum(map(int, lines)) == dropped
    assert "are lost" not in broker.log()


async def test_a_reader_of_the_log_gets_an_error_for_dropped_messages(
    broker: BrokerProcess,
) -> None:
    wire = await Wire.open(broker.tcp_address)
    for number in range(80):
        wire.send(mpub("t", [b"%d " % number * 100] * BATCH))
        await wire.ok()
    wire.close()
    (topic,) = json.loads(await http(broker.http_address, "/log/topics"))["topics"]
    (queue,) = topic["queues"]
    start = queue["start_offset"]
    assert 0 < start < queue["end_offset"] == 80 * BATCH
    with pytest.raises(Exception, match=f"410 .*offset 0 of topic t has gone.*begins at {start}"):
        await http(broker.http_address, "/log/batches?topic=t&offset=0")
    assert await http(broker.http_address, f"/log/batches?topic=t&offset={start}")
