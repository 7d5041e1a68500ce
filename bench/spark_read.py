"""Spark's read of a topic, as a batch and as a stream, beside the same rows in Parquet and JSON.

    spark_read.py [--messages 10000000] [--size 200] [--rounds 5] [--master local[2]] [--folder DIR]

A broker is started and given messages of random letters; Spark writes them all, every column, as
Parquet and as JSON lines.  Then each of them is asked for ``sum(length(value))``, in turns, after
one turn that does not count.  What is printed is the median of the rounds.

A stream reads the same in micro-batches of so many messages; from Parquet by the files that hold as
many.  Its seconds are those from the start of its first micro-batch to the end of the last.

Parquet and JSON lines are read with the schema of all columns, of which Spark takes what the query
needs by itself; Martlet's source is told by ``.schema("value BINARY")``, and once more is not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from martlet.spark.java import spark_session
from martlet.testing import BrokerProcess

TOPIC = "letters"
BATCH = 200
"""Messages an MPUB."""
IN_FLIGHT = 8
"""MPUBs that wait for their OK."""
FILES_A_BATCH = 2
"""Parquet files for a micro-batch, so that two tasks have something to do."""
Taken = tuple[float, int]
"""Seconds, and the sum that was found."""
OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


def commands(messages: int, size: int) -> Iterator[bytes]:
    """MPUBs of random letters, no two messages alike."""
    random = np.random.default_rng(1)
    for first in range(0, messages, BATCH):
        count = min(BATCH, messages - first)
        framed = np.empty((count, 4 + size), np.uint8)
        framed[:, :4] = np.frombuffer(size.to_bytes(4, "big"), np.uint8)
        framed[:, 4:] = random.integers(97, 123, (count, size), dtype=np.uint8)
        body = count.to_bytes(4, "big") + framed.tobytes()
        yield b"MPUB %s\n" % TOPIC.encode() + len(body).to_bytes(4, "big") + body


def fill(address: str, messages: int, size: int) -> None:
    """Publish them over one connection; each is answered OK."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        answers = connection.makefile("rb")
        without_heartbeats = b'{"heartbeat_interval": -1}'
        size_field = len(without_heartbeats).to_bytes(4, "big")
        connection.sendall(b"  V2IDENTIFY\n" + size_field + without_heartbeats)
        waiting = 1
        for command in commands(messages, size):
            connection.sendall(command)
            waiting += 1
            while waiting >= IN_FLIGHT:
                waiting -= expect_ok(answers.read(len(OK)))
        while waiting:
            waiting -= expect_ok(answers.read(len(OK)))


def expect_ok(answer: bytes) -> int:
    """1 for an OK."""
    if answer != OK:
        raise SystemExit(f"the broker answered {answer!r}")
    return 1


def sources(
    spark: SparkSession, http_address: str, folder: Path, a_batch: int
) -> dict[str, Callable[[], Taken]]:
    """What is compared, by name; the files are written here."""

    def topic(schema: str | None) -> DataFrame:
        reader = spark.read.format("martlet").option("addresses", http_address)
        if schema:
            reader = reader.schema(schema)
        return reader.option("topic", TOPIC).load()

    parquet, lines = str(folder / "parquet"), str(folder / "lines")
    everything = topic(None)
    everything.write.option("maxRecordsPerFile", a_batch // FILES_A_BATCH).parquet(parquet)
    as_text = everything.withColumn("value", F.col("value").cast("string"))
    as_text.write.json(lines)
    files = spark.read.schema(everything.schema)
    topic_stream = (
        spark.readStream.format("martlet")
        .schema("value BINARY")
        .option("addresses", http_address)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", a_batch)
    )
    file_stream = spark.readStream.schema(everything.schema)
    file_stream = file_stream.option("maxFilesPerTrigger", FILES_A_BATCH)
    return {
        "Martlet, value": lambda: batch(topic("value BINARY")),
        "Martlet, all columns": lambda: batch(topic(None)),
        "Martlet, stream": lambda: stream(topic_stream.load(), folder),
        "Parquet": lambda: batch(files.parquet(parquet)),
        "Parquet, stream": lambda: stream(file_stream.parquet(parquet), folder),
        "JSON lines": lambda: batch(spark.read.schema(as_text.schema).json(lines)),
    }


def batch(rows: DataFrame) -> Taken:
    """Ask for the sum once."""
    began_s = time.monotonic()
    (found,) = rows.agg(F.sum(F.length("value"))).collect()[0]
    return time.monotonic() - began_s, found


def stream(rows: DataFrame, folder: Path) -> Taken:
    """Ask each micro-batch for its sum, and add them up."""
    found: list[int] = []

    def add(some: DataFrame, number: int) -> None:
        found.append(batch(some)[1])

    query = (
        rows.writeStream.foreachBatch(add)
        .option("checkpointLocation", tempfile.mkdtemp(dir=folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(told.batchDuration for told in query.recentProgress) / 1000, sum(found)


def measure(
    compared: dict[str, Callable[[], Taken]], expected: int, rounds: int
) -> dict[str, list[float]]:
    """The seconds that each query took, round by round; the first round only warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in compared}
    for number in range(rounds + 1):
        for name, query in compared.items():
            took_s, found = query()
            if found != expected:
                raise SystemExit(f"{name}: sum(length(value)) is {found}, not {expected}")
            if number:
                seconds[name].append(took_s)
            print(f"  round {number}: {name} {took_s:.2f} s", flush=True)
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=200, help="bytes a message")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--a-batch", type=int, default=500_000, help="messages a micro-batch")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--folder", type=Path, help="where some 10 GB may go for the time being")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    asked = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="martlet-bench-", dir=asked.folder))
    try:
        with BrokerProcess(folder / "data") as broker:
            started_s = time.monotonic()
            fill(broker.tcp_address, asked.messages, asked.size)
            rate = asked.messages / (time.monotonic() - started_s)
            print(f"{asked.messages:,} messages of {asked.size} bytes stored, {rate:,.0f} a second")
            spark = spark_session("martlet bench", master=asked.master)
            compared = sources(spark, broker.http_address, folder, asked.a_batch)
            seconds = measure(compared, asked.messages * asked.size, asked.rounds)
            spark.stop()
    finally:
        shutil.rmtree(folder)

    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    print(
        f"\n{platform.machine()}, {os.cpu_count()} processors, {asked.master},"
        f" {time.strftime('%F')}"
    )
    print(f"{'':22}{'M rows/s':>9}{'x Parquet':>11}{'x JSON':>8}{'seconds':>20}")
    for name, median_s in medians.items():
        parts = medians["Parquet"] / median_s, medians["JSON lines"] / median_s
        print(
            f"{name:22}{asked.messages / median_s / 1e6:9.2f}{parts[0]:11.2f}{parts[1]:8.2f}"
            f"{min(seconds[name]):>10.2f} to {max(seconds[name]):.2f}"
        )
    if asked.json:
        asked.json.write_text(
            json.dumps({"messages": asked.messages, "seconds": seconds}, indent=1)
        )


if __name__ == "__main__":
    main()
