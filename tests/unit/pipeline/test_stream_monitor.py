"""A query that is started: seen to be there, and started again where Spark was too impatient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pyspark.errors import StreamingQueryException

from martlet.pipeline.job import Run
from martlet.pipeline.stream_monitor import start_query

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LATE = "terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


class Query:
    """One whose source comes up in steps, or fails after them."""

    def __init__(self, *said: str, error: str = "") -> None:
        self._said = list(said)
        self._error = error

    @property
    def isActive(self) -> bool:
        return bool(self._said) or not self._error

    @property
    def status(self) -> dict[str, Any]:
        return {"message": self._said.pop(0)}

    def exception(self) -> StreamingQueryException | None:
        return StreamingQueryException(message=self._error) if self._error else None

    @property
    def is_exhausted(self) -> bool:
        return not self._said


def begin(*queries: Query) -> Any:
    waiting = iter(cast("list[StreamingQuery]", list(queries)))
    return start_query(lambda: next(waiting), Run(cast("Any", None)))


def test_a_query_is_waited_for_until_its_source_is_there() -> None:
    query = Query("Initializing StreamExecution", "Initializing sources", "Waiting for data")
    assert begin(query) is query
    assert query.is_exhausted


def test_a_python_that_came_too_late_is_started_again() -> None:
    failing = ["Terminated with exception"] * 2
    late = Query("Initializing sources", *failing, error=LATE)
    there = Query("Waiting for data")
    assert begin(late, there) is there


def test_but_not_for_ever_and_for_no_other_reason() -> None:
    late = [Query(error=LATE) for _ in range(5)]
    assert begin(*late) is late[-1]
    wrong = Query(error="no such column")
    assert begin(wrong, Query("Waiting for data")) is wrong
