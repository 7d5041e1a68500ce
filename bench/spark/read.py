"""Spark's read of a topic, as a batch and as a stream, beside the same rows in Parquet and JSON.

    ./run bench spark-read [--messages 10000000] [--size 200] [--rounds 5] [--master local[2]]
                           [--a-batch 500000] [--folder DIR] [--json FILE]

A broker is started and given messages of random letters; Spark writes them all, every column, as
Parquet and as JSON lines.  Then each of them is asked for ``sum(length(value))``, in turns, after
one turn that does not count.  Printed is the median of the rounds.

A stream reads the same in micro-batches of `--a-batch` messages; from Parquet by the files that
hold as many. Its seconds are those from the start of its first micro-batch to the end of the last.

Spark tells Parquet which columns the sum needs, but no Python source. So both also hand all columns
to Spark's sink `noop`.

Parquet and JSON lines are read with the schema of all columns, of which Spark takes what the query
needs by itself; Martlet's source is read with ``.schema("value BINARY")``, and once more without.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from bench.spark.beside import Way, compare, setting
from bench.spark.letters import TOPIC

FILES_A_BATCH = 2
"""Parquet files for a micro-batch, so that two tasks have something to do."""
Taken = tuple[float, int]
"""Seconds, and the sum that was found."""


def sources(
    spark: SparkSession, http_address: str, folder: Path, a_batch: int
) -> dict[str, Callable[[], Taken]]:
    """The queries by name; the files are written here."""

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
        "Martlet, all columns used": lambda: every_column(topic(None)),
        "Martlet, stream": lambda: stream(topic_stream.load(), folder),
        "Parquet": lambda: batch(files.parquet(parquet)),
        "Parquet, all columns used": lambda: every_column(files.parquet(parquet)),
        "Parquet, stream": lambda: stream(file_stream.parquet(parquet), folder),
        "JSON lines": lambda: batch(spark.read.schema(as_text.schema).json(lines)),
    }


def batch(rows: DataFrame) -> Taken:
    """Ask for the sum once."""
    began_s = time.monotonic()
    (found,) = rows.agg(F.sum(F.length("value"))).collect()[0]
    return time.monotonic() - began_s, found


def every_column(rows: DataFrame) -> Taken:
    """Hand every column of every row to a sink that drops them."""
    observed = Observation()
    began_s = time.monotonic()
    rows = rows.observe(observed, F.sum(F.length("value")).alias("sum"))
    rows.write.format("noop").mode("overwrite").save()
    return time.monotonic() - began_s, observed.get["sum"]


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
    return sum(each.batchDuration for each in query.recentProgress) / 1000, sum(found)


def way(query: Callable[[], Taken], name: str, expected: int) -> Way:
    """A query whose sum is seen to be right."""

    def run() -> float:
        took_s, found = query()
        if found != expected:
            raise SystemExit(f"{name}: sum(length(value)) is {found}, not {expected}")
        return took_s

    return run


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    with setting(__doc__, arguments, rounds=5, a_batch=500_000) as bench:
        given = bench.given
        queries = sources(bench.spark, bench.broker.http_address, bench.folder, given.a_batch)
        sum_of_lengths = given.messages * given.size
        ways = {name: way(query, name, sum_of_lengths) for name, query in queries.items()}
        compare(
            given, ways, "Parquet", "Parquet, all columns used", "Parquet, stream", "JSON lines"
        )
