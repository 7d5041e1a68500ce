"""A stream's reader: its position, what a micro-batch holds, and the channel that follows it.

Spark keeps the position in the query's checkpoint, so a restarted query continues exactly where the
last finished micro-batch ended.  What Spark has committed may be let go by the broker: with the
option `channel`, a channel of that name follows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from martlet.spark.brokers import Brokers
from martlet.spark.endpoint import BrokerUnreachable, QueueRange
from martlet.spark.loss import tell_loss
from martlet.spark.offsets import Offsets, QueueKey, flatten, nested, spans, step
from martlet.spark.options import ReadOptions
from martlet.spark.read import read
from martlet.spark.split import Split, plan

_LOG = logging.getLogger(__name__)
_LOOK_INTERVAL_S = 0.1
"""An idle query asks for the latest offset 77 times a second; the brokers are asked 10 times."""

Seen = Mapping[QueueKey, QueueRange]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of a stream on the driver and reads their splits in the tasks.

    Args:
        options: the query's.
        schema: the columns it wants.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._brokers: Brokers | None = None
        self._seen: Seen = {}
        self._seen_at_s = 0.0
        self._target: dict[QueueKey, int] | None = None
        self._advanced: dict[QueueKey, int] = {}
        self._told_missing: set[QueueKey] = set()

    def __getstate__(self) -> dict[str, Any]:
        # A task reads a split, which says all that it needs.
        return {"_options": self._options, "_schema": self._schema}

    def initialOffset(self) -> Offsets:
        """Where a query without a checkpoint begins."""
        self._create_channel()
        seen = self._look(patient=True)
        brokers = self._connected()
        for topic in self._options.topics:
            if not any(key.topic == topic for key in seen):
                _LOG.warning("there is no topic %s yet; it is read from its start", topic)
        start = brokers.resolve(self._options.start, seen, "startingOffsets")
        for key, offset in start.items():
            start[key] = self._in_range(key, offset, seen)
        self._advance(start)
        return nested(start)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option maxOffsetsPerTrigger."""
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Where the next micro-batch ends.

        A queue that has just appeared is taken in at its first offset: it has messages from the
        next micro-batch on, and where it began is then in the checkpoint.

        Raises:
            DataLossError: a queue that the stream was reading is not there any more.
        """
        begin = flatten(start)
        # All before `start` has been committed, though Spark may never say so with `commit`: it
        # does not for the last micro-batch of a run.
        self._advance(begin)
        seen = self._look(patient=False)
        reached: dict[QueueKey, int] = {}
        for key, queue in seen.items():
            end = queue.end_offset
            if self._target is not None:
                end = min(end, self._target.get(key, queue.start_offset))
            if key not in begin:
                reached[key] = queue.start_offset
            elif begin[key] > queue.end_offset:
                reached[key] = self._in_range(key, begin[key], seen)
            else:
                reached[key] = max(end, begin[key])
        for key in begin.keys() - seen.keys():
            self._missing(key, begin[key])
            reached[key] = begin[key]
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return nested(step(begin, reached, most))

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end: what is stored later is for the next run."""
        seen = self._look(patient=True)
        self._target = {key: queue.end_offset for key, queue in seen.items()}

    def reportLatestOffset(self) -> Offsets | None:
        """The ends of the queues as last seen, for the query's progress: how far behind it is."""
        return nested({key: queue.end_offset for key, queue in self._seen.items()}) or None

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Cut a micro-batch into splits.

        Raises:
            DataLossError: some of it has gone.
        """
        begin, reached = flatten(start), flatten(end)
        seen = self._look(patient=True)
        for key in begin.keys() & reached.keys():
            if begin[key] >= reached[key]:
                continue
            if key not in seen:
                self._missing(key, begin[key])
                del reached[key]
            else:
                begin[key] = self._in_range(key, begin[key], seen)
        return plan(spans(begin, reached), seen, self._connected(), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one split."""
        assert isinstance(partition, Split)
        return read(partition, self._schema)

    def commit(self, end: Offsets) -> None:
        """Spark is done with all before `end`: so is the channel."""
        self._advance(flatten(end))

    def stop(self) -> None:
        """The query has ended."""
        if self._brokers is not None:
            self._brokers.close()

    def _connected(self) -> Brokers:
        if self._brokers is None:
            options = self._options
            self._brokers = Brokers(options.addresses, options.topics, options.timeout_ms)
        return self._brokers

    def _look(self, *, patient: bool) -> Seen:
        """What the brokers hold, at most _LOOK_INTERVAL_S old."""
        now_s = time.monotonic()
        if patient or now_s - self._seen_at_s > _LOOK_INTERVAL_S:
            self._seen = self._connected().look(patient=patient)
            self._seen_at_s = time.monotonic()
        return self._seen

    def _in_range(self, key: QueueKey, offset: int, seen: Seen) -> int:
        """An offset that its queue has, or where it goes on."""
        queue = seen[key]
        fail = self._options.fail_on_data_loss
        if offset < queue.start_offset:
            why = "the broker let go of what is before, as every channel had passed it"
            return tell_loss(fail, key, offset, queue.start_offset, why)
        if offset > queue.end_offset:
            why = "the topic was made anew, or the log has lost its tail"
            return tell_loss(fail, key, offset, queue.end_offset, why)
        return offset

    def _missing(self, key: QueueKey, offset: int) -> None:
        brokers = self._connected()
        if key.broker in brokers.ids:
            why = "the topic was deleted"
        else:
            why = f"none of {', '.join(self._options.addresses)} is that broker"
        # Said once: a stream that goes on comes here with every micro-batch.
        if key not in self._told_missing:
            tell_loss(self._options.fail_on_data_loss, key, offset, offset, why)
            self._told_missing.add(key)

    def _create_channel(self) -> None:
        """Make topics and channel, so that nothing published from now on is let go unread."""
        if self._options.channel is None:
            return
        brokers = self._connected()
        brokers.look(patient=True)
        for broker in brokers.ids:
            for topic in self._options.topics:
                brokers.endpoint(broker).create(topic, self._options.channel)

    def _advance(self, position: Mapping[QueueKey, int]) -> None:
        """Let the channel follow the query. One that cannot follow now will with the next batch."""
        channel = self._options.channel
        if channel is None:
            return
        brokers = self._connected()
        seen = self._seen or self._look(patient=False)
        for key, offset in position.items():
            if key not in seen or self._advanced.get(key) == offset:
                continue
            # It has to be there from the beginning; after that the next one makes up for a failure.
            patient = key not in self._advanced
            try:
                endpoint = brokers.endpoint(key.broker)
                endpoint.advance(key.topic, key.queue, channel, offset, patient=patient)
            except BrokerUnreachable as error:
                _LOG.warning("channel %s of %s stays behind for now: %s", channel, key.topic, error)
            else:
                self._advanced[key] = offset
