"""A stream's reader: its position, what a micro-batch holds, and who is told how far it is.

Spark keeps the position in the query's checkpoint, so a restarted query continues exactly where the
last finished micro-batch ended.  A micro-batch once planned is read as it was planned, however
often that is tried::

    latestOffset(start) -> end      what there is, within the limits; of brokers that are silent,
                                    and of queues that are new, nothing yet
    partitions(start, end)          waits for the brokers that it needs
    read(task)                      in the tasks
    latestOffset(end)               all before `end` is done: so the brokers are told
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from martlet.spark.brokers.brokers import QueryBrokers
from martlet.spark.brokers.endpoint import BrokerNotFound, BrokerQueue, QueueRange
from martlet.spark.read.data_loss import LossReport, report_loss
from martlet.spark.read.offsets import ANY, Offsets, QueueKey, adopted, flatten, nested, spans, step
from martlet.spark.read.options import ReadOptions
from martlet.spark.read.progress import ProgressReporter
from martlet.spark.read.read_limits import Gathering, unread, within_bytes
from martlet.spark.read.resolved_bounds import resolve
from martlet.spark.read.split import Task, plan
from martlet.spark.read.task import read

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_LOOK_INTERVAL_S = 0.1
"""An idle query asks for the latest offset 77 times a second; the brokers are asked 10 times."""
_MAX_LOOK_INTERVAL_S = 1.0
_LOOK_SHARE = 0.1
"""No more than this part of a processor goes into looking, as it would with thousands of topics."""

Seen = Mapping[QueueKey, QueueRange]
Position = dict[QueueKey, int]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of a stream on the driver and reads them in the tasks.

    Args:
        options: the query's.
        schema: the columns it wants.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._brokers = QueryBrokers(options)
        self._follower = ProgressReporter(options, self._brokers)
        self._gathering = (
            None if options.min_rows is None else Gathering(options.min_rows, options.max_delay_s)
        )
        self._seen: Seen = {}
        self._seen_at_s = 0.0
        self._look_interval_s = _LOOK_INTERVAL_S
        self._target: Position | None = None
        self._reported_missing: set[QueueKey] = set()
        self._missing_since_s: dict[str, float] = {}
        self._is_nameless = False
        """Whether the position was written by a version that did not note topics' numbers."""

    def __getstate__(self) -> dict[str, Any]:
        # A task's splits say all that it needs.
        return {"_options": self._options, "_schema": self._schema}

    def initialOffset(self) -> Offsets:
        """Where a query without a checkpoint begins."""
        return self._planned(self._initial)

    def _initial(self) -> Offsets:
        options = self._options
        seen = self._look(patient=True)
        self._follower.begin(seen)
        seen = self._look(patient=True)
        for topic in options.topics.names:
            if not any(key.topic == topic for key in seen):
                _LOG.warning("there is no topic %s yet; it is read from its start", topic)
        start = resolve(self._brokers, options.start, seen, "startingOffsets")
        for key, offset in start.items():
            start[key] = self._in_range(key, offset, seen)
        self._follower.report(start, seen)
        return nested(start)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option maxOffsetsPerTrigger; the other limits are minded beside it."""
        max_count = self._options.max_offsets
        return ReadAllAvailable() if max_count is None else ReadMaxRows(max_count)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Where the next micro-batch ends.

        A queue that has just appeared is taken in at its first offset: it has messages from the
        next micro-batch on, and where it began is then in the checkpoint.

        Raises:
            DataLossError: a queue that the stream was reading is not there any more.
        """
        return self._planned(lambda: self._latest(start, limit))

    def _latest(self, start: Offsets, limit: ReadLimit) -> Offsets:
        seen = self._look(patient=False)
        begin = self._position(start, seen)
        # All before `start` has been committed, though Spark may never say so with `commit`: it
        # does not for the last micro-batch of a run.
        self._follower.report(begin, seen)
        if self._target is not None:
            # It would be over without those that are silent just now.
            target = self._target
            seen = self._wait_for({key.broker for key in target if begin.get(key, 0) < target[key]})
        reached = self._reachable(begin, seen)
        if self._gathering is not None and self._target is None:
            new = {key: offset for key, offset in reached.items() if key not in begin}
            ends = {key: seen[key].end_offset if key in new else reached[key] for key in reached}
            count = unread(list(spans(begin | new, ends)))
            if self._gathering.waits(count, time.monotonic()):
                return start
        max_count = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = step(begin, reached, max_count)
        if self._options.max_bytes is not None:
            reached = within_bytes(begin, reached, self._options.max_bytes, self._reach)
        return nested(reached)

    def _reachable(self, begin: Position, seen: Seen) -> Position:
        """The position that all there is, to be read now, would lead to. Raises DataLossError."""
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
                reached[key] = self._taken_in(key, begin, queue)
            elif begin[key] > queue.end_offset:
                reached[key] = self._in_range(key, begin[key], seen)
            else:
                reached[key] = max(end, begin[key])
        for key in begin.keys() - seen.keys():
            if self._stays(key, begin[key], seen):
                reached[key] = begin[key]
        return reached

    def _taken_in(self, key: QueueKey, begin: Position, queue: QueueRange) -> int:
        """Where a queue that has appeared begins. Raises DataLossError."""
        if not queue.start_offset:
            return 0
        if any(known.broker == key.broker for known in begin):
            detail = "it has appeared since the stream began, and was not read yet"
            return self._lose(key, 0, queue.start_offset, LossReport.RETENTION, detail)
        _LOG.warning("%s is new and begins at offset %d", key, queue.start_offset)
        return queue.start_offset

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end: what is stored later is for the next run."""
        seen = self._look(patient=True)
        self._target = {key: queue.end_offset for key, queue in seen.items()}

    def reportLatestOffset(self) -> Offsets | None:
        """The ends of the queues as last seen, for the query's progress: how far behind it is."""
        return nested({key: queue.end_offset for key, queue in self._seen.items()}) or None

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Cut a micro-batch into tasks.

        Raises:
            DataLossError: some of it has gone.
        """
        return self._planned(lambda: self._tasks(start, end))

    def _tasks(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        seen = self._look(patient=False)
        begin, reached = self._position(start, seen), self._position(end, seen)
        seen = self._wait_for({span.key.broker for span in spans(begin, reached)})
        begin, reached = self._position(start, seen), self._position(end, seen)
        for key, first, _ in list(spans(begin, reached)):
            if key not in seen:
                self._stays(key, first, seen, is_needed=True)
                del reached[key]
            else:
                begin[key] = self._in_range(key, first, seen)
        return plan(spans(begin, reached), seen, self._brokers, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task."""
        assert isinstance(partition, Task)
        return read(partition, self._schema)

    def commit(self, end: Offsets) -> None:
        """Spark is done with all before `end`: so the brokers are told."""
        self._follower.report(self._position(end, self._seen), self._seen)

    def stop(self) -> None:
        """The query has ended."""
        self._brokers.close()

    def _planned(self, plan: Callable[[], T]) -> T:
        """What is planned by what was seen: anew where a topic of that has gone meanwhile."""
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
        place = BrokerQueue(key.topic, key.queue, self._seen[key].part_id)
        return self._brokers.endpoint(key.broker).reach(place, start, end, max_bytes)

    def _look(self, *, patient: bool) -> Seen:
        """What the brokers hold, at most `_look_interval_s` old."""
        now_s = time.monotonic()
        if patient or now_s - self._seen_at_s > self._look_interval_s:
            began_s = time.process_time()
            self._seen = self._brokers.look(patient=patient)
            wanted_s = (time.process_time() - began_s) / _LOOK_SHARE
            self._look_interval_s = min(max(_LOOK_INTERVAL_S, wanted_s), _MAX_LOOK_INTERVAL_S)
            self._seen_at_s = time.monotonic()
        return self._seen

    def _wait_for(self, needed: Collection[str]) -> Seen:
        """What the brokers hold, once those that are needed are heard, or have had their time.

        Raises:
            BrokerUnreachable: one was silent for too long.
        """
        brokers = self._brokers
        deadline_s = time.monotonic() + self._options.timeout_ms / 1000
        seen = self._look(patient=False)
        while True:
            heard = set(brokers.ids)
            absent = {b for b in needed if b in brokers.silent or b not in heard}
            if not absent or (not brokers.may_come and not absent & heard):
                return seen
            if time.monotonic() > deadline_s:
                return seen
            time.sleep(_LOOK_INTERVAL_S)
            seen = self._look(patient=False)

    # what has gone

    def _lose(
        self, key: QueueKey, wanted: int, there: int, loss: LossReport, detail: str = ""
    ) -> int:
        return report_loss(self._options.fail_on_data_loss, key, wanted, there, loss, detail)

    def _in_range(self, key: QueueKey, offset: int, seen: Seen) -> int:
        """An offset that its queue has, or where it goes on. Raises DataLossError."""
        queue = seen[key]
        if offset < queue.start_offset:
            return self._lose(key, offset, queue.start_offset, LossReport.RETENTION)
        if offset > queue.end_offset:
            detail = (
                "or the topic was made anew: the checkpoint is of a version that did not note which"
                " topic it was"
                if self._is_nameless
                else ""
            )
            return self._lose(key, offset, queue.end_offset, LossReport.TRUNCATION, detail)
        return offset

    def _stays(self, key: QueueKey, offset: int, seen: Seen, *, is_needed: bool = False) -> bool:
        """Whether the position in a queue that is not to be seen is kept.

        Args:
            is_needed: messages of it are to be read now, and its broker was waited for.

        Raises:
            DataLossError: it has gone.
            ValueError: it is needed, and not of the query's topics any more.
        """
        brokers = self._brokers
        if not self._options.topics.has(key.topic):
            if is_needed:
                raise ValueError(
                    f"the micro-batch that was under way has messages of {key}, but the topics of"
                    f" the query are {self._options.topics} now: let it end with that topic first"
                )
            if key not in self._reported_missing:
                _LOG.warning("%s is not read any more; the checkpoint keeps its place", key)
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
        # Said once: a stream that goes on comes here with every micro-batch.
        if key not in self._reported_missing:
            self._lose(key, offset, offset, loss, detail)
            self._reported_missing.add(key)
        return loss is not LossReport.RECREATION
