"""The columns of the source as Spark's types; `martlet.reader.schema` has their meaning.

A query that names only the columns it uses, with ``.schema("value BINARY")``, saves the work for
the others: Spark does not push the selection of columns down to a Python source.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from martlet.reader import schema as columns_of

SCHEMA = from_arrow_schema(columns_of.MESSAGES)
"""The columns of messages."""


def schema_of(view: str) -> StructType:
    """The default columns of a view."""
    return from_arrow_schema(columns_of.schema_of(view))


def arrow_schema(columns: StructType, view: str = "messages") -> pa.Schema:
    """The Arrow schema of the columns that a query wants. Raises ValueError, which names all."""
    types = {
        field.name: field.dataType for field in from_arrow_schema(columns_of.all_columns(view))
    }
    for field in columns:
        if field.name not in types:
            raise ValueError(
                f"the martlet source has no column {field.name!r}; it has "
                + ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
            )
        if field.dataType.simpleString() != types[field.name].simpleString():
            raise ValueError(
                f"column {field.name!r} of the martlet source is {types[field.name].simpleString()}"
                f" and not {field.dataType.simpleString()}: read it as that and CAST it later"
            )
    return to_arrow_schema(columns, timezone="UTC")
