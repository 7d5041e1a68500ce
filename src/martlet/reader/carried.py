"""The properties of messages as Arrow columns, without Python code for each message.

The fields of all entries are found side by side (`martlet.properties.filter.columns`).  Each value
is then cut out of the buffer that they lie in, as bodies are (`martlet.reader.decode`)::

    | kind, lengths | value | kind, lengths | name | value | kind ...
                    ^start  ^end                   ^start  ^end
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from martlet.properties.filter.columns import EntryFields, fields_of
from martlet.properties.model import NORMAL_PRIORITY, Field
from martlet.reader.no_value import with_no_values

Int64s = npt.NDArray[np.int64]

_KINDS = {
    "key": Field.ORDER_KEY,
    "headers": Field.HEADER,
    "tag": Field.TAG,
    "keys": Field.KEY,
    "priority": Field.PRIORITY,
}
CARRIED = frozenset(_KINDS)
"""The columns that are made here."""


def column_of(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """A column over the memory of an array of the same width.

    `pa.array` and `pa.scalar` would import pandas, which takes 0.5 s in each of Spark's workers.
    """
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def pieces_of(
    data: pa.Buffer, starts: Int64s, stops: Int64s, numbers: Int64s | None = None
) -> pa.Array:
    """Cut rising pieces out of a buffer: all, or those of some numbers, which are null below 0."""
    # They and the gaps between them are one array over its memory, of which every second is taken.
    base, count = int(starts[0]), len(starts)
    cuts = np.empty(2 * count, np.int32)
    cuts[0::2] = starts - base
    cuts[1::2] = stops - base
    buffers = [None, pa.py_buffer(cuts), data.slice(base)]
    both = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    if numbers is not None:
        return both.take(pa.array(2 * numbers, mask=numbers < 0))
    return both.take(column_of(np.arange(0, 2 * count, 2, dtype=np.int32), pa.int32()))


class CarriedProperties:
    """The properties of `count` messages.

    Args:
        data: has the entries of those messages that have any.
        rows: their numbers, rising.
        starts, stops: where each entry begins and ends in `data`.
    """

    def __init__(
        self, data: pa.Buffer, count: int, rows: Int64s, starts: Int64s, stops: Int64s
    ) -> None:
        self._data = data
        self._count = count
        self._rows = rows
        self._starts = starts
        self._stops = stops

    @cached_property
    def _fields(self) -> EntryFields:
        """All fields, in the order of the messages and of the fields of each."""
        fields = fields_of(self._data, self._starts, self._stops)
        order = np.argsort(fields.names)
        rows, ids, names, lengths = (column[order] for column in fields)
        return EntryFields(self._rows[rows], ids, names, lengths)

    def column(self, field: pa.Field) -> pa.Array:
        """The column of that name; null where a message has no such property."""
        kind, fields = _KINDS[field.name], self._fields
        own = np.flatnonzero((fields.ids & 0xFF) == kind)
        rows, starts, lengths = fields.rows[own], fields.names[own], fields.lengths[own]
        if kind == Field.PRIORITY:
            priorities = np.full(self._count, NORMAL_PRIORITY, np.int32)
            priorities[rows] = np.frombuffer(self._data, np.uint8)[starts] - np.uint8(ord("0"))
            return column_of(priorities, pa.int32())
        if not len(own):
            return pa.nulls(self._count, field.type)
        if kind in (Field.ORDER_KEY, Field.TAG):
            numbers = np.full(self._count, -1, np.int64)
            numbers[rows] = np.arange(len(rows))
            return pieces_of(self._data, starts, starts + lengths, numbers).view(field.type)
        counts = np.bincount(rows, minlength=self._count)
        cuts = np.zeros(self._count + 1, np.int32)
        np.cumsum(counts, out=cuts[1:])
        item = field.type.value_type
        if kind == Field.HEADER:
            name_lengths = (fields.ids[own] >> 8).astype(np.int64)
            names = pieces_of(self._data, starts, starts + name_lengths).view(pa.string())
            values = pieces_of(self._data, starts + name_lengths, starts + name_lengths + lengths)
            items = pa.StructArray.from_arrays([names, values], fields=list(item))
        else:
            items = pieces_of(self._data, starts, starts + lengths).view(item)
        return pa.ListArray.from_arrays(cuts, items, type=field.type, mask=pa.array(counts == 0))

    def unmarked(self, bodies: pa.Array) -> pa.Array:
        """Bodies, with null or empty bytes in place of those that stand for them."""
        return with_no_values(bodies, self._data, self._fields)
