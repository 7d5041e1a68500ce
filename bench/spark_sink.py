"""Spark's exactly-once sink beside Spark's own Parquet writer, from the same rows.

    spark_sink.py [--rows 10000000] [--size 200] [--rounds 3] [--master local[2]] [--folder DIR]

Rows of random hexadecimal digits are written as Parquet files, which are copied in turns, after
one turn that does not count: from Parquet to Parquet, as Spark does it by itself, and from Parquet
to a topic, by a stream whose batches are `--batch-rows` rows each, published by one commit each.
With `--keys` each row has an order key too, out of a million, and with `--sizes` lengths differ.

What is printed is the median of the rounds.  Each round has a broker and a data folder of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from martlet.spark.java import spark_session
from martlet.testing import BrokerProcess

TOPIC = "rows"
FILES_A_BATCH = 2
"""As many as there are processors, each of which is a task."""


def make(spark: SparkSession, folder: Path, asked: argparse.Namespace) -> int:
    """Write the rows to copy. Returns how many files there are."""
    files = FILES_A_BATCH * max(1, round(asked.rows / asked.batch_rows))
    pieces = [F.md5(F.concat("id", F.lit(f" {n}"))) for n in range(-(-asked.size // 32))]
    letters = F.concat(*pieces)
    length = F.lit(asked.size)
    if asked.sizes:
        length = (F.lit(asked.size // 2) + F.hash("id") % (asked.size // 2)).cast("int")
    rows = spark.range(0, asked.rows, numPartitions=files).select(
        F.substring(letters, F.lit(1), length).cast("binary").alias("value"),
        *([F.concat(F.lit("key "), F.hash("id") % 1_000_000).alias("key")] if asked.keys else []),
    )
    rows.write.parquet(str(folder))
    return files


def to_parquet(rows: DataFrame, folder: Path) -> float:
    """Copy as Spark does it by itself. Returns the seconds that it took."""
    started_s = time.monotonic()
    rows.write.parquet(str(folder))
    return time.monotonic() - started_s


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
        stored = stored_count(broker.http_address)
        if stored != rows:
            raise SystemExit(f"{stored} rows were published, not {rows}")
        fields = Path(f"/proc/{broker.process_id}/stat").read_text().rsplit(")", 1)[1].split()
        return took_s, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stored_count(address: str) -> int:
    """How many messages the topic has."""
    with urllib.request.urlopen(f"http://{address}/log/topics", timeout=30) as answer:
        topics = json.load(answer)["topics"]
    queues = [queue for each in topics if each["topic"] == TOPIC for queue in each["queues"]]
    return sum(queue["end_offset"] for queue in queues)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=200, help="bytes a row")
    parser.add_argument("--sizes", action="store_true", help="rows of half as much up to that")
    parser.add_argument("--keys", action="store_true", help="rows have order keys")
    parser.add_argument("--batch-rows", type=int, default=1_000_000, help="rows a micro-batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--folder", type=Path, help="where some 10 GB may go for the time being")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    asked = parser.parse_args()

    names = ("Parquet to Parquet", "Parquet to a topic, exactly once")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    broker_s: list[float] = []
    folder = Path(tempfile.mkdtemp(prefix="martlet-bench-", dir=asked.folder))
    try:
        spark = spark_session("martlet bench", master=asked.master)
        source = folder / "source"
        make(spark, source, asked)
        rows = spark.read.parquet(str(source))
        for number in range(asked.rounds + 1):
            own = folder / f"round {number}"
            parquet_s = to_parquet(rows, own / "parquet")
            topic_s, processor_s = to_topic(spark, source, own, asked.rows)
            shutil.rmtree(own)
            print(f"  round {number}: {parquet_s:.2f} s, {topic_s:.2f} s", flush=True)
            if number:
                for name, took_s in zip(names, (parquet_s, topic_s), strict=True):
                    seconds[name].append(took_s)
                broker_s.append(processor_s)
        spark.stop()
    finally:
        shutil.rmtree(folder)

    print(
        f"\n{platform.machine()}, {os.cpu_count()} processors, {asked.master},"
        f" {asked.rows:,} rows of {asked.size} bytes, {time.strftime('%F')}"
    )
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    print(f"{'':34}{'rows/s':>12}{'x Parquet':>11}{'seconds':>18}")
    for name, median_s in medians.items():
        print(
            f"{name:34}{asked.rows / median_s:12,.0f}{medians[names[0]] / median_s:11.2f}"
            f"{min(seconds[name]):>9.2f} to {max(seconds[name]):.2f}"
        )
    each_ns = statistics.median(broker_s) / asked.rows * 1e9
    print(f"the broker's processor: {each_ns:.0f} ns a row")
    if asked.json:
        told = {"rows": asked.rows, "size": asked.size, "seconds": seconds, "broker": broker_s}
        asked.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
