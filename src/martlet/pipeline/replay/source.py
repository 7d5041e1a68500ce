"""The past: messages that were, by the queues that they were in, and their offsets.

A topic's past is what the brokers' logs still hold, an archive's what its files do.  Either has a
start and an end for each queue, fixed when the replay begins, and gives the messages between two
positions as a table with the source's columns.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from martlet.pipeline.job import JobFailed, query_errors_as
from martlet.pipeline.replay.options import ReplayJobOptions
from martlet.spark.brokers.brokers import QueryBrokers
from martlet.spark.read.offset_bound import Bound, BoundOffset, parse_bound
from martlet.spark.read.offsets import QueueKey, nested
from martlet.spark.read.options import ReadOptions
from martlet.spark.read.resolved_bounds import resolve

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Position = dict[QueueKey, int]
_SENT = ("value", "key", "headers", "tag", "keys")
_PLACE = ("broker", "topic", "partition", "offset")
_NANOSECONDS = 1e9


class Past(ABC):
    """Messages that were."""

    @abstractmethod
    def bounds(self) -> tuple[Position, Position]:
        """Where each queue starts and ends, as the options say."""

    @abstractmethod
    def between(self, start: Position, end: Position) -> DataFrame:
        """The messages of some queues, from one position up to another."""

    def close(self) -> None:  # noqa: B027, an archive has nothing to close
        """Let go of what it holds."""

    @staticmethod
    def of(options: ReplayJobOptions, spark: SparkSession) -> Past:
        """That which the options name."""
        return ArchivePast(options, spark) if options.from_archive else TopicPast(options, spark)


class TopicPast(Past):
    """What brokers still hold of topics."""

    def __init__(self, options: ReplayJobOptions, spark: SparkSession) -> None:
        self._spark = spark
        self._source = {**options.source, "topic": ",".join(options.from_topics)}
        bounds = {"startingOffsets": options.start, "endingOffsets": options.end}
        self._options = ReadOptions.parse({**self._source, **bounds}, "batch")
        self._brokers = QueryBrokers(self._options)

    def close(self) -> None:
        """Let go of the brokers."""
        self._brokers.close()

    def bounds(self) -> tuple[Position, Position]:
        """As the brokers resolve them.

        Raises:
            NoSuchTopicError: a topic does not exist.
            ValueError: the bounds are none.
        """
        brokers, options = self._brokers, self._options
        seen = brokers.poll(patient=True)
        brokers.require_topics(seen)
        start = resolve(brokers, options.start, seen, "startingOffsets")
        return start, resolve(brokers, options.end, seen, "endingOffsets")

    def between(self, start: Position, end: Position) -> DataFrame:
        """Read from the log.

        Raises:
            JobFailed: a topic was deleted, or made anew, since the replay has begun.
        """
        seen = self._brokers.poll(patient=True)
        gone = [key for key, first in start.items() if key not in seen and first < end[key]]
        if gone:
            key = gone[0]
            raise JobFailed(
                f"topic {key.topic!r} was deleted since the replay has begun, with what was still"
                f" to be sent of it (queue {key.queue}, offsets {start[key]} to {end[key] - 1})."
                " To replay a topic that was made anew under its name, give the replay another"
                " --checkpoint"
            )
        start = {key: first for key, first in start.items() if key in seen}
        end = {key: last for key, last in end.items() if key in seen}
        # Nothing of the queues that have come since.
        new = {key: queue.start_offset for key, queue in seen.items() if key not in start}
        return (
            self._spark.read.format("martlet")
            .options(**self._source)
            .option("startingOffsets", json.dumps(nested({**new, **start})))
            .option("endingOffsets", json.dumps(nested({**new, **end})))
            .load()
        )


class ArchivePast(Past):
    """What an archive holds."""

    def __init__(self, options: ReplayJobOptions, spark: SparkSession) -> None:
        from pyspark.sql import functions as F

        self._start = parse_bound("--start", options.start)
        self._end = parse_bound("--end", options.end)
        with query_errors_as(f"--from-archive={options.from_archive}"):
            found = spark.read.parquet(options.from_archive)
        if "_offset" in found.columns:
            # A field that is called as one of the source's columns is found in the body.
            taken = {*_PLACE, "timestamp", *_SENT}
            fields = [name for name in found.columns if name.lower() not in taken]
            found = found.select(*_of_json(found), *map(F.col, fields))
        missing = [name for name in (*_PLACE, "value", "timestamp") if name not in found.columns]
        if missing:
            raise JobFailed(
                f"--from-archive={options.from_archive} is no archive of messages: it has no column"
                f" {', '.join(missing)}"
            )
        # The folder's name would be read as a number, where a topic is called as one.
        self._messages = found.withColumn("topic", found["topic"].cast("string"))

    def bounds(self) -> tuple[Position, Position]:
        """The first and the last offset of each queue, within the bounds."""
        from pyspark.sql import functions as F

        queues = (
            self._messages.where(_since(self._start, "--start") & ~_since(self._end, "--end"))
            .groupBy(*_PLACE[:3])
            .agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
            .collect()
        )
        keys = [QueueKey(row["broker"], row["topic"], row["partition"]) for row in queues]
        start = {key: int(row["first"]) for key, row in zip(keys, queues, strict=True)}
        return start, {key: int(row["last"]) + 1 for key, row in zip(keys, queues, strict=True)}

    def between(self, start: Position, end: Position) -> DataFrame:
        """Read from the files; those that have none of these offsets are passed over."""
        from pyspark.sql import functions as F

        parts = [_within(key, first, end[key]) for key, first in start.items() if first < end[key]]
        return self._messages.where(reduce(or_, parts) if parts else F.lit(False))


def _within(key: QueueKey, start: int, end: int) -> Column:
    from pyspark.sql import functions as F

    is_it = (F.col("broker") == key.broker) & (F.col("topic") == key.topic)
    offset = F.col("offset")
    return is_it & (F.col("partition") == key.queue) & (offset >= start) & (offset < end)


def _since(bound: Bound, name: str) -> Column:
    """Whether a message lies at or behind a bound."""
    from pyspark.sql import functions as F

    place = bound.everywhere
    if place is None or place.offset is not None or place.shift:
        raise ValueError(
            f"{name}: an archive is replayed from earliest, now-1h or 2026-11-22T08:00:00Z on"
        )
    if place.end is not None:
        return F.lit(place == BoundOffset(end=-2))
    time_ns = place.time_ns
    if time_ns is None:
        assert place.ago_ns is not None
        time_ns = int(datetime.now(UTC).timestamp() * _NANOSECONDS) - place.ago_ns
    return F.col("timestamp") >= F.timestamp_micros(F.lit(time_ns // 1000))


def _of_json(found: DataFrame) -> list[Column]:
    """The source's columns, of an archive that has the fields of JSON messages as its own."""
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
    # What the folders are named by is no field, unless it says something else.
    fields = [
        F.when(~F.col(name).eqNullSafe(folders[name]), F.col(name)).alias(name)
        if name in folders and _is_folder(found, name)
        else F.col(name)
        for name in found.columns
        if not name.startswith("_")
    ]
    text = F.to_json(F.struct(*fields)).cast("binary")
    kept = [
        F.col(name).cast("binary")
        for name in ("_value", "_corrupt_record")
        if name in found.columns
    ]
    columns = [F.coalesce(*kept, text).alias("value")]
    return columns + [F.col(old).alias(new) for new, old in origin.items() if old in found.columns]


def _is_folder(found: DataFrame, name: str) -> bool:
    """Whether a column is told by the names of folders."""
    return any(f"/{name}=" in file for file in found.inputFiles()[:1])


def sent_columns(messages: DataFrame) -> list[str]:
    """Those columns of messages that are sent again."""
    return [name for name in _SENT if name in messages.columns]


def left(start: Mapping[QueueKey, int], end: Mapping[QueueKey, int]) -> int:
    """How many offsets lie between two positions."""
    return sum(max(0, end[key] - first) for key, first in start.items())
