"""The reader of a batch query: the messages between two bounds, read once."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from martlet.reader.batch_plan import batch_tasks
from martlet.reader.options import ReadOptions
from martlet.reader.task import read

if TYPE_CHECKING:
    from martlet.reader.filters import RowFilter


class BatchReader(DataSourceReader):
    """Plans a batch query on the driver and reads its splits in the tasks."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._row_filter = options.row_filter

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the offsets that the bounds enclose now into splits. Raises as `batch_tasks`."""
        return [InputPartition(task) for task in batch_tasks(self._options, self._row_filter)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task."""
        return read_partition(partition, self._schema, self._row_filter)


def read_partition(
    partition: InputPartition, schema: pa.Schema, row_filter: RowFilter | None
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one task. Raises as `martlet.reader.task.read`."""
    if partition.value is None:  # Spark makes a partition of None out of an empty list.
        return
    try:
        yield from read(partition.value, schema, row_filter)
    finally:
        _spare_collector()


@functools.cache
def _spare_collector() -> None:
    """Exempt the objects that exist after the first split from garbage collection: after each task
    Spark's workers collect all that pyspark, pandas and pyarrow have loaded, which takes 50 ms.
    """
    gc.freeze()
