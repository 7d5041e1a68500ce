"""Queries that are run: reported, and started again where Spark was too impatient."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import StreamingQueryException

from martlet.pipeline.job import MAX_TRIES, TRYING_AGAIN, Run, retried
from martlet.pipeline.stream_monitor import follow

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LATE = "terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("martlet.pipeline.stream_monitor._START_POLL_S", 0)


def progress(number: int, rows: int = 10) -> dict[str, Any]:
    position = {"b": {"t": {"0": rows * (number + 1)}}}
    source = {"endOffset": json.dumps(position), "latestOffset": json.dumps(position)}
    return {"batchId": number, "numInputRows": rows, "durationMs": {}, "sources": [source]}


class Query:
    """One that commits some micro-batches, and then ends or fails."""

    id = "q"

    def __init__(self, batches: Sequence[int] = (), *, error: str = "") -> None:
        self._error = error
        self._said = ["Initializing sources"] * 2
        self.recentProgress = [progress(number) for number in batches]
        self.stopped = False

    @property
    def isActive(self) -> bool:
        return True

    @property
    def status(self) -> dict[str, Any]:
        return {"message": self._said.pop() if self._said else "Waiting for data"}

    def awaitTermination(self, _limit_s: float) -> bool:
        assert not self._said, "its source is not there yet"
        if self._error:
            raise StreamingQueryException(message=self._error)
        return True

    def stop(self) -> None:
        self.stopped = True


class Starts:
    """Starts one query after the other."""

    def __init__(self, *queries: Query | Exception) -> None:
        self._waiting = list(queries)

    def __call__(self) -> StreamingQuery:
        query = self._waiting.pop(0)
        if isinstance(query, Exception):
            raise query
        return cast("StreamingQuery", query)

    def follow(self) -> int:
        return follow([self], Run(cast("Any", None)), "read")


def test_a_query_whose_python_came_too_late_is_started_again(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    late_load = RuntimeError(f"[X] {LATE}")
    assert Starts(late_load, Query(error=LATE), Query([0, 1])).follow() == 20
    assert capsys.readouterr().out.startswith("batch 0: 10 messages read")
    assert [record.getMessage() for record in caplog.records] == [TRYING_AGAIN] * 2
    # Also in the middle, as Spark ends a Python that was idle for a minute; each batch counts once.
    late = [Query([number], error=LATE) for number in range(2 * MAX_TRIES)]
    assert Starts(*late, Query([2 * MAX_TRIES])).follow() == 10 * (2 * MAX_TRIES + 1)


def test_but_not_for_ever_and_for_no_other_reason() -> None:
    late = Starts(*(Query([0], error=LATE) for _ in range(MAX_TRIES)), Query())
    with pytest.raises(StreamingQueryException, match="connect back"):
        late.follow()
    with pytest.raises(StreamingQueryException, match="no such column"):
        Starts(Query(error="no such column"), Query()).follow()


def test_others_are_stopped_where_one_fails() -> None:
    other = Query()
    failing = Starts(Query(error="no such column"))
    with pytest.raises(StreamingQueryException):
        follow([failing, Starts(other)], Run(cast("Any", None)), "read")
    assert other.stopped


def test_work_whose_python_came_too_late_is_done_again() -> None:
    run, failures = Run(cast("Any", None)), [RuntimeError(LATE)] * (MAX_TRIES - 1)

    def work() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert retried(work, run) == "done"
    failures += [RuntimeError(LATE)] * MAX_TRIES
    with pytest.raises(RuntimeError, match="connect back"):
        retried(work, run)
    failures[:] = [RuntimeError(LATE), RuntimeError("another")]
    with pytest.raises(RuntimeError, match="another"):
        retried(work, run)
