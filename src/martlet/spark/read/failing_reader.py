"""A stream that cannot be: what is wrong with it is said where Spark hands it on.

Of what `streamReader` raises, Spark tells but an `UnboundLocalError` of its own that follows upon
it.  So a reader is made all the same, and says it at the first thing that it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow


class FailingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """In the place of a reader.

    Args:
        error: what is wrong with the query's options or columns.
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
