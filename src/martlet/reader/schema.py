"""The columns of a topic: those of Spark's Kafka source, and six more; and those of its batches.

A reader that names the columns it needs saves the work for the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

_TIME = pa.timestamp("us", "UTC")


def _list_of(element: pa.DataType) -> pa.DataType:
    """A list, whose elements are named as Spark names them."""
    return pa.list_(pa.field("element", element))


MESSAGES = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": _TIME,
        "timestampType": pa.int32(),
        "headers": _list_of(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "attempts": pa.int32(),
        "message_id": pa.string(),
        "broker": pa.string(),
        "tag": pa.string(),
        "keys": _list_of(pa.string()),
        "priority": pa.int32(),
    }
)
"""`partition` is the queue, `key` the order key. A property that a message lacks is null, but its
priority is 4.
"""
_SEND = pa.struct(
    {"producer": pa.string(), "sequence": pa.int64(), "offset": pa.int64(), "count": pa.int64()}
)
BATCHES = pa.schema(
    {
        "broker": pa.string(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "topic_id": pa.int64(),
        "offset": pa.int64(),
        "end_offset": pa.int64(),
        "count": pa.int64(),
        "bytes": pa.int64(),
        "position": pa.int64(),
        "timestamp": _TIME,
        "deliver_at": _TIME,
        "channel_id": pa.int64(),
        "body_bytes": pa.int64(),
        "epoch": pa.int64(),
        "in_transaction": pa.bool_(),
        "was_delayed": pa.bool_(),
        "was_moved": pa.bool_(),
        "sends": _list_of(_SEND),
    }
)
"""The columns of the batch view, as in ``docs/pipelines/source.md``.  Those up to `channel_id` come
from the index, without a read of the log; the others from the batch's header, and are null if it is
damaged.
"""
INTACT = pa.field("intact", pa.bool_())
"""Whether the batch's checksum fits, which costs a read of the entire batch."""


def schema_of(view: str) -> pa.Schema:
    """The default columns of a view."""
    return BATCHES if view == "batches" else MESSAGES


def all_columns(view: str) -> pa.Schema:
    """The columns that a view can have."""
    return BATCHES.append(INTACT) if view == "batches" else MESSAGES


def selected(columns: Sequence[str], view: str = "messages") -> pa.Schema:
    """The columns of these names. Raises ValueError, which names all."""
    schema = all_columns(view)
    for name in columns:
        if name not in schema.names:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in columns])
