"""A split: some offsets of one queue; and a task, which reads one of them, or several small ones.

A task costs Spark some 10 ms however little it reads, and a thousand topics of which each has a few
new messages would be a thousand of them.  So small splits of one broker share a task; those that
are worth one have their own, for they are what is to be read side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from pyspark.sql.datasource import InputPartition

from martlet.log.index import Rows
from martlet.plural import counted
from martlet.spark.brokers.addresses import SparkTls
from martlet.spark.brokers.brokers import QueryBrokers
from martlet.spark.brokers.endpoint import PLAIN, BrokerQueue, QueueRange
from martlet.spark.read.data_loss import LossReport, report_loss
from martlet.spark.read.offsets import QueueKey, Span
from martlet.spark.read.options import ReadOptions

_SMALL = 32
"""Splits below this part of `splitBytes` share a task, as many of them as fill it four times."""
_MAX_SMALL = 128
"""And no more than so many: each costs about 1 ms."""
_FEW_ROWS = 64
"""So many rows of the index a task is told, and needs not ask for."""


@dataclass
class Split:
    """The offsets of a queue from `start` up to `end`, and how to get at them.

    Attributes:
        part_id: the number that the queue's records name.
        data_path: the broker's data folder, read directly by tasks on the broker's machine.
        view: what a row stands for: see `martlet.spark.read.options`.
        holes: offsets that are known to be damaged, or lost.
        index: rows of the index, of 40 bytes, that were of it when it was planned; empty where they
            are many, or its span was cut.
    """

    key: QueueKey
    part_id: int
    start: int
    end: int
    address: str
    data_path: str
    timeout_ms: int
    fail_on_data_loss: bool
    tls: SparkTls = PLAIN
    view: str = "messages"
    holes: tuple[tuple[int, int], ...] = ()
    index: bytes = b""

    @property
    def place(self) -> BrokerQueue:
        """The queue, for the broker."""
        return BrokerQueue(self.key.topic, self.key.queue, self.part_id)

    def describe_gap(self, wanted: int, there: int) -> int:
        """Offsets from `wanted` up to `there` are in no batch. Raises DataLossError."""
        loss, detail = LossReport.RETENTION, ""
        if any(first <= wanted and there <= end for first, end in self.holes):
            loss = LossReport.CORRUPTION
            missing = counted(there - wanted, "message")
            detail = (
                f"the log misses {missing}, though nothing around them was let go of: their record"
                " was damaged when the broker was started, or had been lost"
            )
        return report_loss(self.fail_on_data_loss, self.key, wanted, there, loss, detail)


@dataclass
class Task(InputPartition):
    """What one Spark task reads, one split behind the other; all of one broker."""

    splits: tuple[Split, ...]


def plan(
    spans: Iterable[Span],
    seen: Mapping[QueueKey, QueueRange],
    brokers: QueryBrokers,
    options: ReadOptions,
) -> list[Task]:
    """Cut spans into splits of about `options.split_bytes`, at the edges of batches, for tasks."""
    found = list(_indexed(spans, seen, brokers))
    total = sum(int(rows["length"].sum()) for _, rows in found)
    split_bytes = options.split_bytes
    if options.min_partitions > len(found):
        split_bytes = max(1, min(split_bytes, total // options.min_partitions))
    splits: list[tuple[Split, int]] = []
    for (key, start, end), rows in found:
        edges = [start, *edges_of(rows, start, end, split_bytes), end]
        size_bytes = int(rows["length"].sum()) // (len(edges) - 1)
        index = rows.tobytes() if len(edges) == 2 and len(rows) <= _FEW_ROWS else b""
        splits += [
            (_split(Span(key, first, last), seen[key], index, brokers, options), size_bytes)
            for first, last in pairwise(edges)
        ]
    small_bytes = split_bytes // _SMALL
    max_count = max(1, min(_MAX_SMALL, len(splits) // options.min_partitions))
    return list(_tasks(splits, small_bytes, max_count))


def _indexed(
    spans: Iterable[Span], seen: Mapping[QueueKey, QueueRange], brokers: QueryBrokers
) -> Iterator[tuple[Span, Rows]]:
    """The spans with the batches that they are of, a broker's one behind the other."""
    for broker, group in groupby(sorted(spans), key=lambda span: span.key.broker):
        some = list(group)
        ranges = [
            (BrokerQueue(key.topic, key.queue, seen[key].part_id), start, end)
            for key, start, end in some
        ]
        yield from zip(some, brokers.endpoint(broker).indexes(ranges), strict=True)


def _split(
    span: Span, queue: QueueRange, index: bytes, brokers: QueryBrokers, options: ReadOptions
) -> Split:
    key, start, end = span
    return Split(
        key=key,
        part_id=queue.part_id,
        start=start,
        end=end,
        address=brokers.endpoint(key.broker).address,
        data_path=brokers.data_path(key.broker),
        timeout_ms=options.timeout_ms,
        fail_on_data_loss=options.fail_on_data_loss,
        tls=options.tls,
        view=options.view,
        holes=tuple(hole for hole in queue.holes if hole[1] > start and hole[0] < end),
        index=index,
    )


def _tasks(splits: Iterable[tuple[Split, int]], small_bytes: int, max_count: int) -> Iterator[Task]:
    """Splits, with their sizes, dealt out to tasks: up to `max_count` small ones to each."""
    gathered: list[Split] = []
    gathered_bytes = 0
    for split, size_bytes in splits:
        if size_bytes > small_bytes:
            yield Task((split,))
            continue
        is_full = len(gathered) >= max_count or gathered_bytes + size_bytes > 4 * small_bytes
        if gathered and (is_full or gathered[0].key.broker != split.key.broker):
            yield Task(tuple(gathered))
            gathered, gathered_bytes = [], 0
        gathered.append(split)
        gathered_bytes += size_bytes
    if gathered:
        yield Task(tuple(gathered))


def edges_of(rows: Rows, start: int, end: int, split_bytes: int) -> list[int]:
    """First offsets of the batches at which a span is best cut, into equal parts."""
    if not len(rows):
        return []
    lengths = rows["length"].astype(np.int64)
    before = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    parts = -(-total // split_bytes)
    wanted = np.arange(1, parts) * (total / parts)
    firsts = rows["first_offset"][np.searchsorted(before, wanted).clip(max=len(rows) - 1)]
    return [int(first) for first in np.unique(firsts) if start < first < end]
