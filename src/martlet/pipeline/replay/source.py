"""The sources of a replay: the brokers' logs, or the files of an archive.

A source resolves the start and the end of each queue when the replay begins, and returns the
messages between two positions as a table with the columns of the Spark source.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from martlet.pipeline.archive.partition import LONG
from martlet.pipeline.archive.rows import ADDED, PRIORITY
from martlet.pipeline.job import JobFailed, query_errors_as
from martlet.pipeline.replay.options import ReplayJobOptions
from martlet.reader.brokers.brokers import QueryBrokers
from martlet.reader.offset_bound import EARLIEST, LATEST, Bound, BoundOffset, parse_bound
from martlet.reader.offsets import QueueKey, nested
from martlet.reader.options import ReadOptions
from martlet.reader.resolved_bounds import resolve

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Position = dict[QueueKey, int]
_SENT = ("value", "key", "headers", "tag", "keys", PRIORITY)
_ORIGIN = ("broker", "topic", "partition", "offset")
_NANOSECONDS = 1e9
_SHORTENED = re.compile(r"~[0-9a-f]{32}/")
"""In the path of a file whose folder has a shortened value."""


class TopicReplaySource:
    """The messages of topics that the brokers still have.

    Attributes:
        earlier_count: how many messages there had been before the start, which are not there any
            more, though the start would include them.
    """

    earlier_where = "which the broker has deleted; an archive may have them (--from-archive)"

    def __init__(self, options: ReplayJobOptions, spark: SparkSession) -> None:
        self._spark = spark
        self._source = {**options.source, "topic": ",".join(options.from_topics)}
        bounds = {"startingOffsets": options.start, "endingOffsets": options.end}
        self._options = ReadOptions.parse({**self._source, **bounds}, "batch")
        self._brokers = QueryBrokers(self._options)
        self.earlier_count = 0

    def close(self) -> None:
        """Close the connections to the brokers."""
        self._brokers.close()

    def bounds(self) -> tuple[Position, Position]:
        """Resolve the bounds at the brokers. Raises NoSuchTopicError, ValueError."""
        brokers, options = self._brokers, self._options
        seen = brokers.poll(patient=True)
        brokers.require_topics(seen)
        start = resolve(brokers, options.start, seen, "startingOffsets")
        wanted = options.start.everywhere
        if wanted is not None and wanted.end != LATEST:
            firsts = {key: queue.start_offset for key, queue in seen.items()}
            self.earlier_count = sum(at for key, at in firsts.items() if start[key] <= at)
        return start, resolve(brokers, options.end, seen, "endingOffsets")

    def between(self, start: Position, end: Position) -> DataFrame:
        """Return the messages as read from the log. Raises JobFailed: a topic was deleted since."""
        seen = self._brokers.poll(patient=True)
        gone = [key for key, first in start.items() if key not in seen and first < end[key]]
        if gone:
            key = gone[0]
            raise JobFailed(
                f"topic {key.topic!r} was deleted since the replay has begun, with messages that"
                f" were not sent yet (queue {key.queue}, offsets {start[key]} to {end[key] - 1})."
                " To replay a topic that was created again under its name, give the replay another"
                " --checkpoint"
            )
        start = {key: first for key, first in start.items() if key in seen}
        end = {key: last for key, last in end.items() if key in seen}
        # Read nothing from queues that were created since.
        new = {key: queue.start_offset for key, queue in seen.items() if key not in start}
        return (
            self._spark.read.format("martlet")
            .options(**self._source)
            .option("startingOffsets", json.dumps(nested({**new, **start})))
            .option("endingOffsets", json.dumps(nested({**new, **end})))
            .load()
        )


class ArchiveReplaySource:
    """The messages of an archive; with `earlier_count`, as `TopicReplaySource` has it."""

    earlier_where = "which the archive does not have"

    def __init__(self, options: ReplayJobOptions, spark: SparkSession) -> None:
        from pyspark.sql import functions as F

        self._start = parse_bound("--start", options.start)
        self._end = parse_bound("--end", options.end)
        with query_errors_as(f"--from-archive={options.from_archive}"):
            rows = _read_archive(options.from_archive, spark)
        if "_offset" in rows.columns:
            # A field that has the name of a column of the source is still in the body.
            taken = {*_ORIGIN, "timestamp", *_SENT}
            fields = [name for name in rows.columns if name.lower() not in taken]
            rows = rows.select(*_of_json(rows), *map(F.col, fields))
        missing = [name for name in (*_ORIGIN, "value", "timestamp") if name not in rows.columns]
        if missing:
            raise JobFailed(
                f"--from-archive={options.from_archive} is not an archive of messages: it has no"
                f" column {', '.join(missing)}"
            )
        self.earlier_count = 0
        topic = F.col("topic")
        if dict(rows.dtypes)["topic"] != "string":
            # Spark infers a number or a date for the folder of a topic of such a name.
            topic = F.regexp_extract("_metadata.file_path", "/topic=([^/]+)/", 1)
        self._messages = rows.withColumn("topic", topic)

    def bounds(self) -> tuple[Position, Position]:
        """Find the first and the last offset of each queue within the bounds."""
        from pyspark.sql import functions as F

        queues = (
            self._messages.where(_since(self._start, "--start") & ~_since(self._end, "--end"))
            .groupBy(*_ORIGIN[:3])
            .agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
            .collect()
        )
        keys = [QueueKey(row["broker"], row["topic"], row["partition"]) for row in queues]
        start = {key: int(row["first"]) for key, row in zip(keys, queues, strict=True)}
        if self._start.everywhere == BoundOffset(end=EARLIEST):
            self.earlier_count = sum(start.values())
        return start, {key: int(row["last"]) + 1 for key, row in zip(keys, queues, strict=True)}

    def between(self, start: Position, end: Position) -> DataFrame:
        """Return the messages as read from the files; files without these offsets are skipped."""
        from pyspark.sql import functions as F

        queues = [_within(key, first, end[key]) for key, first in start.items() if first < end[key]]
        return self._messages.where(reduce(or_, queues) if queues else F.lit(False))

    def close(self) -> None:
        """Do nothing: Spark has no files open."""


ReplaySource = TopicReplaySource | ArchiveReplaySource


def _read_archive(folder: str, spark: SparkSession) -> DataFrame:
    """Read the files of an archive, with the full values of shortened partition columns."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import IntegerType

    files = _delta_files(folder, spark)
    reader = spark.read.option("basePath", folder) if files else spark.read
    rows = reader.parquet(*(files or [folder]))
    if any(_SHORTENED.search(file) for file in rows.inputFiles()):
        # Only the files in these folders have columns for the full values.
        rows = reader.option("mergeSchema", True).parquet(*(files or [folder]))
        for name in [name for name in rows.columns if name.startswith(LONG)]:
            short = name.removeprefix(LONG)
            rows = rows.withColumn(short, F.coalesce(name, short)).drop(name)
    elif not set(ADDED) & set(rows.columns):
        # Spark takes the columns of one file, which may be of an earlier version than others.
        added = ADDED["_offset" in rows.columns]
        rows = spark.read.schema(rows.schema.add(added, IntegerType())).parquet(folder)
    return rows


