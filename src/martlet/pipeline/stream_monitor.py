"""Start streaming queries and monitor them: print and count each micro-batch until they end."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from martlet.reader.offsets import flatten
from martlet.text import counted

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from martlet.pipeline.job import Run

_POLL_S = 1
"""The longest delay until a micro-batch is reported, and until a query ends after a signal."""
_START_POLL_S = 0.1
_MAX_STARTS = 5
_UNSETTLED = ("Initializing", "Terminated")
"""Spark's status of a query that has no source yet, or has failed without an exception yet."""
_NO_PYTHON = "Python worker failed to connect back"
_log = logging.getLogger(__name__)


def start_query(start: Callable[[], StreamingQuery], run: Run) -> StreamingQuery:
    """Start a query and wait until its source is ready, restarting it if that takes too long.

    Spark gives the Python worker of a stream's source ten seconds to start, which is too short on
    a busy machine.  The query has read nothing by then, so a restart is safe.  The query returned
    may have failed for another reason, or too often.
    """
    query = start()
    for _ in range(_MAX_STARTS - 1):
        while query.isActive and query.status["message"].startswith(_UNSETTLED):
            if run.stopping.wait(_START_POLL_S):
                break
        if query.isActive or _NO_PYTHON not in str(query.exception()):
            break
        _log.warning("Spark's Python worker took too long to start; starting the query again")
        query = start()
    return query


def follow(
    queries: Sequence[StreamingQuery],
    run: Run,
    done: str,
    rows_of: Callable[[int], int] | None = None,
    names: Mapping[str, str] | None = None,
) -> int:
    """Report each micro-batch until all queries have ended, or the run must end.

    Args:
        done: the participle for a batch's messages, like ``archived``.
        rows_of: returns the messages of a batch, if its rows in Spark are not messages.
        names: the queries' names by id, printed if there are several.

    Returns:
        The number of messages. Raises StreamingQueryException: a query has failed.
    """
    rows = 0
    reported = dict.fromkeys((query.id for query in queries), -1)
    running = list(queries)
    while running:
        if run.stopping.is_set():
            for query in running:
                query.stop()
        # Wait for each in turn, to notice a failed one soon.
        ended = running[0].awaitTermination(_POLL_S)
        for query in running:
            for progress in query.recentProgress:
                number = progress["batchId"]
                if number > reported[query.id] and progress["numInputRows"]:
                    reported[query.id] = number
                    count = progress["numInputRows"] if rows_of is None else rows_of(number)
                    rows += count
                    name = (names or {}).get(query.id, "") if len(queries) > 1 else ""
                    _report(progress, count, run, done, name)
        if ended:
            running.pop(0)
        else:
            running.append(running.pop(0))
    return rows


def _report(progress: Any, rows: int, run: Run, done: str, name: str) -> None:
    took_s = progress["durationMs"].get("triggerExecution", 0) / 1000
    rate = rows / took_s if took_s else 0
    lag = sum(_lags(progress))
    run.meter.batch(rows, took_s, lag=lag)
    behind = f", {lag:,} to go" if lag else ""
    batch = f"{name}, batch" if name else "batch"
    work = f"{counted(rows, 'message', form=',')} {done}, {rate:,.0f} a second{behind}"
    run.say(f"{batch} {progress['batchId']}: {work}")


def _lags(progress: Any) -> Iterator[int]:
    """Yield the lag of each queue after the batch, for sources that report it."""
    for source in progress["sources"]:
        ends, latest = (
            json.loads(source[name] or "null") for name in ("endOffset", "latestOffset")
        )
        if ends and latest:
            reached = flatten(ends)
            for key, end in flatten(latest).items():
                yield max(0, end - reached.get(key, end))
