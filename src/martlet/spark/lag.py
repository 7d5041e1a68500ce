"""The lag of a stream: how many messages its source has yet to read.

Spark shows no metrics of a source in Python (``sources[].metrics`` of a query's progress, where the
source for Kafka has them).  But the progress has the queues' ends and the offsets reached, and the
same numbers follow from these, under the names of the source for Kafka.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from martlet.reader.offsets import QueueKey, flatten

LagMetrics = dict[str, float]
Report = Callable[[str, LagMetrics], object]


def lags_of(source: Mapping[str, Any]) -> dict[QueueKey, int]:
    """Return the messages of each queue that a source has yet to read after a micro-batch.

    Args:
        source: an entry of ``sources`` of a query's progress.

    Returns:
        An empty dictionary for a source of another format.
    """
    try:
        ends, latest = (flatten(json.loads(source[name])) for name in ("endOffset", "latestOffset"))
    except (AttributeError, TypeError, ValueError):
        return {}
    return {key: max(0, end - ends.get(key, end)) for key, end in latest.items()}


def lag_metrics(source: Mapping[str, Any]) -> LagMetrics:
    """Return the least, the greatest, the mean and the sum of the queues' `lags_of` a source; empty
    where those are.
    """
    lags = lags_of(source).values()
    if not lags:
        return {}
    return {
        "minOffsetsBehindLatest": min(lags),
        "maxOffsetsBehindLatest": max(lags),
        "avgOffsetsBehindLatest": sum(lags) / len(lags),
        "totalOffsetsBehindLatest": sum(lags),
    }


class LagListener(StreamingQueryListener):
    """Reports the lag of all queries of a session: ``spark.streams.addListener(LagListener(f))``.

    Args:
        report: is called after each micro-batch, for each source, with the query's name, or its id
            if it has none, and the `lag_metrics`.
    """

    def __init__(self, report: Report) -> None:
        self._report = report

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report the lag after a micro-batch."""
        progress = event.progress
        for metrics in filter(None, map(lag_metrics, progress["sources"])):
            self._report(progress["name"] or str(progress["id"]), metrics)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: it has read nothing yet."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: it reads no more."""
