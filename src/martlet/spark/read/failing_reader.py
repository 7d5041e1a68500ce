"""The reader of a stream with bad options: raise their error where Spark shows it.

Spark hides an error raised by `streamReader` behind an `UnboundLocalError` of its own.  So the
source returns this reader, which raises the error from the first method that Spark calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow


class FailingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that raises in each method.

    Args:
        error: the error in the query's options or columns.
    """

    def __init__(self, error: ValueError) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        """Raises ValueError."""
        self._refuse()

    def initialOffset(self) -> dict[str, Any]:
        """Raises ValueError."""
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Raises ValueError."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raises ValueError."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raises ValueError."""
        self._refuse()
