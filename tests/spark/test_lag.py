"""The lag in a query's progress, under the names of Spark's source for Kafka."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from martlet.reader.offsets import QueueKey
from martlet.spark.lag import LagListener, LagMetrics, lag_metrics, lags_of


def source(end: object, latest: object) -> dict[str, str]:
    return {"endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}


def position(**offsets: int) -> dict[str, Any]:
    return {"b": {"t": {name[1:]: at for name, at in offsets.items()} | {"topic_id": 3}}}


def test_each_queue_has_a_lag_and_they_are_summed_up() -> None:
    read = source(position(q0=10, q1=5, q2=7), position(q0=10, q1=8, q2=16))
    assert lags_of(read) == {QueueKey("b", "t", n, 3): lag for n, lag in enumerate((0, 3, 9))}
    assert lag_metrics(read) == {
        "minOffsetsBehindLatest": 0,
        "maxOffsetsBehindLatest": 9,
        "avgOffsetsBehindLatest": 4,
        "totalOffsetsBehindLatest": 12,
    }


def test_a_lag_is_never_negative_and_a_queue_not_begun_has_none() -> None:
    read = source(position(q0=10), position(q0=9, q1=8))
    assert set(lags_of(read).values()) == {0}


def test_sources_of_other_formats_have_no_lag() -> None:
    for end, latest in ((3, 5), ({"t": {"0": 3}}, {"t": {"0": 5}}), (None, None), ([], [])):
        assert lag_metrics(source(end, latest)) == {}
    assert lag_metrics({"endOffset": "None", "latestOffset": "x"}) == {}


def test_a_listener_reports_each_source_by_the_query_s_name() -> None:
    got: list[tuple[str, LagMetrics]] = []
    listener = LagListener(lambda name, metrics: got.append((name, metrics)))
    sources = [source(3, 5), source(position(q0=1), position(q0=4))]
    for name in ("orders", None):
        progress = {"name": name, "id": "0f", "sources": sources}
        listener.onQueryProgress(cast("Any", SimpleNamespace(progress=progress)))
    assert [name for name, _ in got] == ["orders", "0f"]
    assert [metrics["totalOffsetsBehindLatest"] for _, metrics in got] == [3, 3]
