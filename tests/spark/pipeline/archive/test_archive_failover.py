"""The archive of a broker with replicas, whose primary is killed: every message once."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession
from tests.spark.publish import publish
from tests.spark.reader.brokers.test_failover import Loop, loop, started, stopped

from martlet.pipeline.archive import ArchiveOptions, archive

__all__ = ["loop"]
pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(300)]


def test_each_message_is_archived_once_over_a_failover(
    spark: SparkSession, tmp_path: Path, loop: Loop
) -> None:
    cluster = loop.run(started(tmp_path))
    options = ArchiveOptions(
        addresses=tuple(cluster.http.values()),
        topics=("t",),
        out=str(tmp_path / "out"),
        once=True,
        max_offsets=500,
    )
    try:
        victim = loop.run(cluster.primary())
        standby = next(name for name in cluster.http if name != victim)
        for start in range(0, 5000, 1000):
            publish(cluster.http[victim], "t", [b"%d" % n for n in range(start, start + 1000)])
        killing = threading.Thread(target=cluster.kill, args=(victim,))
        killing.start()
        archive(options, spark)
        killing.join()
        publish(cluster.http[standby], "t", [b"%d" % n for n in range(5000, 5500)])
        archive(options, spark)
    finally:
        loop.run(stopped(cluster))
    table = ds.dataset(options.out, partitioning="hive").to_table(columns=["offset", "value"])
    rows = sorted(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert rows == [(n, b"%d" % n) for n in range(5500)]
