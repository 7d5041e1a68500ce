"""The columns of the source: Spark's Kafka source's, and five more; and those of its batch view.

A query that names only the columns it uses, with ``.schema("value BINARY")``, saves the work for
the others: Spark does not push the selection of columns down to a Python source.
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
"""`partition` is the queue, `key` the order key.  A property that a message lacks is null; a
message of an NSQ client has none.
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
"""The columns of the batch view.  `offset` is that of the first message and `end_offset` the one
after the last; `bytes` is the batch's size in the log, `body_bytes` that of its bodies.
`channel_id` is set for a batch that one channel alone delivers; `sends` are the producers' sends
that begin in it.  The columns up to `channel_id` come from the index, without a read of the log;
the others from the batch's header, and are null if it is damaged.
"""

INTACT = StructField("intact", BooleanType())
"""Whether the batch's checksum fits.  It costs a read of the entire batch, so a query has to name
this column.
"""


def schema_of(view: str) -> StructType:
    """The default columns of a view."""
    return BATCHES if view == "batches" else SCHEMA


def arrow_schema(columns: StructType, view: str = "messages") -> pa.Schema:
    """The Arrow schema of the columns that a query wants.

    Raises:
        ValueError: a column is unknown or of another type; the text names the existing ones.
    """
    fields = [*schema_of(view), *([INTACT] if view == "batches" else [])]
    types = {field.name: field.dataType for field in fields}
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
