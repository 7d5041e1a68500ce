"""The rows of an archive, in one of two shapes: raw, with the columns of the source, or JSON, with
the fields of messages and their origin.  ``docs/pipelines/archive.md`` has their columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from martlet.pipeline.archive.json_fields import JsonFields
from martlet.pipeline.archive.partition import (
    LONG,
    MAX_NAME_BYTES,
    SHORTENED_BYTES,
    Partitioning,
    escape,
)
from martlet.reader.schema import selected

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PRIORITY = "priority"
ADDED = (PRIORITY, f"_{PRIORITY}")
"""The column that archives of version 0.1 do not have, in both shapes."""
CORRUPT = "_corrupt_record"
VALUE = "_value"
_COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "headers",
    "message_id",
    "broker",
    "tag",
    "keys",
    PRIORITY,
)
"""Columns of the source; the others have the same value for every message in a log."""
ORIGIN = {
    "_topic": "topic",
    "_queue": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_message_id": "message_id",
    "_broker": "broker",
    "_key": "key",
    "_headers": "headers",
    "_tag": "tag",
    "_keys": "keys",
    f"_{PRIORITY}": PRIORITY,
}
_DELTA = {
    "offset": "DELTA_BINARY_PACKED",
    "timestamp": "DELTA_BINARY_PACKED",
    "message_id": "DELTA_BYTE_ARRAY",
}
"""Columns that increase from row to row take a byte or less of each row in these encodings."""


def source_schema() -> pa.Schema:
    """Return the columns to read from the source."""
    return selected(_COLUMNS)


@dataclass(frozen=True)
class Shape:
    """The columns and the partitioning of an archive."""

    partition_by: Sequence[str]
    fields: pa.Schema | None = None
    """The fields of JSON messages as Arrow types; None for the raw shape."""
    keeps_value: bool = False
    """Whether the JSON shape also has the bytes of each message."""

    def __post_init__(self) -> None:
        own = {CORRUPT, VALUE, *ORIGIN, *(LONG + name for name in self.partition_by)}
        taken = sorted(own & set(self.fields.names if self.fields else ()))
        if taken:
            raise ValueError(
                f"the schema may not have {', '.join(taken)}: the archive has columns of that name"
            )
        columns = dict.fromkeys([*self.schema.names, "topic", "date", "hour"])
        missing = [name for name in self.partition_by if name not in columns]
        if missing:
            raise ValueError(
                f"cannot partition by {', '.join(missing)}: there are {', '.join(columns)}"
            )
        if len(set(self.partition_by)) < len(self.partition_by):
            raise ValueError(
                f"cannot partition by {', '.join(self.partition_by)}: a name is there twice"
            )
        for name in self.partition_by:
            kind = self.schema.field(name).type if name in self.schema.names else pa.string()
            if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_floating(kind):
                raise ValueError(f"cannot partition by {name}: {kind} cannot name folders")
            if len(f"{escape(name)}=".encode()) + SHORTENED_BYTES > MAX_NAME_BYTES:
                raise ValueError(
                    f"cannot partition by {name}: the names of its folders would have more than"
                    f" {MAX_NAME_BYTES} bytes"
                )
        if not set(self.schema.names) - set(self.partition_by):
            raise ValueError("cannot partition by every column: none is left for the files")

    @property
    def schema(self) -> pa.Schema:
        """All columns, including partition columns."""
        source = source_schema()
        if self.fields is None:
            return source
        origin = [source.field(name).with_name(alias) for alias, name in ORIGIN.items()]
        own = [pa.field(CORRUPT, pa.string()), pa.field(VALUE, pa.binary())]
        return pa.schema([*self.fields, *own, *origin])

    @property
    def file_schema(self) -> pa.Schema:
        """The columns in the files: all but the partition columns."""
        return pa.schema([field for field in self.schema if field.name not in self.partition_by])

    @property
    def partitioning(self) -> Partitioning:
        """The rule for the folder of each row."""
        derived = {"topic", "date", "hour"} - set(self.schema.names if self.fields else ())
        return Partitioning(
            names=tuple(self.partition_by),
            fields=frozenset(self.partition_by) - derived,
            timestamp="_timestamp" if self.fields else "timestamp",
        )

    def rows(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch of the source to rows of the archive."""
        if self.fields is None:
            return messages
        # A message whose value is null has this body, and is no object either way.
        fields = JsonFields(self.fields).parse(messages["value"].fill_null(b"null"))
        value = messages["value"] if self.keeps_value else fields.values
        origin = [messages[name] for name in ORIGIN.values()]
        return pa.RecordBatch.from_arrays(
            [*fields.columns, fields.corrupt, value, *origin], schema=self.schema
        )


def encodings(schema: pa.Schema) -> dict[str, object]:
    """Choose the Parquet encodings of columns, as arguments of `pyarrow.parquet.ParquetWriter`.

    Columns whose values are rarely equal get no dictionary, which would cost more than it saves.
    """
    is_json = CORRUPT in schema.names
    named = dict(zip(ORIGIN.values(), ORIGIN, strict=True)) if is_json else {}
    bodies = {VALUE, CORRUPT} if is_json else {"value"}
    once = bodies | {named.get(name, name) for name in ("key", "headers", "keys", *_DELTA)}
    deltas = {named.get(name, name): encoding for name, encoding in _DELTA.items()}
    return {
        "use_dictionary": [name for name in schema.names if name not in once],
        "column_encoding": {name: kind for name, kind in deltas.items() if name in schema.names},
        "write_statistics": [name for name in schema.names if name not in bodies],
    }


def shape_of(
    json_schema: StructType | None, partition_by: Sequence[str], *, keeps_value: bool
) -> Shape:
    """Create the shape for the fields of JSON messages, None for the raw shape. Raises ValueError:
    there are no fields, or a reserved name; or a partition column is invalid.
    """
    if json_schema is None:
        return Shape(partition_by)
    from pyspark.sql.pandas.types import to_arrow_schema

    if not len(json_schema):
        raise ValueError("the JSON schema has no fields; 'origin STRING, month INT' has two")
    fields = to_arrow_schema(json_schema, timezone="UTC")
    optional = pa.schema([field.with_nullable(True) for field in fields])
    return Shape(partition_by, optional, keeps_value)
