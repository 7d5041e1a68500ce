"""Following streaming queries: each of their micro-batches is told and counted, until they end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from martlet.spark.offsets import flatten

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from martlet.pipeline.job import Run

_LOOK_S = 1
"""How soon what a query has done is told, and how soon it ends once it is to."""


def follow(
    queries: Sequence[StreamingQuery],
    run: Run,
    done: str,
    rows_of: Callable[[int], int] | None = None,
) -> int:
    """Tell of each micro-batch until all queries have ended, or the run is to end.

    Args:
        queries: which, all of them running.
        run: hears of it.
        done: what has been done to a batch's messages, as ``archived``.
        rows_of: how many messages a batch has, where what Spark counts is something else.

    Returns:
        How many messages it was.

    Raises:
        StreamingQueryException: a query has failed.
    """
    rows = 0
    told = dict.fromkeys((query.id for query in queries), -1)
    going = list(queries)
    while going:
        if run.stopping.is_set():
            for query in going:
                query.stop()
        # Each is waited for in turn, so that one which has failed is heard of soon.
        ended = going[0].awaitTermination(_LOOK_S)
        for query in going:
            for progress in query.recentProgress:
                number = progress["batchId"]
                if number > told[query.id] and progress["numInputRows"]:
                    told[query.id] = number
                    count = progress["numInputRows"] if rows_of is None else rows_of(number)
                    rows += count
                    _tell(progress, count, run, done)
        if ended:
            going.pop(0)
        else:
            going.append(going.pop(0))
    return rows


def _tell(progress: Any, rows: int, run: Run, done: str) -> None:
    took_s = progress["durationMs"].get("triggerExecution", 0) / 1000
    rate = rows / took_s if took_s else 0
    lag = sum(_lags(progress))
    run.meter.batch(rows, took_s, lag=lag)
    behind = f", {lag:,} to go" if lag else ""
    run.say(f"batch {progress['batchId']}: {rows:,} messages {done}, {rate:,.0f} a second{behind}")


def _lags(progress: Any) -> Iterator[int]:
    """How much each queue had stored beyond the batch, as far as the source has told."""
    for source in progress["sources"]:
        ends, latest = (
            json.loads(source[name] or "null") for name in ("endOffset", "latestOffset")
        )
        if ends and latest:
            reached = flatten(ends)
            for key, end in flatten(latest).items():
                yield max(0, end - reached.get(key, end))
