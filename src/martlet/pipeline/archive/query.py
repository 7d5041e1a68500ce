"""The query of an archive: start it, and commit its micro-batches one after the other."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from martlet.pipeline.archive.compaction import Compacted, CompactionWatch
from martlet.pipeline.archive.options import ArchiveOptions
from martlet.pipeline.archive.parquet_table import ParquetTable
from martlet.pipeline.archive.position import Manifest
from martlet.pipeline.archive.rows import shape_of
from martlet.pipeline.archive.source import FORMAT, RUN, WRITING, ArchiveSource, packed
from martlet.pipeline.archive.store import LocalStore, Store
from martlet.pipeline.archive.table import open_table
from martlet.pipeline.archive.writing import Writing

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class ArchiveBatch:
    """A micro-batch that was committed."""

    number: int
    rows: int
    files: int
    size_bytes: int
    """`rows`, `files` and `size_bytes`: the rows and files that it has added."""
    compacted: Compacted
    took_s: float
    """The time to write, commit and compact it."""


class Archive:
    """Writes an archive.

    Args:
        on_batch: called with each micro-batch, in the thread that commits it.

    Raises:
        ValueError: the schema is invalid or lacks a partition column, or the URL's scheme is
            unknown.
    """

    def __init__(
        self,
        options: ArchiveOptions,
        spark: SparkSession,
        on_batch: Callable[[ArchiveBatch], None] = lambda batch: None,
    ) -> None:
        self._options = options
        self._spark = spark
        self._on_batch = on_batch
        self._run = uuid.uuid4().hex
        self.location = Store.at(options.out).location
        schema = _parse_ddl(options.json_schema) if options.json_schema else None
        self._writing = Writing(
            self.location,
            shape_of(schema, options.partitions, keeps_value=options.keep_value),
            options.compression,
            options.flush,
            in_place=options.format == "delta",
        )
        self._table = open_table(self._writing)
        self._watch: CompactionWatch | None = None
        table, is_wanted = self._table, options.compact_files and options.partitions
        # Without an exchange of folders, readers would miss rows again and again.
        if is_wanted and isinstance(table, ParquetTable) and isinstance(table.store, LocalStore):
            self._watch = CompactionWatch(table, options)

    def start(self) -> StreamingQuery:
        """Take the archive over and start the query, which continues where the archive ends.

        Raises:
            OSError: the archive's folder cannot be written.
            ArchiveDamagedError: the archive's log contradicts its files.
        """
        self._table.begin(self._run)
        self._spark.dataSource.register(ArchiveSource)
        options = self._options
        reader = (
            self._spark.readStream.format(FORMAT)
            .options(**options.source)
            .options(**topics_of(options))
            .option("startingOffsets", options.starting_offsets)
            .option("failOnDataLoss", str(options.fail_on_data_loss).lower())
            .option("maxOffsetsPerTrigger", options.max_offsets)
            .option(WRITING, packed(self._writing))
            .option(RUN, self._run)
        )
        if options.group:
            reader = reader.option("group", options.group).option("retain", "true")
        elif options.channel:
            reader = reader.option("channel", options.channel)
        writer = (
            reader.load()
            .writeStream.queryName(f"archive {self._run[:8]}")
            .option("checkpointLocation", self._checkpoint())
            .foreachBatch(self._commit)
        )
        return writer.trigger(**options.trigger).start()

    def _checkpoint(self) -> str:
        """Return the folder of Spark's checkpoint; the position is in the archive itself."""
        if self._options.checkpoint:
            return Store.at(self._options.checkpoint).location
        store = Store.at(self.location)
        if isinstance(store, LocalStore):
            return store.path("_checkpoint")
        return tempfile.mkdtemp(prefix="martlet-archive-")

    def _commit(self, batch: DataFrame, number: int) -> None:
        """Run the tasks of a micro-batch, which write it, and commit their files."""
        began_s = time.monotonic()
        manifests = [Manifest.parse(row.manifest) for row in batch.collect()]
        rows = self._table.commit(self._run, manifests)
        files = [file for manifest in manifests for file in manifest.files]
        compacted = Compacted()
        if self._watch is not None:
            self._watch.added(Counter(file.name.rpartition("/")[0] for file in files))
            compacted = self._watch.run(self._spark, self._run)
        done = ArchiveBatch(
            number=number,
            rows=rows,
            files=len(files),
            size_bytes=sum(file.size_bytes for file in files),
            compacted=compacted,
            took_s=time.monotonic() - began_s,
        )
        self._on_batch(done)


def topics_of(options: ArchiveOptions) -> dict[str, str]:
    """Return the topics as an option of the source."""
    if options.topic_pattern:
        return {"topicPattern": options.topic_pattern}
    return {"topic": ",".join(options.topics)}


def _parse_ddl(ddl: str) -> StructType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        schema = StructType.fromDDL(ddl)
    except PySparkException as error:
        message = next(filter(None, map(str.strip, str(error).splitlines())), "")
        raise ValueError(f"{ddl!r} is not a schema: {message}") from error
    if not isinstance(schema, StructType):
        raise ValueError(f"{ddl!r} names no fields; 'origin STRING, month INT' does")
    return schema
