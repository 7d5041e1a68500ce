"""Cut a query's offsets into splits, each a range of one queue, and group splits into tasks.

A task costs Spark about 10 ms however little it reads, so a thousand topics with a few new messages
each must not become a thousand tasks.  Small splits of one broker share a task; a large split has
its own, so that large ones are read in parallel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np

from martlet.log.index import Rows
from martlet.reader.brokers.addresses import NO_TOKEN, OperatorToken, SparkTls
from martlet.reader.brokers.brokers import QueryBrokers
from martlet.reader.brokers.endpoint import PLAIN, BrokerQueue, QueueRange, ReplicaSource
from martlet.reader.data_loss import LossReport, report_loss
from martlet.reader.offsets import QueueKey, Span
from martlet.reader.options import ReadOptions
from martlet.text import counted

if TYPE_CHECKING:
    from martlet.reader.filters import RowFilter

_SMALL = 32
"""Splits below this fraction of `splitBytes` share tasks of up to four times that size."""
_MAX_SMALL = 128
"""Splits a task: each costs about 1 ms."""
_MANY_OFFSETS = 100_000
"""Offsets of a queue from which on a time is looked up before the index is read."""
_FEW_ROWS = 64
"""Rows of the index to ship with a task, which saves it a request for them."""


@dataclass
class Split:
    """The offsets of a queue from `start` up to `end`, and where to read them."""

    key: QueueKey
    queue_topic_id: int
    start: int
    end: int
    address: str
    data_path: str
    """The broker's data folder, read directly by tasks on the broker's machine."""
    timeout_ms: int
    fail_on_data_loss: bool
    tls: SparkTls = PLAIN
    token: OperatorToken = NO_TOKEN
    view: str = "messages"
    holes: tuple[tuple[int, int], ...] = ()
    index: bytes = b""
    """The split's rows of the index, 40 bytes each, as planned; empty if they are more than
    `_FEW_ROWS`, or the span was cut."""
    others: tuple[ReplicaSource, ...] = ()
    """Other replicas of the broker, which have the same log."""

    @property
    def source(self) -> BrokerQueue:
        """The queue, as requests to the broker name it."""
        return BrokerQueue(self.key.topic, self.key.queue, self.queue_topic_id)

    def describe_gap(self, expected: int, there: int) -> int:
        """Report that offsets from `expected` up to `there` are in no batch; return the offset to
        go on at. Raises DataLossError.
        """
        loss, detail = LossReport.RETENTION, ""
        if any(first <= expected and there <= end for first, end in self.holes):
            loss = LossReport.CORRUPTION
            missing = counted(there - expected, "message")
            detail = (
                f"the log misses {missing} between others that it has: their record was damaged"
                " when the broker was started, or had been lost"
            )
        return self.lose(expected, there, loss, detail)

    def lose(self, expected: int, there: int, loss: LossReport, detail: str = "") -> int:
        """Report a loss as `report_loss` does."""
        return report_loss(self.fail_on_data_loss, self.key, expected, there, loss, detail)


@dataclass
class Task:
    """The splits that one task reads, in this order; all of one broker."""

    splits: tuple[Split, ...]


def plan(
    spans: Iterable[Span],
    seen: Mapping[QueueKey, QueueRange],
    brokers: QueryBrokers,
    options: ReadOptions,
    row_filter: RowFilter | None = None,
) -> list[Task]:
    """Cut spans at batch boundaries into splits of about `options.split_bytes`, for tasks; leave
    out batches of which no message can match a filter.
    """
    if row_filter is not None:

        def first_since(span: Span, time_us: int) -> int:
            if span.end - span.start < _MANY_OFFSETS:
                return span.start  # The index is read at once.
            key = span.key
            return brokers.endpoint(key.broker).offset_at(key.topic, key.queue, time_us * 1000)

        spans = row_filter.clipped(spans, first_since)
    indexed = list(_indexed(spans, seen, brokers))
    if row_filter is not None:
        indexed = list(row_filter.pieces(indexed))
    total = sum(int(rows["length"].sum()) for _, rows in indexed)
    split_bytes = options.split_bytes
    if options.min_partitions > len(indexed):
        split_bytes = max(1, min(split_bytes, total // options.min_partitions))
    splits: list[tuple[Split, int]] = []
    for (key, start, end), rows in indexed:
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
    """Yield the spans with the index rows of their batches, broker by broker."""
    for broker, group in groupby(sorted(spans), key=lambda span: span.key.broker):
        some = list(group)
        ranges = [(seen[key].source, start, end) for key, start, end in some]
        yield from zip(some, brokers.endpoint(broker).indexes(ranges), strict=True)


def _split(
    span: Span, queue: QueueRange, index: bytes, brokers: QueryBrokers, options: ReadOptions
) -> Split:
    key, start, end = span
    first, *others = brokers.replicas(key.broker)
    return Split(
        key=key,
        queue_topic_id=queue.queue_topic_id,
        start=start,
        end=end,
        address=first.address,
        data_path=first.data_path,
        timeout_ms=options.timeout_ms,
        fail_on_data_loss=options.fail_on_data_loss,
        tls=options.tls,
        token=options.token,
        view=options.view,
        holes=tuple(hole for hole in queue.holes if hole[1] > start and hole[0] < end),
        index=index,
        others=tuple(others),
    )


def _tasks(splits: Iterable[tuple[Split, int]], small_bytes: int, max_count: int) -> Iterator[Task]:
    """Group splits, which come with their sizes, into tasks of up to `max_count` small ones."""
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
    """Find the batches at which to cut a span into equal parts: their first offsets."""
    if not len(rows):
        return []
    lengths = rows["length"].astype(np.int64)
    before = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    parts = -(-total // split_bytes)
    cuts = np.arange(1, parts) * (total / parts)
    firsts = rows["first_offset"][np.searchsorted(before, cuts).clip(max=len(rows) - 1)]
    return [int(first) for first in np.unique(firsts) if start < first < end]
