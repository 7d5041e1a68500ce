"""Consumption that prefers near consumers, over real sockets: flags, IDENTIFY and counts."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests import brokers
from tests.crash.wire import Wire, message, pub
from tests.interop.asking import ask, until

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop
HERE = ("--topology-zone=zone", "--topology-region=region")
PREFER = "--enable-experiment=topology-aware-consumption"
PLACES = [
    {"topology_zone": "zone", "topology_region": "region"},
    {"topology_zone": "zone", "topology_region": "region"},
    {"topology_zone": "zone2", "topology_region": "region"},
    {"topology_zone": "zone3", "topology_region": "far"},
]


broker = brokers.process(*HERE, PREFER, scope="function")


def channel_of(broker: BrokerProcess) -> dict[str, Any]:
    (topic,) = ask(broker.http_address, "/stats?format=json&topic=t")["topics"]
    (channel,) = topic["channels"]
    return dict(channel)


async def publish(broker: BrokerProcess, count: int) -> None:
    producer = await Wire.open(broker.tcp_address)
    for number in range(count):
        producer.send(pub("t", b"%d" % number))
        await producer.ok()
    producer.close()


async def taken(wires: list[Wire], count: int) -> list[int]:
    """Return how many of `count` messages each connection gets."""
    counts = [0] * len(wires)
    got = asyncio.Semaphore(0)

    async def read(number: int) -> None:
        while True:
            message(await wires[number].answer())
            counts[number] += 1
            got.release()

    async with asyncio.timeout(50):
        readers = [asyncio.create_task(read(number)) for number in range(len(wires))]
        for _ in range(count):
            await got.acquire()
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return counts


async def consumers(broker: BrokerProcess, stack: AsyncExitStack, ready: int) -> list[Wire]:
    wires = []
    for place in PLACES:
        wire = await Wire.subscribed(broker.tcp_address, "t", "c", **place)
        stack.callback(wire.close)
        wire.send(b"RDY %d\n" % ready)
        wires.append(wire)
    # An RDY is not answered.
    expected = [ready] * len(PLACES)
    until(lambda: [c["ready_count"] for c in channel_of(broker)["clients"]] == expected)
    return wires


async def test_the_zone_comes_first_then_the_region_then_the_others(broker: BrokerProcess) -> None:
    async with AsyncExitStack() as stack:
        wires = await consumers(broker, stack, 10)
        await publish(broker, 31)
        assert await taken(wires, 31) == [10, 10, 10, 1]
        channel = channel_of(broker)
        names = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
        assert [channel[name] for name in names] == [20, 10, 1]
        assert [
            {key: client[key] for key in client if key.startswith("topology")}
            for client in channel["clients"]
        ] == PLACES
        lines = ask(broker.http_address, "/metrics").splitlines()
        head, labels = "martlet_channel_delivered_", '_messages_total{topic="t",channel="c"}'
        for name, count in (("zone_local", 20), ("region_local", 10), ("elsewhere", 1)):
            assert f"{head}{name}{labels} {count}" in lines


async def test_without_the_experiment_all_take_turns() -> None:
    with BrokerProcess(None, *HERE) as broker:
        async with AsyncExitStack() as stack:
            wires = await consumers(broker, stack, 10)
            await publish(broker, 20)
            assert await taken(wires, 20) == [5, 5, 5, 5]
            assert not [key for key in channel_of(broker) if key.endswith("l_msg_count")]
            assert "zone_local" not in ask(broker.http_address, "/metrics")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((PREFER,), f"{PREFER} has no effect: give --topology-zone or --topology-region too"),
        (("--enable-experiment=other",), "--enable-experiment=other is ignored"),
    ],
)
def test_flags_without_effect_are_logged_at_the_start(flags: tuple[str, ...], says: str) -> None:
    with BrokerProcess(None, *flags) as broker:
        ask(broker.http_address, "/ping")
        (line,) = [line for line in broker.log().splitlines() if says in line]
        assert "WARNING" in line
