"""Filter pushdown: the conditions of a batch query's WHERE become a filter of the reader.

Spark pushes down what is joined by AND: comparisons, IN, LIKE with a fixed prefix, suffix or part,
IS NULL and the negation of each.  An OR stays with Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from martlet.reader.filters import RowFilter, typed
from martlet.reader.schema import all_columns
from martlet.spark.read.batch import BatchReader

_TESTS: Mapping[type[Filter], Callable[[pc.Expression, Any], pc.Expression]] = {
    EqualTo: lambda column, value: column == value,
    GreaterThan: lambda column, value: column > value,
    GreaterThanOrEqual: lambda column, value: column >= value,
    LessThan: lambda column, value: column < value,
    LessThanOrEqual: lambda column, value: column <= value,
    EqualNullSafe: lambda column, value: column.is_valid() & (column == value),
}
_TEXT_TESTS: Mapping[type[Filter], Callable[[pc.Expression, str], pc.Expression]] = {
    StringStartsWith: pc.starts_with,
    StringEndsWith: pc.ends_with,
    StringContains: pc.match_substring,
}


class PushdownReader(BatchReader):
    """A reader that takes the conditions of WHERE. Spark refuses it while
    spark.sql.python.filterPushdown.enabled is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the conditions that the reader can test; return the others to Spark."""
        refused = []
        for given in filters:
            condition = expression_of(given, self._options.view)
            if condition is None:
                refused.append(given)
                continue
            if self._row_filter is not None:
                condition = self._row_filter.expression & condition
            self._row_filter = RowFilter(condition, self._options.view)
        return refused


def expression_of(given: Filter, view: str) -> pc.Expression | None:
    """The same condition on Arrow columns; None for one that is left to Spark."""
    if isinstance(given, Not):
        condition = expression_of(given.child, view)
        if condition is None:
            return None
        if isinstance(given.child, In):
            # For Arrow a null is outside of a list, and for SQL neither inside nor outside.
            return pc.field(*given.child.attribute).is_valid() & ~condition
        return ~condition
    path: tuple[str, ...] = getattr(given, "attribute", ())
    columns = all_columns(view)
    if len(path) != 1 or path[0] not in columns.names:
        return None
    column = pc.field(path[0])
    if isinstance(given, IsNull):
        return column.is_null()
    if isinstance(given, IsNotNull):
        return column.is_valid()
    kind = columns.field(path[0]).type
    return None if pa.types.is_nested(kind) else _compared(given, column, kind)


def _compared(given: Filter, column: pc.Expression, kind: pa.DataType) -> pc.Expression | None:
    value = getattr(given, "value", None)
    if type(given) in _TEXT_TESTS and isinstance(value, str):
        return _TEXT_TESTS[type(given)](column, value)
    if isinstance(given, In):
        # x NOT IN (1, NULL) holds for nothing.
        if not isinstance(value, list | tuple) or None in value:
            return None
        return column.isin(pa.array([typed(one, kind) for one in value], kind))
    if type(given) in _TESTS and value is not None:
        return _TESTS[type(given)](column, typed(value, kind))
    return None
