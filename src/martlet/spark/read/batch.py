"""The reader of a batch query: the messages between two bounds, read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from martlet.reader.brokers.brokers import QueryBrokers
from martlet.reader.brokers.endpoint import BrokerNotFound
from martlet.reader.data_loss import LossReport, report_loss
from martlet.reader.offsets import spans
from martlet.reader.options import ReadOptions
from martlet.reader.resolved_bounds import resolve
from martlet.reader.split import plan
from martlet.reader.task import read


class BatchReader(DataSourceReader):
    """Plans a batch query on the driver and reads its splits in the tasks."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the offsets that the bounds enclose now into splits.

        Raises:
            NoSuchTopicError: a topic does not exist.
            ValueError: the offsets of an option do not exist.
            DataLossError: the log no longer holds the starting offsets.
        """
        with closing(QueryBrokers(self._options)) as brokers:
            try:
                return self._plan(brokers)
            except BrokerNotFound:  # A topic was deleted between the poll and the plan.
                return self._plan(brokers)

    def _plan(self, brokers: QueryBrokers) -> list[InputPartition]:
        options = self._options
        seen = brokers.poll(patient=True)
        brokers.require_topics(seen)
        start = resolve(brokers, options.start, seen, "startingOffsets")
        for key, offset in start.items():
            first = seen[key].start_offset
            if offset < first:
                start[key] = report_loss(
                    options.fail_on_data_loss, key, offset, first, LossReport.RETENTION
                )
        end = resolve(brokers, options.end, seen, "endingOffsets")
        planned = plan(spans(start, end), seen, brokers, options)
        return [InputPartition(task) for task in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task."""
        # Spark makes a partition of None out of an empty list.
        return iter(()) if partition.value is None else read(partition.value, self._schema)
