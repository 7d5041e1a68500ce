"""The columns of the source: those of Spark's Kafka source, and five of Martlet's own; and those of
its other view, which has a row for each batch of the log.

A query that names fewer columns with ``.schema("value BINARY")`` is spared the work for the others:
Spark cannot tell a Python source by itself which columns a query uses.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
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


BATCHES = StructType(
    [
        StructField("broker", StringType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("topic_id", LongType()),
        StructField("offset", LongType()),
        StructField("end_offset", LongType()),
        StructField("count", LongType()),
        StructField("bytes", LongType()),
        StructField("position", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("deliver_at", TimestampType()),
        StructField("channel_id", LongType()),
        StructField("body_bytes", LongType()),
        StructField("epoch", LongType()),
        StructField("in_transaction", BooleanType()),
        StructField("was_delayed", BooleanType()),
        StructField("was_moved", BooleanType()),
        StructField(
            "sends",
            ArrayType(
                StructType(
                    [
                        StructField("producer", StringType()),
                        StructField("sequence", LongType()),
                        StructField("offset", LongType()),
                        StructField("count", LongType()),
                    ]
                )
            ),
        ),
    ]
)
"""Of a batch. `offset` is its first message's and `end_offset` lies behind the last; `bytes` is
what it takes in the log, `body_bytes` what its messages' bodies do.  `channel_id` is there where it
is for one channel alone, `sends` tells which producer's sends begin in it.  The columns up to
`channel_id` are the index's, and no byte of the log is read for them; the others are in the batch's
header, and null where that is damaged.
"""

INTACT = StructField("intact", BooleanType())
"""Whether the batch's checksum fits, for which all of it has to be read: a column that has to be
asked for by name.
"""


def schema_of(view: str) -> StructType:
    """The columns of a view that has not been told which are wanted."""
    return BATCHES if view == "batches" else SCHEMA


def arrow_schema(wanted: StructType, view: str = "messages") -> pa.Schema:
    """The Arrow schema of the columns that a query wants.

    Raises:
        ValueError: a column is unknown or has another type here; the text names those there are.
    """
    fields = [*schema_of(view), *([INTACT] if view == "batches" else [])]
    types = {field.name: field.dataType for field in fields}
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
