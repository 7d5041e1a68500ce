"""The columns of the sink: those of Spark's Kafka sink, and some more.

``docs/pipelines/sink.md`` has their types and meaning.  The sink ignores the source's other
columns, which say where a message was stored: rows that were read can be written as they are.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from martlet.spark.read.schema import SCHEMA


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, (BinaryType, StringType))


def _is_number(kind: DataType) -> bool:
    return isinstance(kind, (IntegerType, LongType))


def _is_headers(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and _is_text(kind.valueType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = {field.name: field.dataType for field in kind.elementType}
    return (
        fields.keys() == {"key", "value"}
        and isinstance(fields["key"], StringType)
        and _is_text(fields["value"])
    )


class _Column(NamedTuple):
    types: str
    fits: Callable[[DataType], bool]


COLUMNS: Mapping[str, _Column] = {
    "value": _Column("BINARY or STRING", _is_text),
    "topic": _Column("STRING", lambda type: isinstance(type, StringType)),
    "key": _Column("BINARY or STRING", _is_text),
    "partition": _Column("INT or BIGINT", _is_number),
    "headers": _Column(
        "ARRAY<STRUCT<key STRING, value BINARY or STRING>> or MAP<STRING, BINARY or STRING>",
        _is_headers,
    ),
    "tag": _Column("STRING", lambda type: isinstance(type, StringType)),
    "priority": _Column("INT or BIGINT", _is_number),
    "keys": _Column(
        "ARRAY<STRING>",
        lambda type: isinstance(type, ArrayType) and isinstance(type.elementType, StringType),
    ),
    "deliver_at": _Column("TIMESTAMP", lambda type: isinstance(type, TimestampType)),
    "delay": _Column(
        "INT or BIGINT, milliseconds, or INTERVAL DAY TO SECOND",
        lambda type: _is_number(type) or isinstance(type, DayTimeIntervalType),
    ),
}
PASSED_OVER = frozenset(field.name for field in SCHEMA) - COLUMNS.keys()
"""Columns of sources, which say where a message was stored. So does `partition` beside them."""


def check_columns(schema: StructType, topic: str | None) -> None:
    """Check that rows of a schema can be written. Raises ValueError, which names the column."""
    types = {field.name: field.dataType for field in schema}
    for name, kind in types.items():
        if name in PASSED_OVER:
            continue
        column = COLUMNS.get(name)
        if column is None:
            near = difflib.get_close_matches(name, COLUMNS, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(
                f"the martlet sink has no column {name!r}: {hint}it has {', '.join(COLUMNS)};"
                " put other data into value, as to_json(struct(*)) does, or into headers"
            )
        if not column.fits(kind):
            raise ValueError(
                f"column {name!r} is {kind.simpleString()}, the martlet sink wants"
                f" {column.types}: CAST it"
            )
    if "value" not in types:
        raise ValueError(
            f"column 'value' is missing, there are {', '.join(types) or 'none'}: it is the body,"
            " BINARY or STRING, such as to_json(struct(*)) AS value"
        )
    if topic is None and "topic" not in types:
        raise ValueError("the rows have no topic: give option topic, or a column 'topic'")
    if "deliver_at" in types and "delay" in types:
        raise ValueError("columns 'deliver_at' and 'delay' exclude each other: keep one of them")
