"""Following streaming queries: each of their micro-batches is told and counted, until they end."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from martlet.plural import counted
from martlet.spark.read.offsets import flatten

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from martlet.pipeline.job import Run

_LOOK_S = 1
"""How soon what a query has done is told, and how soon it ends once it is to."""
_START_LOOK_S = 0.1
_STARTS = 5
"""How often at most."""
_UNSETTLED = ("Initializing", "Terminated")
"""What Spark calls a query that has no source yet, or has failed and is about to say so."""
_NO_PYTHON = "Python worker failed to connect back"
_log = logging.getLogger(__name__)


def begun(start: Callable[[], StreamingQuery], run: Run) -> StreamingQuery:
    """Start a query, and see that its source is there before anything else is started.

    Spark gives the Python of a stream's source ten seconds to come up, which is short on a machine
    that is busy, with the other queries of the same job as a rule.  It has read nothing then, so it
    is started again.

    Returns:
        The query, which may have failed otherwise, or too often.
    """
    query = start()
    for _ in range(_STARTS - 1):
        while query.isActive and query.status["message"].startswith(_UNSETTLED):
            if run.stopping.wait(_START_LOOK_S):
                break
        if query.isActive or _NO_PYTHON not in str(query.exception()):
            break
        _log.warning("Spark's Python took too long to start; it is started again")
        query = start()
    return query


def follow(
    queries: Sequence[StreamingQuery],
    run: Run,
    done: str,
    rows_of: Callable[[int], int] | None = None,
    names: Mapping[str, str] | None = None,
) -> int:
    """Tell of each micro-batch until all queries have ended, or the run is to end.

    Args:
        queries: which, all of them running.
        run: hears of it.
        done: what has been done to a batch's messages, as ``archived``.
        rows_of: how many messages a batch has, where what Spark counts is something else.
        names: what a query, by its id, is called where there are several.

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
                    name = (names or {}).get(query.id, "") if len(queries) > 1 else ""
                    _report(progress, count, run, done, name)
        if ended:
            going.pop(0)
        else:
            going.append(going.pop(0))
    return rows


def _report(progress: Any, rows: int, run: Run, done: str, name: str) -> None:
    took_s = progress["durationMs"].get("triggerExecution", 0) / 1000
    rate = rows / took_s if took_s else 0
    lag = sum(_lags(progress))
    run.meter.batch(rows, took_s, lag=lag)
    behind = f", {lag:,} to go" if lag else ""
    batch = f"{name}, batch" if name else "batch"
    what = f"{counted(rows, 'message', form=',')} {done}, {rate:,.0f} a second{behind}"
    run.say(f"{batch} {progress['batchId']}: {what}")


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
