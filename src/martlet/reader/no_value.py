"""Rows whose value is null or empty, as the tombstones of Kafka's compacted topics.

A message has at least one byte.  So the sink can give such a row a body that stands for its value,
and a header that says so, by which the source reads the value as it was::

    value    body     header martlet-value
    null     null     null
    empty    a space  empty

A message of another body is what that says, also with the header: a query may give such a row a
value and keep its headers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from martlet.properties.filter.columns import EntryFields
from martlet.properties.model import Field, Properties

MARK = b"martlet-value"
"""The header's name."""
_NULL, _EMPTY = b"null", b"empty"
_BODIES = {_NULL: b"null", _EMPTY: b" "}
_FIELDS = {word: Properties(headers={MARK.decode(): word}).pack() for word in _BODIES}
_PLACE = ("topic", "partition", "offset", "key")
"""Columns by which an error names a row."""
Bools = npt.NDArray[np.bool_]


def with_no_values(bodies: pa.Array, data: pa.Buffer, fields: EntryFields) -> pa.Array:
    """Bodies as a column of values, null or empty where a header says so.

    Args:
        data: has the headers, and all other fields of the messages' properties.
    """
    is_null, is_empty = (_stand_for(word, bodies, data, fields) for word in _BODIES)
    return _replaced(bodies, is_null, None, is_empty, b"")


def _stand_for(word: bytes, bodies: pa.Array, data: pa.Buffer, fields: EntryFields) -> Bools:
    """Which messages have the header with this value, and its body."""
    header = MARK + word
    likely = (fields.ids == Field.HEADER | len(MARK) << 8) & (fields.lengths == len(word))
    at_each = np.ndarray((data.size - len(header) + 1,), f"S{len(header)}", data, 0, (1,))
    are_marked = np.zeros(len(bodies), bool)
    are_marked[fields.rows[likely][at_each[fields.names[likely]] == header]] = True
    are_marked &= np.asarray(pc.equal(bodies, pa.scalar(_BODIES[word], bodies.type)))
    return are_marked


def bodies_of(values: pa.Array, lacking: Bools) -> pa.Array:
    """The bodies of messages, where rows have no value too."""
    is_null = np.asarray(values.is_null())
    return _replaced(values, is_null, _BODIES[_NULL], lacking & ~is_null, _BODIES[_EMPTY])


def marks_of(values: pa.Array, unmarked: Bools) -> pa.Array:
    """The header of each row that has no value and no header which says so, packed; null for the
    others.
    """
    is_null = np.asarray(values.is_null())
    nothing = pa.nulls(len(values), pa.binary())
    return _replaced(
        nothing, unmarked & is_null, _FIELDS[_NULL], unmarked & ~is_null, _FIELDS[_EMPTY]
    )


def refusal(batch: pa.RecordBatch, rows: Sequence[int]) -> ValueError:
    """The error for rows without a value."""
    first, names = rows[0], batch.schema.names
    is_null = not batch.column("value")[first].is_valid
    which = {name: batch.column(name)[first].as_py() for name in _PLACE if name in names}
    where = ", ".join(f"{name} {value!r}" for name, value in which.items() if value is not None)
    others = f" and in {len(rows) - 1} more of its {len(batch)} rows" if len(rows) > 1 else ""
    return ValueError(
        f"column 'value' is {'null' if is_null else 'empty'} in row {first} of a batch"
        f"{f' ({where})' if where else ''}{others}, and a message has at least 1 byte: option"
        " nullValue=tombstone keeps such rows as messages that the source reads as null or empty"
        " again, nullValue=drop leaves them out, and so does .where(length(value) > 0)"
    )


def _replaced(
    array: pa.Array, first: Bools, by_first: object, second: Bools, by_second: object
) -> pa.Array:
    kind = pa.binary()
    array = pc.if_else(pa.array(second), pa.scalar(by_second, kind), array)
    return pc.if_else(pa.array(first), pa.scalar(by_first, kind), array)
