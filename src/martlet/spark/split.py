"""A split: what one Spark task reads, some offsets of one queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from pyspark.sql.datasource import InputPartition

from martlet.log.index import Rows
from martlet.spark.brokers import Brokers
from martlet.spark.endpoint import QueueRange
from martlet.spark.offsets import QueueKey, Span
from martlet.spark.options import ReadOptions


@dataclass
class Split(InputPartition):
    """The offsets of a queue from `start` up to `end`, and how to get at them.

    Attributes:
        data_path: the broker's data folder, read directly by tasks on the broker's machine.
    """

    key: QueueKey
    topic_id: int
    start: int
    end: int
    address: str
    data_path: str
    timeout_ms: int
    fail_on_data_loss: bool


def plan(
    spans: Iterable[Span],
    seen: Mapping[QueueKey, QueueRange],
    brokers: Brokers,
    options: ReadOptions,
) -> list[Split]:
    """Cut spans into splits of about `options.split_bytes`, at the edges of batches."""
    splits: list[Split] = []
    for key, start, end in spans:
        endpoint = brokers.endpoint(key.broker)
        rows = endpoint.index(key.topic, key.queue, start, end)
        edges = [start, *edges_of(rows, start, end, options.split_bytes), end]
        splits += [
            Split(
                key=key,
                topic_id=seen[key].topic_id,
                start=first,
                end=last,
                address=endpoint.address,
                data_path=brokers.data_path(key.broker),
                timeout_ms=options.timeout_ms,
                fail_on_data_loss=options.fail_on_data_loss,
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
