"""Messages are found by their keys after kills: of a broker that builds an index, of a primary."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.crash.replica_cluster import Clusters
from tests.crash.wire import until

from martlet.client import Admin, Producer
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

BODY = b"x" * 300
COUNT = 3000
"""Messages of a segment of 1 MiB and some more."""


async def publish(addresses: list[str], first: int) -> None:
    """Publish messages with the keys order-FIRST and on, half of which share the key all."""
    async with Producer(addresses) as producer:
        await asyncio.gather(
            *(
                producer.send("orders", BODY, keys=[f"order-{number}", *["all"][: number % 2]])
                for number in range(first, first + COUNT)
            )
        )


async def found(address: str, key: str) -> list[tuple[str, ...]]:
    """The keys of the messages with a key, at the one broker there is."""
    async with Admin([address]) as admin:
        answers = await admin.messages.by_key("orders", key)
        (answer,) = answers.values.values()
        return [tuple(message.properties["keys"]) for message in answer.messages]


def indexes(folder: Path) -> list[Path]:
    return sorted((folder / "log").glob("*.keys"))


async def test_keys_are_found_after_kills_while_their_index_is_built(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--max-bytes-per-file=1MiB") as broker:
        first = 0
        for _ in range(3):
            # The first build is under way, or just done, when the answer to the last send is there.
            await publish([broker.tcp_address], first)
            broker.kill()
            begun = tmp_path / "log" / f"{0:020d}.keys.new"
            begun.write_bytes(b"MTKI")
            broker.start()
            assert not begun.exists()
            first += COUNT
        for number in range(0, first, first // 30):
            assert await found(broker.http_address, f"order-{number}") == [
                (f"order-{number}", *["all"][: number % 2])
            ]
        # What the kills have cost is built, as the search has missed it.
        segments = sorted((tmp_path / "log").glob("*.log"))

        async def is_indexed() -> bool:
            return [path.stem for path in indexes(tmp_path)] == [
                path.stem for path in segments[:-1]
            ]

        await until(is_indexed)
        assert len(segments) >= 3


async def test_a_standby_that_takes_over_finds_keys_by_its_own_index(
    tmp_path: Path, clusters: Clusters
) -> None:
    cluster = await clusters.start("ab")
    await publish(cluster.brokers, 0)
    await publish(cluster.brokers, COUNT)
    await cluster.alike()

    async def both_indexed() -> bool:
        a, b = ([path.name for path in indexes(tmp_path / name)] for name in "ab")
        return bool(a) and a == b

    await until(both_indexed)
    primary = await cluster.primary()
    cluster.kill(primary)
    # Else it may be back before the other is a candidate, and be elected again.
    other = await cluster.primary(but=primary)
    cluster.start_one(primary)  # One alone confirms nothing.
    await cluster.in_sync(2)
    for number in (0, 1, COUNT, 2 * COUNT - 1):
        keys = await found(cluster.http[other], f"order-{number}")
        assert keys == [(f"order-{number}", *["all"][: number % 2])]
    await cluster.stop()
