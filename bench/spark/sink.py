"""Spark's exactly-once sink beside Spark's own Parquet writer, from the same rows.

    ./run bench spark-sink [--messages 10000000] [--size 200] [--rounds 3] [--master local[2]]
                           [--sizes] [--keys] [--batch-rows 1000000] [--folder DIR] [--json FILE]

Rows of random hexadecimal digits are written as Parquet files, which are copied in turns, after
one turn that does not count: from Parquet to Parquet, as Spark does it by itself, and from Parquet
to a topic, by a stream whose batches are `--batch-rows` rows each, published by one commit each.
With `--keys` each row has an order key too, out of a million, and with `--sizes` lengths differ,
from half of `--size` up to it.

Printed is the median of the rounds. Each round has a broker and a data folder of its own.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.http_api import stored_count
from bench.spark.beside import compare, setting, timed
from bench.stopwatch import processor_s
from martlet.testing import BrokerProcess

TOPIC = "rows"
FILES_A_BATCH = 2
"""As many as there are processors, each of which is a task."""


def make(spark: SparkSession, folder: Path, asked: argparse.Namespace) -> None:
    """Write the rows to copy."""
    files = FILES_A_BATCH * max(1, round(asked.messages / asked.batch_rows))
    pieces = [F.md5(F.concat("id", F.lit(f" {n}"))) for n in range(-(-asked.size // 32))]
    letters = F.concat(*pieces)
    length = F.lit(asked.size)
    if asked.sizes:
        length = (F.lit(asked.size // 2) + F.hash("id") % (asked.size // 2)).cast("int")
    rows = spark.range(0, asked.messages, numPartitions=files).select(
        F.substring(letters, F.lit(1), length).cast("binary").alias("value"),
        *([F.concat(F.lit("key "), F.hash("id") % 1_000_000).alias("key")] if asked.keys else []),
    )
    rows.write.parquet(str(folder))


def to_topic(spark: SparkSession, source: Path, folder: Path, rows: int) -> tuple[float, float]:
    """Copy by the sink. Returns the seconds that it took, and those of the broker's processor."""
    schema = spark.read.parquet(str(source)).schema
    with BrokerProcess(folder / "data") as broker:
        started_s = time.monotonic()
        query = (
            spark.readStream.schema(schema)
            .option("maxFilesPerTrigger", FILES_A_BATCH)
            .parquet(str(source))
            .writeStream.format("martlet")
            .option("addresses", broker.http_address)
            .option("topic", TOPIC)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        took_s = time.monotonic() - started_s
        stored = stored_count(broker.http_address, TOPIC)
        if stored != rows:
            raise SystemExit(f"{stored} rows were published, not {rows}")
        return took_s, processor_s(broker.process_id)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    broker_s: list[float] = []
    defaults = {"sizes": False, "keys": False, "batch_rows": 1_000_000}
    with setting(__doc__, arguments, is_filled=False, **defaults) as bench:
        given, spark, folder = bench.given, bench.spark, bench.folder
        source, own = folder / "source", folder / "own"
        make(spark, source, given)
        rows = spark.read.parquet(str(source))

        def by_spark() -> float:
            return timed(lambda: rows.write.mode("overwrite").parquet(str(folder / "parquet")))

        def by_sink() -> float:
            took_s, used_s = to_topic(spark, source, own, given.messages)
            broker_s.append(used_s)
            shutil.rmtree(own)
            return took_s

        ways = {"Parquet to Parquet": by_spark, "Parquet to a topic, exactly once": by_sink}
        compare(given, ways, "Parquet to Parquet")
    each_ns = statistics.median(broker_s[1:]) / given.messages * 1e9
    print(f"the broker's processor: {each_ns:.0f} ns a row")
