"""`martlet pipeline archive` beside Spark's own Parquet-to-Parquet of the same rows, in one run.

    spark_archive.py [--messages 10000000] [--size 200] [--rounds 3] [--master local[2]]

A broker is started and given messages of random letters.  They are archived once, which does not
count, and what came of it is what Spark copies then: ``spark.read.parquet(archive)`` written with
``partitionBy("topic", "date", "hour")``, every column.  Then both are done in turns, each into a
folder that is new; the archive with its flushes to disk, Spark's writer as it is, without.  After
each turn the rows are counted.  What is printed is the median of the rounds.
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
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
from pyspark.sql import SparkSession
from spark_read import TOPIC, fill

from martlet.options.archive import ArchiveOptions
from martlet.pipeline.archive import archive
from martlet.spark.java import spark_session
from martlet.testing import BrokerProcess

Way = Callable[[Path], None]


def ways(spark: SparkSession, http_address: str, first: Path, batch: int) -> dict[str, Way]:
    """What is compared, by name: each writes a folder."""
    options = ArchiveOptions(
        addresses=(http_address,),
        topics=(TOPIC,),
        channel="",
        once=True,
        out="-",
        max_offsets=batch,
    )

    def archived(out: Path, flush: bool) -> None:
        archive(options.replace(out=str(out), flush=flush), spark)

    def copied(out: Path) -> None:
        rows = spark.read.parquet(str(first))
        rows.write.partitionBy("topic", "date", "hour").parquet(str(out))

    archived(first, False)
    return {
        "archive": lambda out: archived(out, True),
        "archive, --flush=false": lambda out: archived(out, False),
        "Parquet to Parquet": copied,
    }


def measure(
    compared: dict[str, Way], folder: Path, messages: int, rounds: int
) -> dict[str, list[float]]:
    """The seconds that each took, round by round; the first round only warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in compared}
    for number in range(rounds + 1):
        for name, way in compared.items():
            out = folder / "out"
            os.sync()  # what one left to be written is not the other's
            started_s = time.monotonic()
            way(out)
            took_s = time.monotonic() - started_s
            found = ds.dataset(out, partitioning="hive").count_rows()
            if found != messages:
                raise SystemExit(f"{name}: {found:,} rows of {messages:,}")
            shutil.rmtree(out)
            if number:
                seconds[name].append(took_s)
            print(f"  round {number}: {name} {took_s:.2f} s", flush=True)
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=200, help="bytes a message")
    parser.add_argument("--batch", type=int, default=2_000_000, help="messages a micro-batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--folder", type=Path, help="where some 15 GB may go for the time being")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    asked = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="martlet-bench-", dir=asked.folder))
    try:
        with BrokerProcess(folder / "data") as broker:
            fill(broker.tcp_address, asked.messages, asked.size)
            print(f"{asked.messages:,} messages of {asked.size} bytes stored", flush=True)
            spark = spark_session("martlet bench", master=asked.master)
            compared = ways(spark, broker.http_address, folder / "first", asked.batch)
            seconds = measure(compared, folder, asked.messages, asked.rounds)
            spark.stop()
    finally:
        shutil.rmtree(folder)

    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    print(
        f"\n{platform.machine()}, {os.cpu_count()} processors, {asked.master},"
        f" {time.strftime('%F')}"
    )
    print(f"{'':24}{'M rows/s':>9}{'x Parquet':>11}{'seconds':>20}")
    for name, median_s in medians.items():
        print(
            f"{name:24}{asked.messages / median_s / 1e6:9.2f}"
            f"{medians['Parquet to Parquet'] / median_s:11.2f}"
            f"{min(seconds[name]):>10.2f} to {max(seconds[name]):.2f}"
        )
    if asked.json:
        asked.json.write_text(
            json.dumps({"messages": asked.messages, "seconds": seconds}, indent=1)
        )


if __name__ == "__main__":
    main()
