"""Run streaming queries: start them, print and count each micro-batch until they end, and start one
again whose Python came too late for Spark.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from martlet.pipeline.job import MAX_TRIES, TRYING_AGAIN, is_late_python, retried
from martlet.spark.lag import lags_of
from martlet.text import counted

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from martlet.pipeline.job import Run

_POLL_S = 1
"""The longest delay until a micro-batch is reported, and until a query ends after a signal."""
_START_POLL_S = 0.1
_INITIALIZING = "Initializing"
"""Begins Spark's status of a query that has no source yet."""
_log = logging.getLogger(__name__)
Start = Callable[[], "StreamingQuery"]


def follow(
    starts: Sequence[Start],
    run: Run,
    done: str,
    rows_of: Callable[[int], int] | None = None,
    names: Mapping[str, str] | None = None,
) -> int:
    """Run queries and report each micro-batch until all have ended, or the run must end.

    Args:
        starts: each starts a query; called again, it continues from the query's checkpoint.
        done: the participle for a batch's messages, like ``archived``.
        rows_of: returns the messages of a batch, if its rows in Spark are not messages.
        names: the queries' names by id, printed if there are several.

    Returns:
        The number of messages. Raises StreamingQueryException: a query has failed.
    """
    from pyspark.errors import StreamingQueryException

    rows = 0
    reported: defaultdict[str, int] = defaultdict(lambda: -1)
    failures: Counter[Start] = Counter()
    running: list[tuple[Start, StreamingQuery]] = []
    try:
        for start in starts:
            query = _started(start, run)
            running.append((start, query))
        while running:
            if run.stopping.is_set():
                for _, query in running:
                    query.stop()
            # Wait for each in turn, to notice a failed one soon.
            start, waited = running[0]
            error = None
            try:
                has_ended = waited.awaitTermination(_POLL_S)
            except StreamingQueryException as failure:
                has_ended, error = True, failure
            for of, query in running:
                for progress in query.recentProgress:
                    number = progress["batchId"]
                    if number > reported[query.id] and progress["numInputRows"]:
                        failures[of] = 0
                        reported[query.id] = number
                        count = progress["numInputRows"] if rows_of is None else rows_of(number)
                        rows += count
                        name = (names or {}).get(query.id, "") if len(starts) > 1 else ""
                        _report(progress, count, run, done, name)
            running.pop(0)
            if error is not None:
                failures[start] += 1
                is_last = failures[start] == MAX_TRIES or run.stopping.is_set()
                if is_last or not is_late_python(error):
                    raise error
                _log.warning(TRYING_AGAIN)
                waited = _started(start, run)
            if error is not None or not has_ended:
                running.append((start, waited))
    finally:
        for _, query in running:
            query.stop()
    return rows


def _started(start: Start, run: Run) -> StreamingQuery:
    """Start a query, and wait until its source is there: of several Pythons that start at the same
    time more come too late.
    """
    query = retried(start, run)
    while query.isActive and query.status["message"].startswith(_INITIALIZING):
        if run.stopping.wait(_START_POLL_S):
            break
    return query


def _report(progress: Any, rows: int, run: Run, done: str, name: str) -> None:
    took_s = progress["durationMs"].get("triggerExecution", 0) / 1000
    rate = rows / took_s if took_s else 0
    lag = sum(sum(lags_of(source).values()) for source in progress["sources"])
    run.meter.batch(rows, took_s, lag=lag)
    behind = f", {lag:,} to go" if lag else ""
    batch = f"{name}, batch" if name else "batch"
    work = f"{counted(rows, 'message', form=',')} {done}, {rate:,.0f} a second{behind}"
    run.say(f"{batch} {progress['batchId']}: {work}")