def _delta_files(folder: str, spark: SparkSession) -> list[str]:
    """Return the files that a Delta table has; none if it is none. In its folders are others too,
    which were joined since, or whose batch was not committed.
    """
    java: Any = spark.sparkContext
    log = java._jvm.org.apache.hadoop.fs.Path(folder, "_delta_log")
    if not log.getFileSystem(java._jsc.hadoopConfiguration()).exists(log):
        return []
    from martlet.pipeline.archive.delta_table import delta_files

    return delta_files(folder)


def _within(key: QueueKey, start: int, end: int) -> Column:
    from pyspark.sql import functions as F

    is_it = (F.col("broker") == key.broker) & (F.col("topic") == key.topic)
    offset = F.col("offset")
    return is_it & (F.col("partition") == key.queue) & (offset >= start) & (offset < end)


def _since(bound: Bound, name: str) -> Column:
    """Return the condition that a message is at or after a bound."""
    from pyspark.sql import functions as F

    offset = bound.everywhere
    if offset is None or offset.offset is not None or offset.shift:
        raise ValueError(
            f"{name}: an archive is replayed from earliest, now-1h or 2026-11-22T08:00:00Z on"
        )
    if offset.end is not None:
        return F.lit(offset == BoundOffset(end=EARLIEST))
    time_ns = offset.time_ns
    if time_ns is None:
        assert offset.ago_ns is not None
        time_ns = int(datetime.now(UTC).timestamp() * _NANOSECONDS) - offset.ago_ns
    return F.col("timestamp") >= F.timestamp_micros(F.lit(time_ns // 1000))


def _of_json(rows: DataFrame) -> list[Column]:
    """Return the columns of the source for an archive of JSON messages."""
    from pyspark.sql import functions as F

    origin = {"partition": "_queue"} | {
        name: f"_{name}" for name in ("topic", "offset", "timestamp", "broker", *_SENT[1:])
    }
    seconds = F.unix_timestamp("_timestamp")
    folders = {
        "topic": F.col("_topic"),
        "date": F.date_add(F.lit("1970-01-01"), F.floor(seconds / 86400).cast("int")),
        "hour": F.floor(seconds / 3600 % 24),
    }
    # A partition column is a field only if its value differs from the derived one.
    fields = [
        F.when(~F.col(name).eqNullSafe(folders[name]), F.col(name)).alias(name)
        if name in folders and _is_folder(rows, name)
        else F.col(name)
        for name in rows.columns
        if not name.startswith("_")
    ]
    text = F.to_json(F.struct(*fields)).cast("binary")
    kept = [
        F.col(name).cast("binary") for name in ("_value", "_corrupt_record") if name in rows.columns
    ]
    columns = [F.coalesce(*kept, text).alias("value")]
    return columns + [F.col(old).alias(new) for new, old in origin.items() if old in rows.columns]


def _is_folder(rows: DataFrame, name: str) -> bool:
    return any(f"/{name}=" in file for file in rows.inputFiles()[:1])


def sent_columns(messages: DataFrame) -> list[str]:
    """Return the columns of messages that are sent again."""
    return [name for name in _SENT if name in messages.columns]
