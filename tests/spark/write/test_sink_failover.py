"""A stream into a broker with replicas, whose primaries are killed: each row once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.crash.replica_cluster import Cluster
from tests.spark.publish import publish, wait_for
from tests.spark.reader.brokers.test_failover import Loop, loop, started, stopped
from tests.spark.stored import values_of

__all__ = ["loop"]
pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(300)]

ROWS = 20_000
LIMIT_S = 60


def copying(spark: SparkSession, cluster: Cluster, checkpoint: Path) -> StreamingQuery:
    """A stream from one topic to another of the same broker, in ten batches."""
    addresses = ",".join(cluster.http.values())
    return (
        spark.readStream.format("martlet")
        .schema("value BINARY")
        .options(addresses=addresses, topic="from", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", ROWS // 10)
        .load()
        .repartition(2)
        .writeStream.format("martlet")
        .options(addresses=addresses, topic="to", blockBytes=4096)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def wait_for_batch(query: StreamingQuery, number: int) -> None:
    def is_there() -> bool:
        return (last := query.lastProgress) is not None and last["batchId"] >= number

    wait_for(is_there, query, LIMIT_S)


def test_each_row_is_stored_once_while_primaries_are_killed(
    spark: SparkSession, tmp_path: Path, loop: Loop
) -> None:
    cluster = loop.run(started(tmp_path))
    try:
        primary = cluster.http[loop.run(cluster.primary())]
        for start in range(0, ROWS, 1000):
            publish(primary, "from", [b"%d" % n for n in range(start, start + 1000)])
        query = copying(spark, cluster, tmp_path / "checkpoint")
        dead = ""
        for number in (1, 5):
            wait_for_batch(query, number)
            if dead:
                cluster.start_one(dead)
                loop.run(cluster.in_sync(3))
            dead = loop.run(cluster.primary())
            cluster.kill(dead)
        assert query.awaitTermination(LIMIT_S)
        counts = Counter(values_of(cluster.http[loop.run(cluster.primary())], "to"))
    finally:
        loop.run(stopped(cluster))
    assert query.exception() is None
    assert counts == Counter(map(str, range(ROWS)))
