"""The process that archives: Spark, the archive of the flights, and the report on it.

`examples.flights.archiving` starts it as ``python -m examples.flights.archive_process ADDRESS
FOLDER``.  It reads and writes lines: ``finish FLIGHTS MESSAGES`` on standard input once all has
been published; that input ends without it when the job was broken off.  It writes JSON objects on
standard output:

    {"rows": 123}                       so many rows have been archived so far
    {"result": {...}}                   the fields of `ArchiveContents`
    {"failed": "the query ..."}         why it gave up

All that Java and Spark print goes to standard error, which is a file.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from examples.flights.flights import KEY, SCHEMA
from examples.flights.handling import TOPIC
from examples.flights.place import PARQUET
from martlet.pipeline.archive import CORRUPT, Archive, ArchiveOptions
from martlet.pipeline.archive.query import ArchiveBatch
from martlet.spark.java import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S = 0.2
_INTERVAL_NS = 1_000_000_000
_MAX = 50_000
"""Flights in a micro-batch at most, so that it is seen how the archive grows."""


def main(address: str, folder: Path) -> int:
    """Archive until the order to finish; the result is the exit code of the process."""
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def write(**fields: Any) -> None:
        print(json.dumps(fields), file=reports)

    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    try:
        spark = spark_session("martlet demo")
        try:
            write(**_archive(spark, address, folder, orders, write))
        finally:
            for query in spark.streams.active:
                query.stop()
            spark.stop()
    except Exception as error:
        write(failed=_cause(error))
        raise
    return 0


def _listen(orders: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        orders.put(line.strip())
    orders.put("")


def _archive(
    spark: SparkSession, address: str, folder: Path, orders: queue.SimpleQueue[str], write: Any
) -> dict[str, Any]:
    table = str(folder / PARQUET)
    options = ArchiveOptions(
        addresses=(address,),
        topics=(TOPIC,),
        out=table,
        json_schema=SCHEMA,
        partition_by="origin,month",
        interval_ns=_INTERVAL_NS,
        max_offsets=_MAX,
    )
    progress = _Progress(write)
    started = Archive(options, spark, progress.on_batch).start()
    progress.query = started
    order = ""
    while not order:
        progress.report()
        try:
            order = orders.get(timeout=_POLL_S)
        except queue.Empty:
            continue
        if not order:
            return {"failed": "broken off"}
    _, count, stored = order.split()
    while progress.rows < int(stored):
        time.sleep(_POLL_S)
        progress.report()
    started.processAllAvailable()
    progress.report()
    started.stop()
    return {"result": _result(spark, table, int(count))}


def _cause(error: Exception) -> str:
    """The line of Spark's error that matters: the last that names an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Unreachable): ", line)]
    return (errors[-1:] or lines[:1] or [type(error).__name__])[0]


class _Progress:
    """Reports how many rows the query has archived: `rows` so far."""

    def __init__(self, write: Any) -> None:
        self.rows = 0
        self.query: StreamingQuery | None = None
        self._write = write
        self._archived = 0

    def on_batch(self, batch: ArchiveBatch) -> None:
        """A micro-batch was committed; called in a thread of its own."""
        self._archived += batch.rows

    def report(self) -> None:
        """Report new rows. Raises the query's error, if it has ended."""
        assert self.query is not None
        if not self.query.isActive:
            self.query.awaitTermination()
        if self._archived > self.rows:
            self.rows = self._archived
            self._write(rows=self.rows)


def _result(spark: SparkSession, table: str, count: int) -> dict[str, Any]:
    """Read the archive, which should have `count` flights."""
    archive = spark.read.parquet(table)
    archive = archive.select(KEY, "carrier", "dep_delay", "_offset", CORRUPT).cache()
    (totals,) = archive.agg(
        F.count("*").alias("rows"),
        F.countDistinct("_offset").alias("offsets"),
        F.count(CORRUPT).alias("corrupt"),
    ).collect()
    report = {
        line["carrier"]: [line["flights"], line["mean_delay_min"]]
        # A flight that was stored twice is one flight.
        for line in archive.dropDuplicates([KEY])
        .groupBy("carrier")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("mean_delay_min"))
        .collect()
    }
    missing = spark.range(count).join(archive, F.col("id") == F.col(KEY), "left_anti")
    return {
        **totals.asDict(),
        "flights": sum(flights for flights, _ in report.values()),
        "missing": [row["id"] for row in missing.collect()],
        "report": report,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
