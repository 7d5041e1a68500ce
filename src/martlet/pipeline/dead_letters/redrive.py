"""Redriving and dropping, by the dead letters' ids, in Spark's tasks.

A task's dead letters are of one keeper, in the order of their offsets, so that each call to the
broker begins where the last one's ended.  What went meanwhile, because a consumer took it or
another has brought it back, is passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from martlet.spark.brokers.endpoint import Endpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_AT_ONCE = 1000
_PLACE = ("broker", "dead_letter_topic", "partition")
_CALLS = {"redrive": "dead_letters.redrive", "drop": "dead_letters.purge"}
_SCHEMA = "count BIGINT, why STRING, kept BIGINT"
_ARROW = pa.schema([("count", pa.int64()), ("why", pa.string()), ("kept", pa.int64())])


@dataclass(frozen=True)
class Done:
    """What has come of it.

    Attributes:
        count: how many were brought back, or dropped.
        kept: how many stay, by the reason.
        gone: how many were not there any more, as a consumer had finished them or another had
            brought them back or dropped them; or a task of Spark's, which was lost then.
    """

    count: int
    kept: dict[str, int]
    gone: int = 0


def act(
    chosen: DataFrame,
    action: str,
    *,
    count: int,
    to_topic: str,
    endpoints: Mapping[str, Endpoint],
) -> Done:
    """Redrive or drop dead letters.

    Args:
        chosen: which, as `martlet.pipeline.dead_letters.reader` has them.
        action: ``redrive`` or ``drop``.
        count: how many they are.
        to_topic: redriven to there; empty for where they came from.
        endpoints: the brokers by their addresses.
    """
    extra = {"to_topic": to_topic} if to_topic else {}

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = batch.to_pylist()
            for first in range(0, len(rows), _AT_ONCE):
                yield from _call(rows[first : first + _AT_ONCE], _CALLS[action], extra, endpoints)

    told = (
        chosen.select(*_PLACE, "offset", "id")
        .repartition(*_PLACE)
        .sortWithinPartitions(*_PLACE, "offset")
        .mapInArrow(work, _SCHEMA)
        .collect()
    )
    kept: Counter[str] = Counter()
    for row in told:
        if row["why"]:
            kept[row["why"]] += row["kept"]
    done = sum(row["count"] for row in told)
    return Done(done, dict(kept), max(0, count - done - sum(kept.values())))


def _call(
    rows: list[dict[str, object]],
    method: str,
    extra: dict[str, str],
    endpoints: Mapping[str, Endpoint],
) -> Iterator[pa.RecordBatch]:
    """Act on rows that stand in order: those of one queue of one keeper at a time."""
    while rows:
        place = [rows[0][name] for name in _PLACE]
        mine = [row for row in rows if [row[name] for name in _PLACE] == place]
        rows = rows[len(mine) :]
        endpoint = endpoints[str(place[0])]
        count, kept = 0, Counter[str]()
        try:
            at: dict[str, object] | None = {"queue": place[2], "offset": mine[0]["offset"]}
            last = (place[2], mine[-1]["offset"])
            while at is not None and (at["queue"], at["offset"]) <= last:
                told = endpoint.call(
                    method,
                    {
                        "dead_letter_topic": place[1],
                        "ids": [row["id"] for row in mine],
                        **extra,
                        **at,
                    },
                )
                count += told["count"]
                kept.update(told["kept"])
                at = told["next"]
        finally:
            endpoint.close()
        lines: list[dict[str, Any]] = [{"count": count, "why": None, "kept": 0}]
        lines += [{"count": 0, "why": why, "kept": number} for why, number in kept.items()]
        yield pa.RecordBatch.from_pylist(lines, _ARROW)
