"""A broker that may take no more of the disk: its errors, and how soon it takes messages again."""

from __future__ import annotations

import json
import logging

import aiohttp
import pytest
from tests import polling
from tests.crash.wire import Refused, Wire, drain, mpub, until

from martlet.testing import Broker
from martlet.text import readable_size

pytestmark = pytest.mark.interop

SEGMENT_BYTES = 1 << 17
MAX_DISK_BYTES = 8 * SEGMENT_BYTES
BATCH = 50
BODY = b"x" * 500


async def publish(address: str) -> bool:
    """Publish a batch; whether it was taken."""
    wire = await Wire.open(address)
    wire.send(mpub("t", [BODY] * BATCH))
    try:
        await wire.ok()
    except Refused:
        return False
    finally:
        wire.close()
    return True


async def test_refusing_is_logged_and_counted_and_ends_once_consumers_have_finished(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No line was logged, and only the next checkpoint freed space."""
    caplog.set_level(logging.INFO)
    async with (
        Broker(
            max_bytes_per_file=SEGMENT_BYTES,
            max_disk_bytes=MAX_DISK_BYTES,
            min_free_bytes=0,
            checkpoint_interval_ns=3600 * 10**9,
        ) as broker,
        aiohttp.ClientSession(f"http://{broker.http_address}") as http,
    ):
        broker.server.broker.topic("t").channel("c")
        count = 0
        while await publish(broker.tcp_address):
            count += 1
        assert not await publish(broker.tcp_address)
        errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        (message,) = [error for error in errors if error.startswith("LOG: messages are refused: ")]
        size = readable_size(SEGMENT_BYTES)
        assert f"no room for a segment of {size} in {broker.data_path}: " in message
        limit = f"may take {readable_size(MAX_DISK_BYTES)} (--max-disk-bytes)"
        assert f"{limit}; messages are accepted again" in message
        assert message.endswith(
            "when consuming what is stored has freed segments, or when the limit is raised. A"
            " broker that is started again with a smaller --max-bytes-per-file, the size of a"
            " segment, needs less room"
        )
        assert "free on the disk" not in message, "that is not why"
        async with http.get("/stats?format=json") as response:
            (topic,) = json.loads(await response.read())["topics"]
        assert topic["refused_count"] == 2 * BATCH
        async with http.get("/metrics") as response:
            metrics = await response.text()
        assert f'martlet_topic_refused_messages_total{{topic="t"}} {2 * BATCH}\n' in metrics

        got = await drain(broker.tcp_address, broker.http_address, "t", "c")
        assert len(got) == count * BATCH
        await until(lambda: publish(broker.tcp_address))

        def ends() -> list[str]:
            lines = [record.getMessage() for record in caplog.records]
            return [line for line in lines if line.startswith("LOG: messages are accepted again: ")]

        await polling.until(ends)
        assert "writes had been refused in" in ends()[0]
