"""The reader of a stream: plan micro-batches, and report the stream's position to the brokers.

Spark keeps the position in the query's checkpoint, so a restarted query continues exactly where the
last finished micro-batch ended.  A planned micro-batch keeps its bounds, however often it is
retried::

    latestOffset(start) -> end      the end of the next micro-batch within the limits; it includes
                                    nothing of silent brokers and of queues just found
    partitions(start, end)          wait for the brokers of the micro-batch, and cut it into tasks
    read(task)                      in the tasks
    latestOffset(end)               all before `end` is committed: report it to the brokers
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from martlet.reader.brokers.brokers import QueryBrokers, Seen
from martlet.reader.brokers.endpoint import BrokerNotFound, QueueRange
from martlet.reader.data_loss import LossReport, report_loss
from martlet.reader.offsets import (
    ANY,
    Gathering,
    Offsets,
    QueueKey,
    adopted,
    flatten,
    nested,
    spans,
    step,
    unread,
    within_bytes,
)
from martlet.reader.options import ReadOptions
from martlet.reader.resolved_bounds import resolve
from martlet.reader.split import plan
from martlet.spark.read.batch import read_partition
from martlet.spark.read.progress import ProgressReporter

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_POLL_INTERVAL_S = 0.1
"""Spark asks an idle query for the latest offset 77 times a second; brokers are polled 10 times."""
_MAX_POLL_INTERVAL_S = 1.0
_POLL_SHARE = 0.1
"""Processor share that polling may take, which would be more with thousands of topics."""

Position = dict[QueueKey, int]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of a stream on the driver and reads them in the tasks."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._brokers = QueryBrokers(options)
        self._reporter = ProgressReporter(options, self._brokers)
        self._gathering = (
            None if options.min_rows is None else Gathering(options.min_rows, options.max_delay_s)
        )
        self._seen: Seen = {}
        self._seen_at_s = 0.0
        self._poll_interval_s = _POLL_INTERVAL_S
        self._target: Position | None = None
        self._reported_missing: set[QueueKey] = set()
        self._missing_since_s: dict[str, float] = {}
        self._is_nameless = False
        """Whether the checkpoint is of an older version, without the topics' numbers."""

    def __getstate__(self) -> dict[str, Any]:
        # The splits have all that a task needs.
        return {"_options": self._options, "_schema": self._schema}

    def initialOffset(self) -> Offsets:
        """The position at which a query without a checkpoint starts."""
        return self._planned(self._initial)

    def _initial(self) -> Offsets:
        options = self._options
        seen = self._poll(patient=True)
        self._reporter.begin(seen)
        seen = self._poll(patient=True)
        for topic in options.topics.names:
            if not any(key.topic == topic for key in seen):
                _LOG.warning("there is no topic %s yet; it is read from its start", topic)
        start = resolve(self._brokers, options.start, seen, "startingOffsets")
        for key, offset in start.items():
            start[key] = self._in_range(key, offset, seen)
        self._reporter.report(start, seen)
        return nested(start)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option maxOffsetsPerTrigger; `latestOffset` applies the other limits itself."""
        max_count = self._options.max_offsets
        return ReadAllAvailable() if max_count is None else ReadMaxRows(max_count)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """The position at which the next micro-batch ends.

        A new queue enters the position at its first offset: its messages come with the micro-batch
        after this one, when the checkpoint has that offset. Raises DataLossError: a queue of the
        stream no longer exists.
        """
        return self._planned(lambda: self._latest(start, limit))

    def _latest(self, start: Offsets, limit: ReadLimit) -> Offsets:
        seen = self._poll(patient=False)
        begin = self._position(start, seen)
        # All before `start` is committed; Spark does not call `commit` for the last of a run.
        self._reporter.report(begin, seen)
        if self._target is not None:
            # Without this wait the run would end without the messages of brokers silent just now.
            target = self._target
            seen = self._wait_for({key.broker for key in target if begin.get(key, 0) < target[key]})
        reached = self._reachable(begin, seen)
        if self._gathering is not None and self._target is None:
            new = {key: offset for key, offset in reached.items() if key not in begin}
            ends = {key: seen[key].end_offset if key in new else reached[key] for key in reached}
            count = unread(spans(begin | new, ends))
            if self._gathering.waits(count, time.monotonic()):
                return start
        max_count = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = step(begin, reached, max_count)
        if self._options.max_bytes is not None:
            reached = within_bytes(begin, reached, self._options.max_bytes, self._reach)
        return nested(reached)

    def _reachable(self, begin: Position, seen: Seen) -> Position:
        """The position behind all that can be read now. Raises DataLossError."""
        reached: Position = {}
        silent = self._brokers.silent
        for key, queue in seen.items():
            if key.broker in silent:
                if key in begin:
                    reached[key] = begin[key]
                continue
            end = queue.end_offset
            if self._target is not None:
                end = min(end, self._target.get(key, queue.start_offset))
            if key not in begin:
                reached[key] = self._first_offset(key, begin, queue)
            elif begin[key] > queue.end_offset:
                reached[key] = self._in_range(key, begin[key], seen)
            else:
                reached[key] = max(end, begin[key])
        for key in begin.keys() - seen.keys():
            if self._keeps(key, begin[key], seen):
                reached[key] = begin[key]
        return reached

    def _first_offset(self, key: QueueKey, begin: Position, queue: QueueRange) -> int:
        """The first offset to read of a new queue. Raises DataLossError."""
        if not queue.start_offset:
            return 0
        if any(read.broker == key.broker for read in begin):
            detail = "it is newer than the stream, and was not read yet"
            return self._lose(key, 0, queue.start_offset, LossReport.RETENTION, detail)
        _LOG.warning("%s is new and begins at offset %d", key, queue.start_offset)
        return queue.start_offset

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run at the current ends of the queues."""
        seen = self._poll(patient=True)
        self._target = {key: queue.end_offset for key, queue in seen.items()}

    def reportLatestOffset(self) -> Offsets | None:
        """The latest ends of the queues, from which Spark computes the query's lag."""
        return nested({key: queue.end_offset for key, queue in self._seen.items()}) or None

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Cut a micro-batch into tasks. Raises DataLossError: the log no longer has all of it."""
        return self._planned(lambda: self._tasks(start, end))

    def _tasks(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        seen = self._poll(patient=False)
        begin, reached = self._position(start, seen), self._position(end, seen)
        seen = self._wait_for({span.key.broker for span in spans(begin, reached)})
        begin, reached = self._position(start, seen), self._position(end, seen)
        for key, first, _ in list(spans(begin, reached)):
            if key not in seen:
                self._keeps(key, first, seen, is_needed=True)
                del reached[key]
            else:
                begin[key] = self._in_range(key, first, seen)
        options = self._options
        todo = spans(begin, reached)
        planned = plan(todo, seen, self._brokers, options, options.row_filter)
        return [InputPartition(task) for task in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task."""
        return read_partition(partition, self._schema, self._options.row_filter)

    def commit(self, end: Offsets) -> None:
        """Report to the brokers that Spark has committed all before `end`."""
        self._reporter.report(self._position(end, self._seen), self._seen)

    def stop(self) -> None:
        """Close the connections when the query ends."""
        self._brokers.close()

    def _planned(self, plan: Callable[[], T]) -> T:
        """Plan, and plan again after a new poll if a topic was deleted meanwhile."""
        try:
            return plan()
        except BrokerNotFound:
            self._seen_at_s = -math.inf
            return plan()

    def _position(self, offsets: Offsets, seen: Seen) -> Position:
        flat = flatten(offsets)
        self._is_nameless |= any(key.topic_id == ANY for key in flat)
        return adopted(flat, seen)

    def _reach(self, key: QueueKey, start: int, end: int, max_bytes: int) -> tuple[int, int]:
        source = self._seen[key].source
        return self._brokers.endpoint(key.broker).reach(source, start, end, max_bytes)

    def _poll(self, *, patient: bool) -> Seen:
        """The queues of the brokers, at most `_poll_interval_s` old."""
        now_s = time.monotonic()
        if patient or now_s - self._seen_at_s > self._poll_interval_s:
            began_s = time.process_time()
            self._seen = self._brokers.poll(patient=patient)
            wanted_s = (time.process_time() - began_s) / _POLL_SHARE
            self._poll_interval_s = min(max(_POLL_INTERVAL_S, wanted_s), _MAX_POLL_INTERVAL_S)
            self._seen_at_s = time.monotonic()
        return self._seen

    def _wait_for(self, needed: Collection[str]) -> Seen:
        """Wait for the brokers needed until the timeout; return all queues. Raises as `poll`."""
        brokers = self._brokers
        deadline_s = time.monotonic() + self._options.timeout_ms / 1000
        seen = self._poll(patient=False)
        while True:
            answered = set(brokers.ids)
            absent = {b for b in needed if b in brokers.silent or b not in answered}
            if not absent or (not brokers.may_come and not absent & answered):
                return seen
            if time.monotonic() > deadline_s:
                return seen
            time.sleep(_POLL_INTERVAL_S)
            seen = self._poll(patient=False)

    def _lose(
        self, key: QueueKey, expected: int, there: int, loss: LossReport, detail: str = ""
    ) -> int:
        return report_loss(self._options.fail_on_data_loss, key, expected, there, loss, detail)

    def _in_range(self, key: QueueKey, offset: int, seen: Seen) -> int:
        """Return the offset if its queue has it, else where to go on. Raises DataLossError."""
        queue = seen[key]
        if offset < queue.start_offset:
            return self._lose(key, offset, queue.start_offset, LossReport.RETENTION)
        if offset > queue.end_offset:
            detail = (
                "or the topic was deleted and created again: the checkpoint is of a version that"
                " did not note the topic's number"
                if self._is_nameless
                else ""
            )
            return self._lose(key, offset, queue.end_offset, LossReport.TRUNCATION, detail)
        return offset

    def _keeps(self, key: QueueKey, offset: int, seen: Seen, *, is_needed: bool = False) -> bool:
        """Whether the position keeps a queue that no broker lists now.

        Raises:
            DataLossError: the queue no longer exists.
            ValueError: the micro-batch needs it, and it is no longer one of the query's topics.
        """
        brokers = self._brokers
        if not self._options.topics.has(key.topic):
            if is_needed:
                raise ValueError(
                    f"the unfinished micro-batch of the checkpoint has messages of {key}, but the"
                    f" query's topics are {self._options.topics} now: run the query with that"
                    " topic once more first"
                )
            if key not in self._reported_missing:
                _LOG.warning("%s is no longer read; the checkpoint keeps its offset", key)
                self._reported_missing.add(key)
            return True
        if key.broker not in brokers.ids:
            now_s = time.monotonic()
            since_s = self._missing_since_s.setdefault(key.broker, now_s)
            is_early = now_s - since_s < self._options.timeout_ms / 1000
            if brokers.may_come and is_early and not is_needed:
                return True
            loss, detail = LossReport.BROKER, f"none of {brokers.where} is that broker"
        else:
            self._missing_since_s.pop(key.broker, None)
            named = [there for there in seen if there[:2] == key[:2]]
            if named and named[0].topic_id == key.topic_id:
                loss, detail = LossReport.DELETION, "it has fewer queues than it had"
            elif named:
                loss = LossReport.RECREATION
                detail = f"it was number {key.topic_id} and is number {named[0].topic_id} now"
            else:
                loss, detail = LossReport.DELETION, ""
        # Report it once: a stream that goes on comes here with every micro-batch.
        if key not in self._reported_missing:
            self._lose(key, offset, offset, loss, detail)
            self._reported_missing.add(key)
        return loss is not LossReport.RECREATION


class FailingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error in a query's options from the first method that Spark calls: Spark hides one
    that `streamReader` raises behind an `UnboundLocalError` of its own.
    """

    def __init__(self, error: ValueError) -> None:
        self._error = error

    def _refuse(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise self._error

    prepareForTriggerAvailableNow = _refuse
    initialOffset = _refuse
    getDefaultReadLimit = _refuse
    latestOffset = _refuse
    read = _refuse
