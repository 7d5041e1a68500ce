"""Spark on Martlet beside Spark on Kafka, with Spark's own connector, and on Parquet: in one run.

    ./run bench spark-kafka [--rows 4000000] [--few 250000] [--batch 500000] [--rounds 3]
                            [--only sink] [--size 200] [--master local[2]] [--seconds 20]
                            [--folder DIR] [--json FILE]

Both brokers run on this machine, each in one process, and answer a publish when the operating
system has the messages. They are loaded by the same generator, in batches of 200 messages. Kafka
comes from Maven Central (``.ci/kafka``), runs in KRaft mode with a heap of 1 GiB, and its topics
have a partition for each processor, so that as many tasks read them; Martlet's have 1 queue, which
it splits by itself. All else is as it comes: the options of both sources and sinks, of Kafka's
producers and consumers, and one session of Spark as `spark_session` makes it.

Each work is done in turns, after a round that does not count; times are those of the whole query,
with its start. *Batch* and *stream* hand rows to Spark's sink `noop`; all columns are those that
``load()`` gives. A *stream* catches up by micro-batches of `--batch` messages. The *sink* copies
Parquet files of the same bodies to a topic, by the same micro-batches; *source to sink* copies a
topic to another: Martlet exactly once, Kafka at least once. What arrived is counted. *Latency* is
the median of the messages, each from its time at the broker until its micro-batch is in the
checkpoint's commits: a query with a trigger of 0.5 s reads for `--seconds`. `--only` selects the
works whose name has that text.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.console import Console
from rich.table import Table

from bench.flags import parse
from bench.peers.daemons import Missing
from bench.spark.beside import Seconds, Way, machine, take_turns, timed, write_json
from bench.spark.kafka_sides import (
    PARTITIONS,
    Side,
    jars_of,
    kafka,
    martlet,
    selected,
)
from bench.spark.letters import BATCH, Bodies, bodies
from martlet.spark.java import spark_session

_PERIOD_S = 0.05
"""The time between two batches while latency is measured."""
_START_S = 8.0
"""Until a query is through its first micro-batches."""
OURS, THEIRS, FILES = _NAMES = "Martlet", "Kafka", "Parquet"
WANTED = {
    "batch, value": 2.0,
    "batch, all columns": 1.5,
    "stream, value": 1.5,
    "stream, all columns": 1.2,
}
"""How many times as fast as Kafka a work is to be; the others 1."""


@dataclass(frozen=True)
class Works:
    """The works to compare, on one session of Spark."""

    spark: SparkSession
    given: argparse.Namespace
    folder: Path
    sides: Mapping[str, Side]

    def all(self) -> dict[str, Callable[[], dict[str, Way]]]:
        """What prepares each work, in the order of the table: it returns the ways to do it."""
        rows, few = self.given.rows, self.given.few
        return {
            "batch, value": lambda: self._batch("value BINARY"),
            "batch, all columns": lambda: self._batch(""),
            "stream, value": lambda: self._stream("value BINARY"),
            "stream, all columns": lambda: self._stream(""),
            f"sink, {few:,} rows": lambda: self._sink(few),
            f"sink, {rows:,} rows": lambda: self._sink(rows),
            "source to sink": lambda: self._for_each(self._copied_s),
            "latency": lambda: self._for_each(self._latency_s),
        }

    def _for_each(self, work: Callable[[Side], float]) -> dict[str, Way]:
        return {name: partial(work, side) for name, side in self.sides.items()}

    def _batch(self, schema: str) -> dict[str, Way]:
        def drop(rows: DataFrame) -> float:
            return timed(lambda: rows.write.format("noop").mode("overwrite").save())

        files = str(self._all_columns())
        ways = self._for_each(lambda side: drop(side.read(self.spark, schema)))
        return ways | {
            FILES: lambda: drop(selected(self.spark.read.parquet(files), schema)),
        }

    def _stream(self, schema: str) -> dict[str, Way]:
        def drop(rows: DataFrame) -> float:
            return self._caught_up_s(rows.writeStream.format("noop"), self.given.rows)

        rows = selected(self._file_stream(self._all_columns()), schema)
        limit = self.given.batch
        ways = self._for_each(
            lambda side: drop(side.stream(self.spark, schema, maxOffsetsPerTrigger=limit))
        )
        return ways | {FILES: lambda: drop(rows)}

    def _sink(self, count: int) -> dict[str, Way]:
        source = self.sides[OURS].read(self.spark, "value BINARY, offset BIGINT")
        rows = source.where(F.col("offset") < count).select("value")
        values = self._file_stream(self._files(f"values-{count}", rows, count))

        def to_topic(side: Side) -> float:
            took_s = self._caught_up_s(side.write(values), count)
            _require(count, side.empty())
            return took_s

        def to_files() -> float:
            out = self.folder / "out"
            writer = values.writeStream.format("parquet").option("path", str(out))
            took_s = self._caught_up_s(writer, count)
            shutil.rmtree(out)
            return took_s

        return self._for_each(to_topic) | {FILES: to_files}

    def _copied_s(self, side: Side) -> float:
        count, limit = self.given.rows, self.given.batch
        rows = side.stream(self.spark, "value BINARY", maxOffsetsPerTrigger=limit)
        took_s = self._caught_up_s(side.write(rows), count)
        _require(count, side.empty())
        return took_s

    def _all_columns(self) -> Path:
        return self._files("all", self.sides[OURS].read(self.spark), self.given.rows)

    def _files(self, name: str, rows: DataFrame, count: int) -> Path:
        """Parquet files of rows, for each micro-batch as many as there are processors."""
        folder = self.folder / name
        if not folder.exists():
            files = PARTITIONS * max(1, round(count / self.given.batch))
            rows.repartition(files).write.parquet(str(folder))
        return folder

    def _file_stream(self, folder: Path) -> DataFrame:
        schema = self.spark.read.parquet(str(folder)).schema
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", PARTITIONS)
        return reader.parquet(str(folder))

    def _caught_up_s(self, writer: DataStreamWriter, count: int) -> float:
        """Run a query until all is done; return the seconds."""
        checkpoint = tempfile.mkdtemp(dir=self.folder)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        began_s = time.monotonic()
        query = writer.start()
        query.awaitTermination()
        took_s = time.monotonic() - began_s
        _require(count, sum(progress.numInputRows for progress in query.recentProgress))
        return took_s

    def _latency_s(self, side: Side) -> float:
        """The median of the messages that come after the first ones."""
        checkpoint = Path(tempfile.mkdtemp(dir=self.folder))
        stored_us: dict[int, list[int]] = {}

        def take(rows: DataFrame, number: int) -> None:
            times = rows.select(F.unix_micros("timestamp")).collect()
            stored_us[number] = [time_us for (time_us,) in times]

        rows = side.stream(self.spark, "timestamp TIMESTAMP", startingOffsets="latest")
        writer = rows.writeStream.foreachBatch(take).trigger(processingTime="0.5 seconds")
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        side.publish(_paced(_START_S + self.given.seconds, self.given.size))
        query.processAllAvailable()
        query.stop()
        from_us = min(map(min, filter(None, stored_us.values()))) + _START_S * 1e6
        delays_s: list[float] = []
        for number, times_us in stored_us.items():
            done_s = (checkpoint / "commits" / str(number)).stat().st_mtime
            delays_s += [done_s - at_us / 1e6 for at_us in times_us if at_us >= from_us]
        return statistics.median(delays_s)


def _paced(seconds: float, size: int) -> Iterator[Bodies]:
    """Batches of a publisher that sends one each 50 ms."""
    began_s = time.monotonic()
    for number, batch in enumerate(bodies(round(seconds / _PERIOD_S) * BATCH, size)):
        yield batch
        time.sleep(max(0.0, began_s + (number + 1) * _PERIOD_S - time.monotonic()))


def _require(expected: int, count: int) -> None:
    if count != expected:
        raise SystemExit(f"{count:,} rows of {expected:,}")


def table(seconds: Mapping[str, Seconds], given: argparse.Namespace) -> Table:
    """The medians, and how many times as fast as the others Martlet is."""
    title = f"{machine(given.master)}, {given.rows:,} messages of {given.size} bytes"
    shown = Table(title=title)
    for heading in ("work", OURS, THEIRS, FILES, f"x {THEIRS}", "wanted", f"x {FILES}"):
        shown.add_column(heading, justify="left" if heading == "work" else "right")
    for work, taken in seconds.items():
        medians = {name: statistics.median(some) for name, some in taken.items()}
        ratios = {name: f"{median_s / medians[OURS]:.2f}" for name, median_s in medians.items()}
        times = (f"{medians[name]:.2f} s" if name in medians else "" for name in _NAMES)
        wanted = f"{WANTED.get(work, 1.0):.1f}"
        shown.add_row(work, *times, ratios[THEIRS], wanted, ratios.get(FILES, ""))
    return shown


def main(arguments: Sequence[str]) -> int:
    """Measure and print; the result is the exit code."""
    numbers = {"rows": 4_000_000, "few": 250_000, "batch": 500_000, "rounds": 3, "size": 200}
    others = {"master": "local[2]", "seconds": 20.0, "only": "", "folder": None, "json": None}
    given = parse(__doc__, arguments, **numbers | others)
    seconds: dict[str, Seconds] = {}
    with ExitStack() as stack:
        prefix = "martlet-bench-"
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, dir=given.folder))
        try:
            theirs = stack.enter_context(kafka())
            jars = jars_of("connector")
        except Missing as error:
            print(f"martlet bench spark-kafka: {error}", file=sys.stderr)
            return 0
        ours = stack.enter_context(martlet(Path(folder, "broker")))
        for side in (ours, theirs):
            side.publish(bodies(given.rows, given.size))
        spark = spark_session(
            "martlet bench", master=given.master, **{"spark.jars": ",".join(map(str, jars))}
        )
        stack.callback(spark.stop)
        works = Works(spark, given, Path(folder), {OURS: ours, THEIRS: theirs})
        for work, prepare in works.all().items():
            if given.only in work:
                print(work, flush=True)
                seconds[work] = take_turns(given.rounds, prepare())
    kafkas = ", ".join(jar.stem for jar in (*jars_of("kafka"), *jars) if "kafka" in jar.stem)
    print(f"Spark {spark.version}; {kafkas}")
    Console().print(table(seconds, given))
    write_json(given, {"rows": given.rows, "size": given.size, "seconds": seconds})
    return 0
