"""The archive: topics as a table of Parquet files that grows while messages come in.

One Spark Structured Streaming query, exactly once: its position is in the checkpoint, and what a
micro-batch wrote counts once Spark's log of the table (`_spark_metadata`) says so.  Readers should
therefore read the table through Spark.  Two shapes:

- without a JSON schema, a row a message: value as bytes, and where it came from;
- with one, the fields of the message as columns, and where it came from as `_topic`, `_queue`,
  `_offset`, `_timestamp`, `_message_id`, `_broker`.  What is not JSON of that schema is kept as
  text in `_corrupt_record`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructType

from martlet.duration import MILLISECOND_NS
from martlet.options.archive import ArchiveOptions
from martlet.pipeline.follow import follow
from martlet.pipeline.job import OK, Job, Run

CORRUPT = "_corrupt_record"
_READ = (
    "value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "message_id STRING, broker STRING"
)
_ORIGIN = {
    "_topic": "topic",
    "_queue": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_message_id": "message_id",
    "_broker": "broker",
}


@dataclass(frozen=True, kw_only=True)
class Archive:
    """What to archive, and where.

    Attributes:
        addresses: HTTP addresses of the brokers, comma separated.
        topics: topics, comma separated.
        out: the table's folder, or any URL that Spark writes to.
        json_schema: the fields of the messages in Spark's words, ``"origin STRING, month INT"``.
        partition_by: the columns that become folders: fields of the message, or topic and date.
        checkpoint: where the position is kept; None for ``_checkpoint`` in `out`.
        channel: the channel that keeps at the broker what is not archived yet; None for none.
        max_offsets: the most messages of one micro-batch.
        once: archive what there is now, and end.
        interval: else how often, as Spark writes it (``10 seconds``).
        timeout_ms: how long a broker may be out of reach before the query fails.
    """

    addresses: str
    topics: str
    out: str
    json_schema: str | None = None
    partition_by: Sequence[str] = ("topic", "date")
    checkpoint: str | None = None
    channel: str | None = "archive"
    max_offsets: int = 1_000_000
    once: bool = False
    interval: str = "10 seconds"
    timeout_ms: int = 60_000

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query. A restarted one goes on where the last one's table ends.

        Raises:
            ValueError: the schema is none, or has no such column to partition by.
        """
        rows = self.rows(self._source(spark))
        missing = [name for name in self.partition_by if name not in rows.columns]
        if missing:
            raise ValueError(
                f"cannot partition by {', '.join(missing)}: there are {', '.join(rows.columns)}"
            )
        writer = (
            rows.writeStream.format("parquet")
            .queryName(f"archive {self.topics}")
            .option("path", self.out)
            .option("checkpointLocation", self.checkpoint or f"{self.out.rstrip('/')}/_checkpoint")
            .partitionBy(*self.partition_by)
            .outputMode("append")
        )
        if self.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=self.interval).start()

    def _source(self, spark: SparkSession) -> DataFrame:
        reader = (
            spark.readStream.format("martlet")
            .schema(_READ)
            .option("addresses", self.addresses)
            .option("topic", self.topics)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self.max_offsets)
            .option("timeoutMs", self.timeout_ms)
        )
        if self.channel is not None:
            reader = reader.option("channel", self.channel)
        return reader.load()

    def rows(self, messages: DataFrame) -> DataFrame:
        """The table's rows, from the source's."""
        if self.json_schema is None:
            rows = messages
        else:
            fields = self._fields()
            parsed = F.from_json(
                F.col("value").cast("string"),
                fields,
                {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT},
            )
            origin: list[Column] = [F.col(name).alias(alias) for alias, name in _ORIGIN.items()]
            rows = messages.select(parsed.alias("message"), *origin).select(
                *[F.col("message").getField(name).alias(name) for name in fields.fieldNames()],
                *_ORIGIN,
            )
        for name, origin_column in (
            ("topic", F.col("_topic" if self.json_schema else "topic")),
            ("date", F.to_date("_timestamp" if self.json_schema else "timestamp")),
        ):
            if name in self.partition_by and name not in rows.columns:
                rows = rows.withColumn(name, origin_column)
        return rows

    def _fields(self) -> StructType:
        assert self.json_schema is not None
        fields = StructType.fromDDL(self.json_schema)
        if not isinstance(fields, StructType):
            raise ValueError(
                f"{self.json_schema!r} names no fields; 'origin STRING, month INT' does"
            )
        taken = sorted({CORRUPT, *_ORIGIN} & set(fields.fieldNames()))
        if taken:
            raise ValueError(
                f"the schema may not have {', '.join(taken)}: the archive names so itself"
            )
        return StructType([*fields.fields]).add(CORRUPT, StringType())


def _work(options: ArchiveOptions, run: Run) -> int:
    started = Archive(
        addresses=",".join(options.http_addresses),
        topics=",".join(options.topics),
        out=_location(options.out),
        json_schema=options.json_schema or None,
        partition_by=tuple(name for name in options.partition_by.split(",") if name),
        checkpoint=_location(options.checkpoint) if options.checkpoint else None,
        channel=options.channel or None,
        max_offsets=options.max_offsets,
        once=options.once,
        interval=options.interval,
        timeout_ms=options.timeout_ns // MILLISECOND_NS,
    ).start(run.spark)
    follow(started, run, "archived")
    return OK


def _location(text: str) -> str:
    """A path as Spark is to take it: a local one absolute, a URL as it is."""
    return text if "://" in text else str(Path(text).resolve())


JOB = Job(
    name="archive",
    description="Write topics to a table of Parquet files, each message exactly once.",
    options=ArchiveOptions,
    work=_work,
)
