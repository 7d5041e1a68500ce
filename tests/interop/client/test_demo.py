"""The publishing and the handling of the demonstration, with a broker and without Spark."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from examples.flights.handling import TOPIC, DemoHandling
from examples.flights.publishing import DemoPublishing
from martlet.client import Consumer
from martlet.testing import Broker

FLIGHTS = 5_000


def messages() -> list[bytes]:
    flights = ({"row": row, "carrier": "UA", "dep_delay": row % 7} for row in range(FLIGHTS))
    return [json.dumps(flight).encode() for flight in flights]


async def test_consumers_get_all_though_another_channel_was_first(tmp_path: Path) -> None:
    # What an archive's channel is here: a second channel has no backlog, so it must not come late.
    async with Broker(tmp_path) as broker, Consumer(TOPIC, "archive", broker.tcp_address):
        handling = DemoHandling(broker.tcp_address, FLIGHTS)
        publishing = DemoPublishing(
            broker.tcp_address, messages(), 100_000, {handling.finished: 0.1}
        )
        async with asyncio.timeout(60), handling, asyncio.TaskGroup() as group:
            group.create_task(handling.run())
            await publishing.run()
            await handling.finished.reach(FLIGHTS)
            handling.stop()
    assert publishing.published == publishing.acknowledged.count == FLIGHTS
    assert bytes(publishing.answered) == handling.done == b"\1" * FLIGHTS
    assert handling.failures == FLIGHTS // 100
    assert handling.deliveries >= FLIGHTS + handling.failures
    assert handling.report()["UA"].flights == FLIGHTS


async def test_publishing_waits_for_consumers_that_are_slow(tmp_path: Path) -> None:
    async with Broker(tmp_path) as broker:
        handling = DemoHandling(broker.tcp_address, FLIGHTS)  # It is not run.
        publishing = DemoPublishing(
            broker.tcp_address, messages(), 100_000, {handling.finished: 0.1}
        )
        running = asyncio.ensure_future(publishing.run())
        done, _ = await asyncio.wait([running], timeout=1.0)
        assert not done
        assert publishing.published <= FLIGHTS // 10 + 200
        running.cancel()
        await asyncio.wait([running])
