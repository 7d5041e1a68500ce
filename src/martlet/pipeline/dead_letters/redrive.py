"""Redrive or drop dead letters by their ids, in Spark tasks.

A task has the dead letters of one queue in the order of their offsets, so each call to the broker
begins where the last one ended.  Dead letters that were finished, redriven or dropped meanwhile are
skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from martlet.pipeline.dead_letters.options import DeadLetterJobOptions
from martlet.reader.brokers.endpoint import Endpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_IDS_PER_CALL = 1000
_QUEUE = ("broker", "dead_letter_topic", "partition")
_CALLS = {"redrive": "dead_letters.redrive", "drop": "dead_letters.purge"}
_SCHEMA = pa.schema([("count", pa.int64()), ("why", pa.string()), ("kept", pa.int64())])


@dataclass(frozen=True)
class RedriveResult:
    """The result of a redrive or drop."""

    count: int
    kept: dict[str, int]
    gone: int = 0
    """Those finished, redriven or dropped meanwhile, also by a Spark task that was lost then."""


def act(
    chosen: DataFrame, options: DeadLetterJobOptions, count: int, endpoints: Mapping[str, Endpoint]
) -> RedriveResult:
    """Redrive or drop `count` dead letters, rows of `martlet.pipeline.dead_letters.reader`."""
    from pyspark.sql.pandas.types import from_arrow_schema

    extra = {"to_topic": options.to_topic} if options.to_topic else {}
    method = _CALLS[options.action]

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = batch.to_pylist()
            for first in range(0, len(rows), _IDS_PER_CALL):
                chunk = rows[first : first + _IDS_PER_CALL]
                yield from _call(chunk, method, extra, endpoints)

    results = (
        chosen.select(*_QUEUE, "offset", "id")
        .repartition(*_QUEUE)
        .sortWithinPartitions(*_QUEUE, "offset")
        .mapInArrow(work, from_arrow_schema(_SCHEMA))
        .collect()
    )
    kept: Counter[str] = Counter()
    for row in results:
        if row["why"]:
            kept[row["why"]] += row["kept"]
    done = sum(row["count"] for row in results)
    return RedriveResult(done, dict(kept), max(0, count - done - sum(kept.values())))


def _call(
    rows: list[dict[str, object]],
    method: str,
    extra: dict[str, str],
    endpoints: Mapping[str, Endpoint],
) -> Iterator[pa.RecordBatch]:
    """Call the broker for sorted rows, one queue at a time."""
    while rows:
        queue = [rows[0][name] for name in _QUEUE]
        mine = [row for row in rows if [row[name] for name in _QUEUE] == queue]
        rows = rows[len(mine) :]
        endpoint = endpoints[str(queue[0])]
        count, kept = 0, Counter[str]()
        try:
            at: dict[str, object] | None = {"queue": queue[2], "offset": mine[0]["offset"]}
            last = (queue[2], mine[-1]["offset"])
            while at is not None and (at["queue"], at["offset"]) <= last:
                answer = endpoint.call(
                    method,
                    {
                        "dead_letter_topic": queue[1],
                        "ids": [row["id"] for row in mine],
                        **extra,
                        **at,
                    },
                )
                count += answer["count"]
                kept.update(answer["kept"])
                at = answer["next"]
        finally:
            endpoint.close()
        lines: list[dict[str, Any]] = [{"count": count, "why": None, "kept": 0}]
        lines += [{"count": 0, "why": why, "kept": number} for why, number in kept.items()]
        yield pa.RecordBatch.from_pylist(lines, _SCHEMA)
