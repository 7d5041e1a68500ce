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
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


def _struct(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


SCHEMA = _struct(
    key=BinaryType(),
    value=BinaryType(),
    topic=StringType(),
    partition=IntegerType(),
    offset=LongType(),
    timestamp=TimestampType(),
    timestampType=IntegerType(),
    headers=ArrayType(_struct(key=StringType(), value=BinaryType())),
    attempts=IntegerType(),
    message_id=StringType(),
    broker=StringType(),
    tag=StringType(),
    keys=ArrayType(StringType()),
)
"""`partition` is the queue, `key` the order key.  A property that a message lacks is null."""
_SEND = _struct(producer=StringType(), sequence=LongType(), offset=LongType(), count=LongType())
BATCHES = _struct(
    broker=StringType(),
    topic=StringType(),
    partition=IntegerType(),
    topic_id=LongType(),
    offset=LongType(),
    end_offset=LongType(),
    count=LongType(),
    bytes=LongType(),
    position=LongType(),
    timestamp=TimestampType(),
    deliver_at=TimestampType(),
    channel_id=LongType(),
    body_bytes=LongType(),
    epoch=LongType(),
    in_transaction=BooleanType(),
    was_delayed=BooleanType(),
    was_moved=BooleanType(),
    sends=ArrayType(_SEND),
)
"""The columns of the batch view, as in ``docs/pipelines/source.md``.  Those up to `channel_id` come
from the index, without a read of the log; the others from the batch's header, and are null if it is
damaged.
"""

INTACT = StructField("intact", BooleanType())
"""Whether the batch's checksum fits, which costs a read of the entire batch."""


def schema_of(view: str) -> StructType:
    """The default columns of a view."""
    return BATCHES if view == "batches" else SCHEMA


def arrow_schema(columns: StructType, view: str = "messages") -> pa.Schema:
    """The Arrow schema of the columns that a query wants. Raises ValueError, which names all."""
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
