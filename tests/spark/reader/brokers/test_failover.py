"""A stream that reads a broker with replicas, whose primaries are killed: each message once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.crash.replica.test_replicas import TOPIC, Publisher
from tests.crash.replica_cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

LIMIT_S = 60


class Loop:
    """An event loop in a thread, for the cluster and its publisher."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def run(self, step: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(step, self.loop).result(3 * LIMIT_S)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.stop()


async def started(folder: Path, *arguments: str) -> Cluster:
    cluster = Cluster(folder, "abc", "async", arguments=arguments)
    await cluster.start()
    await cluster.in_sync(3)
    return cluster


async def stopped(cluster: Cluster) -> None:
    cluster.kill_all()
    await cluster.store.close()


class Rows:
    """The rows that the query has brought."""

    def __init__(self) -> None:
        self.received: list[tuple[int, bytes]] = []
        self._changed = threading.Condition()

    def add(self, rows: DataFrame, _: int) -> None:
        some = [(row.offset, bytes(row.value)) for row in rows.collect()]
        with self._changed:
            self.received += some
            self._changed.notify_all()

    def wait_for(self, bodies: set[bytes]) -> None:
        with self._changed:
            came = self._changed.wait_for(
                lambda: bodies <= {body for _, body in self.received}, LIMIT_S
            )
        assert came, f"{len(self.received)} rows came, and not all of {len(bodies)}"


def test_a_stream_goes_on_exactly_once_while_primaries_are_killed(
    spark: SparkSession, tmp_path: Path, loop: Loop
) -> None:
    cluster = loop.run(started(tmp_path))
    publisher = loop.run(Publisher(cluster).__aenter__())
    rows = Rows()
    query = (
        spark.readStream.format("martlet")
        .schema("offset LONG, value BINARY")
        .options(addresses=",".join(cluster.http.values()), topic=TOPIC, startingOffsets="earliest")
        .load()
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(rows.add)
        .start()
    )
    try:
        for _ in range(2):
            rows.wait_for(set(publisher.answered))
            loop.run(publisher.fail_over())
        rows.wait_for(set(publisher.answered))
    finally:
        query.stop()
        loop.run(publisher.__aexit__())
        loop.run(stopped(cluster))
    assert query.exception() is None
    assert max(Counter(body for _, body in rows.received).values()) == 1
    assert [offset for offset, _ in rows.received] == list(range(len(rows.received)))
