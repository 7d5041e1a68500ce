"""A stream whose tasks write the messages themselves: what Spark sees of them is their manifests.

It is the source ``martlet`` but for two things.  A split is written by the task that reads it, so
no message goes through Java.  And how far the archive is, not how far Spark's checkpoint is, says
what is still to be written: a batch that Spark does again after a crash has nothing left in it if
it was committed, and a query that begins without a checkpoint goes on where the archive ends.
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

from martlet.pipeline.archive.manifest import Manifest
from martlet.pipeline.archive.position import Stretch
from martlet.pipeline.archive.rows import source_schema
from martlet.pipeline.archive.store import Store
from martlet.pipeline.archive.table import ArchiveTable, open_table
from martlet.pipeline.archive.writing import Writing
from martlet.spark.read.data_loss import LossReport
from martlet.spark.read.failing_reader import FailingStreamReader
from martlet.spark.read.offsets import Offsets, QueueKey, flatten, nested
from martlet.spark.read.options import ReadOptions
from martlet.spark.read.split import Split, Task
from martlet.spark.read.stream import StreamReader

FORMAT = "martlet-archive"
WRITING = "writing"
RUN = "run"
_AHEAD = "or the checkpoint is ahead of the archive"


def packed(writing: Writing) -> str:
    """As an option's text."""
    return base64.b85encode(pickle.dumps(writing)).decode()


class ArchiveSource(DataSource):
    """What `martlet.pipeline.archive` reads from."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """A row a stretch of a queue."""
        return StructType([StructField("manifest", StringType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader."""
        given = {name.lower(): value for name, value in self.options.items()}
        writing: Writing = pickle.loads(base64.b85decode(given.pop(WRITING)))
        run = given.pop(RUN)
        try:
            return ArchiveReader(ReadOptions.parse(given, "stream"), writing, run)
        except ValueError as error:
            return FailingStreamReader(error)


@dataclass
class _Writes(InputPartition):
    """What one Spark task is to write, and where it is staged."""

    splits: tuple[Split, ...]
    folder: str


class ArchiveReader(StreamReader):
    """Plans on the driver, by what is archived already, and writes in the tasks.

    Args:
        options: the source's.
        writing: how to write.
        run: the run that the archive belongs to.
    """

    def __init__(self, options: ReadOptions, writing: Writing, run: str) -> None:
        super().__init__(options, source_schema())
        self._writing = writing
        self._run = run
        self._table: ArchiveTable | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_writing": self._writing, "_run": self._run}

    def initialOffset(self) -> Offsets:
        """Where the archive ends; for queues that it has nothing of, as the options say."""
        table = self._opened()
        start = flatten(super().initialOffset())
        known = table.position(start) or {}
        for key in start.keys() & known.keys():
            start[key] = self._in_range(key, known[key], self._seen)
        table.start(self._run, start)
        return nested(start)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """What of a micro-batch is not archived yet, cut into tasks.

        Raises:
            DataLossError: some of it has gone.
            ValueError: the checkpoint is of another archive.
        """
        planned = [task for task in super().partitions(start, end) if isinstance(task, Task)]
        if not planned:
            return []
        table = self._opened()
        position = table.position({split.key for task in planned for split in task.splits})
        if position is None:
            raise ValueError(
                f"the checkpoint goes on in the middle of an archive, and {self._writing.location}"
                " holds none: name the archive's own checkpoint, or an empty folder to begin anew"
            )
        folder = table.stage(self._run, uuid.uuid4().hex)
        seen: set[QueueKey] = set()
        tasks: list[InputPartition] = []
        for task in planned:
            left = [self._left(split, position, seen) for split in task.splits]
            wanted = tuple(split for split in left if split.start < split.end)
            if wanted:
                tasks.append(_Writes(wanted, folder))
        return tasks

    def _left(self, split: Split, position: Mapping[QueueKey, int], seen: set[QueueKey]) -> Split:
        """What of a split is not archived yet. Raises DataLossError.

        Args:
            seen: the queues that a split was asked about; the split's is among them then.
        """
        reached = position.get(split.key, split.start)
        if split.start > reached and split.key not in seen:
            self._lose(split.key, reached, split.start, LossReport.RETENTION, _AHEAD)
        seen.add(split.key)
        return replace(split, start=min(max(split.start, reached), split.end))

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Write some splits, and tell of each."""
        assert isinstance(partition, _Writes)
        store = Store.at(self._writing.location)
        for split in partition.splits:
            stretch = Stretch(split.key, split.start, split.end)
            messages = super().read(Task((split,)))
            manifest: Manifest = self._writing.write(messages, stretch, partition.folder, store)
            yield (manifest.format(),)

    def _opened(self) -> ArchiveTable:
        if self._table is None:
            self._table = open_table(self._writing)
        return self._table
