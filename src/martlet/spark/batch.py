"""A batch query's reader: what the log holds between two bounds, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from martlet.spark.brokers import Brokers
from martlet.spark.loss import tell_loss
from martlet.spark.offsets import spans
from martlet.spark.options import ReadOptions
from martlet.spark.read import read
from martlet.spark.split import Split, plan


class BatchReader(DataSourceReader):
    """Plans a batch query on the driver and reads its splits in the tasks.

    Args:
        options: the query's.
        schema: the columns it wants.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Cut what is there now between the bounds into splits.

        Raises:
            ValueError: a topic does not exist, or the offsets given do not fit.
            DataLossError: the offsets to start from have gone.
        """
        options = self._options
        brokers = Brokers(options.addresses, options.topics, options.timeout_ms)
        try:
            return self._plan(brokers)
        finally:
            brokers.close()

    def _plan(self, brokers: Brokers) -> list[InputPartition]:
        options = self._options
        seen = brokers.look(patient=True)
        for topic in options.topics:
            if not any(key.topic == topic for key in seen):
                there = sorted(
                    {name for broker in brokers.ids for name in brokers.topics_at(broker)}
                )
                raise ValueError(
                    f"there is no topic {topic!r} at {', '.join(options.addresses)}; there is "
                    + (", ".join(there[:20]) + (" ..." if len(there) > 20 else "") or "none")
                )
        start = brokers.resolve(options.start, seen, "startingOffsets")
        for key, offset in start.items():
            first = seen[key].start_offset
            if offset < first:
                why = "the broker let go of what is before, as every channel had passed it"
                start[key] = tell_loss(options.fail_on_data_loss, key, offset, first, why)
        end = brokers.resolve(options.end, seen, "endingOffsets")
        # Spark makes a partition of None out of an empty list.
        return list(plan(spans(start, end), seen, brokers, options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one split."""
        return read(partition, self._schema) if isinstance(partition, Split) else iter(())
