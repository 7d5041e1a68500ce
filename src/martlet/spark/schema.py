"""The columns of the source: those of Spark's Kafka source, and five of Martlet's own.

A query that names fewer columns with ``.schema("value BINARY")`` is spared the work for the others:
Spark cannot tell a Python source by itself which columns a query uses.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(
            "headers",
            ArrayType(
                StructType([StructField("key", StringType()), StructField("value", BinaryType())])
            ),
        ),
        StructField("attempts", IntegerType()),
        StructField("message_id", StringType()),
        StructField("broker", StringType()),
        StructField("tag", StringType()),
        StructField("keys", ArrayType(StringType())),
    ]
)
"""`partition` is the queue, `key` the order key.  What a message has none of is null, as all of
these are in one that an NSQ client has published.
"""


def arrow_schema(wanted: StructType) -> pa.Schema:
    """The Arrow schema of the columns that a query wants.

    Raises:
        ValueError: a column is unknown or has another type here; the text names those there are.
    """
    types = {field.name: field.dataType for field in SCHEMA}
    for field in wanted:
        if field.name not in types:
            raise ValueError(
                f"the martlet source has no column {field.name!r}; it has "
                + ", ".join(f"{name} {known.simpleString()}" for name, known in types.items())
            )
        if field.dataType.simpleString() != types[field.name].simpleString():
            raise ValueError(
                f"column {field.name!r} of the martlet source is {types[field.name].simpleString()}"
                f" and not {field.dataType.simpleString()}: read it as it is, CAST it in the query"
            )
    return to_arrow_schema(wanted, timezone="UTC")
