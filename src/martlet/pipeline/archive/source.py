"""A streaming source whose tasks write the messages themselves; Spark gets only their manifests.

It differs from the source ``martlet`` in two ways.  The task that reads a split also writes it, so
no message passes through the JVM.  And the archive's position, not Spark's checkpoint, decides what
remains to be written: a batch that Spark repeats after a crash is empty if it was committed, and a
query without a checkpoint continues where the archive ends.
"""

from __future__ import annotations

import base64
import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from martlet.pipeline.archive.position import Manifest
from martlet.pipeline.archive.rows import source_schema
from martlet.pipeline.archive.store import Store
from martlet.pipeline.archive.table import ArchiveTable, open_table
from martlet.pipeline.archive.writing import Writing
from martlet.reader.data_loss import LossReport
from martlet.reader.offsets import Offsets, QueueKey, Span, flatten, nested
from martlet.reader.options import ReadOptions
from martlet.reader.split import Split, Task
from martlet.spark.read.stream import FailingStreamReader, StreamReader

FORMAT = "martlet-archive"
WRITING = "writing"
RUN = "run"
_AHEAD = "or the checkpoint is ahead of the archive"


def packed(writing: Writing) -> str:
    """Encode the settings of a write as the text of an option."""
    return base64.b85encode(pickle.dumps(writing)).decode()


class ArchiveSource(DataSource):
    """The data source of the archive's query."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema: one manifest for each stretch of a queue."""
        return StructType([StructField("manifest", StringType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Create the reader; invalid options fail when it is used."""
        options = {name.lower(): value for name, value in self.options.items()}
        writing: Writing = pickle.loads(base64.b85decode(options.pop(WRITING)))
        run = options.pop(RUN)
        try:
            return ArchiveReader(ReadOptions.parse(options, "stream"), writing, run)
        except ValueError as error:
            return FailingStreamReader(error)


@dataclass
class _Writes(InputPartition):
    """The splits that one Spark task writes, and their staged folder."""

    splits: tuple[Split, ...]
    folder: str


class ArchiveReader(StreamReader):
    """Plans micro-batches by the archive's position on the driver, and writes them in the tasks."""

    def __init__(self, options: ReadOptions, writing: Writing, run: str) -> None:
        super().__init__(options, source_schema())
        self._writing = writing
        self._run = run
        self._table: ArchiveTable | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_writing": self._writing, "_run": self._run}

    def initialOffset(self) -> Offsets:
        """Return the archive's position; for new queues, the starting offsets of the options."""
        table = self._opened()
        start = flatten(super().initialOffset())
        archived = table.position(start) or {}
        for key in start.keys() & archived.keys():
            start[key] = self._in_range(key, archived[key], self._seen)
        table.start(self._run, start)
        return nested(start)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Plan the tasks for the offsets of a micro-batch that are not archived yet. Raises
        DataLossError, ValueError: the checkpoint belongs to another archive.
        """
        planned: list[Task] = [partition.value for partition in super().partitions(start, end)]
        if not planned:
            return []
        table = self._opened()
        position = table.position({split.key for task in planned for split in task.splits})
        if position is None:
            raise ValueError(
                f"the checkpoint continues an archive, and {self._writing.location} holds none:"
                " name the archive's own checkpoint, or an empty folder to start a new archive"
            )
        folder = table.stage(self._run, uuid.uuid4().hex)
        seen: set[QueueKey] = set()
        tasks: list[InputPartition] = []
        for task in planned:
            splits = [self._unarchived(split, position, seen) for split in task.splits]
            unarchived = tuple(split for split in splits if split.start < split.end)
            if unarchived:
                tasks.append(_Writes(unarchived, folder))
        return tasks

    def _unarchived(
        self, split: Split, position: Mapping[QueueKey, int], seen: set[QueueKey]
    ) -> Split:
        """Return the part of a split that is not archived yet, and add its queue to those `seen` in
        earlier splits. Raises DataLossError.
        """
        reached = position.get(split.key, split.start)
        if split.start > reached and split.key not in seen:
            self._lose(split.key, reached, split.start, LossReport.RETENTION, _AHEAD)
        seen.add(split.key)
        return replace(split, start=min(max(split.start, reached), split.end))

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Write the splits of a task, and yield the manifest of each."""
        assert isinstance(partition, _Writes)
        store = Store.at(self._writing.location)
        for split in partition.splits:
            stretch = Span(split.key, split.start, split.end)
            messages = super().read(InputPartition(Task((split,))))
            manifest: Manifest = self._writing.write(messages, stretch, partition.folder, store)
            yield (manifest.format(),)

    def _opened(self) -> ArchiveTable:
        if self._table is None:
            self._table = open_table(self._writing)
        return self._table
