"""A split: what one Spark task reads, some offsets of one queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from pyspark.sql.datasource import InputPartition

from martlet.log.index import Rows
from martlet.spark.address import Tls
from martlet.spark.brokers import Brokers
from martlet.spark.endpoint import PLAIN, Place, QueueRange
from martlet.spark.loss import Loss, tell_loss
from martlet.spark.offsets import QueueKey, Span
from martlet.spark.options import ReadOptions


@dataclass
class Split(InputPartition):
    """The offsets of a queue from `start` up to `end`, and how to get at them.

    Attributes:
        part_id: the number that the queue's records name.
        data_path: the broker's data folder, read directly by tasks on the broker's machine.
        view: what a row stands for: see `martlet.spark.options`.
        holes: offsets that are known to be damaged, or lost.
    """

    key: QueueKey
    part_id: int
    start: int
    end: int
    address: str
    data_path: str
    timeout_ms: int
    fail_on_data_loss: bool
    tls: Tls = PLAIN
    view: str = "messages"
    holes: tuple[tuple[int, int], ...] = ()

    @property
    def place(self) -> Place:
        """The queue, for the broker."""
        return Place(self.key.topic, self.key.queue, self.part_id)

    def tell_gap(self, wanted: int, there: int) -> int:
        """Offsets from `wanted` up to `there` are in no batch. Raises DataLossError."""
        loss, detail = Loss.RETENTION, ""
        if any(first <= wanted and there <= end for first, end in self.holes):
            loss = Loss.CORRUPTION
            detail = (
                f"{there - wanted} messages are missing in the log, though nothing around them was"
                " let go of: their record was damaged when the broker was started, or had been lost"
            )
        return tell_loss(self.fail_on_data_loss, self.key, wanted, there, loss, detail)


def plan(
    spans: Iterable[Span],
    seen: Mapping[QueueKey, QueueRange],
    brokers: Brokers,
    options: ReadOptions,
) -> list[Split]:
    """Cut spans into splits of about `options.split_bytes`, at the edges of batches."""
    found = []
    for key, start, end in spans:
        place = Place(key.topic, key.queue, seen[key].part_id)
        rows = brokers.endpoint(key.broker).index(place, start, end)
        found.append((Span(key, start, end), rows))
    split_bytes = options.split_bytes
    if options.min_partitions > len(found):
        total = sum(int(rows["length"].sum()) for _, rows in found)
        split_bytes = max(1, min(split_bytes, total // options.min_partitions))
    splits: list[Split] = []
    for (key, start, end), rows in found:
        edges = [start, *edges_of(rows, start, end, split_bytes), end]
        splits += [
            Split(
                key=key,
                part_id=seen[key].part_id,
                start=first,
                end=last,
                address=brokers.endpoint(key.broker).address,
                data_path=brokers.data_path(key.broker),
                timeout_ms=options.timeout_ms,
                fail_on_data_loss=options.fail_on_data_loss,
                tls=options.tls,
                view=options.view,
                holes=tuple(hole for hole in seen[key].holes if hole[1] > first and hole[0] < last),
            )
            for first, last in pairwise(edges)
        ]
    return splits


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
