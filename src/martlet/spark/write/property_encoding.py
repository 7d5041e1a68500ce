"""Encode property columns as the entries of messages, without Python code for each row.

An entry is a sequence of fields ``kind u8 | name length u8 | value length u16 | name | value`` (see
`martlet.properties.model`).  A column of texts becomes a column of fields by joining each with a
head of 4 bytes.  A column of lists does so with all its elements at once; new offsets then cut the
result into lists again, as an Arrow binary array is one buffer with offsets into it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from martlet.properties.model import (
    MAX_BYTES,
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_NAME_BYTES,
    NORMAL_PRIORITY,
    BadProperties,
    Field,
    Properties,
    check_priority,
    tag_hash,
)

Int64s = npt.NDArray[np.int64]
_HEAD = np.dtype([("kind", "u1"), ("name", "u1"), ("value", "<u2")])
_MAX_VALUE_BYTES = 0xFFFF


def as_binary(array: pa.Array) -> pa.Array:
    """Convert texts or bytes to a binary array with 32-bit offsets."""
    return array if array.type == pa.binary() else array.cast(pa.binary())


def cuts_of(array: pa.Array) -> npt.NDArray[np.int32]:
    """The offsets of a binary array: one more than it has values."""
    cuts: npt.NDArray[np.int32] = np.frombuffer(array.buffers()[1], np.int32)
    return cuts[array.offset : array.offset + len(array) + 1]


def sizes_of(array: pa.Array) -> Int64s:
    """The bytes of each value; 0 for a null."""
    if not len(array):
        return np.empty(0, np.int64)
    sizes = np.diff(cuts_of(array)).astype(np.int64)
    if array.null_count:
        sizes[np.asarray(array.is_null())] = 0
    return sizes


def of_fixed(rows: npt.NDArray[Any]) -> pa.Array:
    """Convert a numpy array of items of one size to a binary array of their bytes."""
    count, size = len(rows), rows.itemsize
    cuts = np.arange(0, size * (count + 1), size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(cuts), pa.py_buffer(rows)])


def entries_of(batch: pa.RecordBatch, marks: pa.Array | None = None) -> pa.Array | None:
    """Encode the property entry of each row, empty for none; None if no row has any.

    Args:
        marks: a header of each row, packed, beside those of its column; null for none.

    Raises:
        BadProperties: a row has what no message may have; the text names the limit.
    """
    columns = []
    if (tag := _column(batch, "tag")) is not None:
        for text in _texts(tag.dictionary_encode()):
            Properties(tag=text).pack()  # It checks the tag.
        columns.append(_fields(Field.TAG, _present(tag)))
    if (keys := _column(batch, "keys")) is not None:
        columns.append(_keys(keys))
    if (key := _column(batch, "key")) is not None:
        columns.append(_fields(Field.ORDER_KEY, _key("key", _present(key))))
    if (priorities := priorities_of(batch)) is not None:
        columns.append(_priority_fields(priorities))
    if (headers := _column(batch, "headers")) is not None:
        columns.append(_headers(headers))
    if marks is not None:
        columns.append(marks)
    if not columns:
        return None
    entries = pc.binary_join_element_wise(
        *columns, b"", null_handling="replace", null_replacement=b""
    )
    max_length = int(sizes_of(entries).max())
    if max_length > MAX_BYTES:
        raise BadProperties(
            f"tag, key, keys and headers of a row take {max_length} bytes, the maximum is"
            f" {MAX_BYTES}: put large things into value"
        )
    return entries if max_length else None


def tag_hashes(batch: pa.RecordBatch) -> npt.NDArray[np.uint32] | None:
    """The hash of each row's tag, 0 for none; None if no row has any."""
    tag = _column(batch, "tag")
    if tag is None:
        return None
    coded = tag.dictionary_encode()
    hashes = np.array([*(tag_hash(text) if text else 0 for text in _texts(coded)), 0], np.uint32)
    return hashes[_codes(coded)]


def priorities_of(batch: pa.RecordBatch) -> Int64s | None:
    """The priority of each row; None if all are normal. Raises BadProperties."""
    column = _column(batch, "priority")
    if column is None:
        return None
    priorities: Int64s = column.fill_null(NORMAL_PRIORITY).to_numpy().astype(np.int64)
    if (priorities == NORMAL_PRIORITY).all():
        return None
    for limit in (priorities.min(), priorities.max()):
        check_priority(int(limit))
    return priorities


def _priority_fields(priorities: Int64s) -> pa.Array:
    fields = np.zeros(len(priorities), np.dtype([("head", _HEAD), ("digit", "u1")]))
    fields["head"]["kind"], fields["head"]["value"] = Field.PRIORITY, 1
    fields["digit"] = priorities + ord("0")
    normal = pa.array(priorities == NORMAL_PRIORITY)
    return pc.if_else(normal, pa.scalar(None, pa.binary()), of_fixed(fields))


def marked_rows(batch: pa.RecordBatch, name: bytes) -> npt.NDArray[np.bool_]:
    """Which rows have a header of that name."""
    marked = np.zeros(len(batch), bool)
    if (lists := _column(batch, "headers")) is not None:
        lists = _as_lists(lists) if pa.types.is_map(lists.type) else lists
        rows = np.repeat(np.arange(len(batch)), _counts(lists))
        names = as_binary(pc.struct_field(pc.list_flatten(lists), "key"))
        marked[rows[np.asarray(pc.equal(names, name).fill_null(False))]] = True
    return marked


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """The column, unless it is missing or entirely null."""
    at = batch.schema.get_field_index(name)
    if at < 0:
        return None
    column = batch.column(at)
    return None if column.null_count == len(column) else column


def _texts(coded: pa.DictionaryArray) -> list[str]:
    texts: list[str] = coded.dictionary.cast(pa.string()).to_pylist()
    return texts


def _codes(coded: pa.DictionaryArray) -> Int64s:
    """The dictionary index of each row; -1 for null."""
    codes: Int64s = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _present(texts: pa.Array) -> pa.Array:
    """The texts, with null in place of empty ones."""
    binary = as_binary(texts)
    empty = sizes_of(binary) == 0
    return (
        pc.if_else(pa.array(empty), pa.scalar(None, pa.binary()), binary) if empty.any() else binary
    )


def _key(what: str, keys: pa.Array) -> pa.Array:
    max_length = int(sizes_of(keys).max(initial=0))
    if max_length > MAX_KEY_BYTES:
        raise BadProperties(f"a {what} of {max_length} bytes, the maximum is {MAX_KEY_BYTES}")
    return keys


def _fields(kind: Field, values: pa.Array, names: pa.Array | None = None) -> pa.Array:
    """Encode one field for each value; null for a null."""
    heads = np.zeros(len(values), _HEAD)
    heads["kind"] = kind
    heads["value"] = sizes_of(values)
    pieces = [of_fixed(heads), values]
    if names is not None:
        heads["name"] = sizes_of(names)
        pieces.insert(1, names)
    return pc.binary_join_element_wise(*pieces, b"")


def _cut_again(fields: pa.Array, counts: Int64s) -> pa.Array:
    """Cut the concatenated fields of lists into one value for each list."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    cuts = cuts_of(fields)[ends] if len(fields) else np.zeros(len(counts) + 1, np.int32)
    data = fields.buffers()[2] if len(fields) else pa.py_buffer(b"")
    return pa.Array.from_buffers(
        pa.binary(), len(counts), [None, pa.py_buffer(np.ascontiguousarray(cuts)), data]
    )


def _counts(lists: pa.Array) -> Int64s:
    counts = pc.list_value_length(lists).fill_null(0)
    return counts.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def _keys(lists: pa.Array) -> pa.Array:
    counts = _counts(lists)
    if int(counts.max()) > MAX_KEYS:
        raise BadProperties(f"keys has {int(counts.max())} of a row, the maximum is {MAX_KEYS}")
    flat = as_binary(pc.list_flatten(lists))
    if flat.null_count or (len(flat) and not int(sizes_of(flat).min())):
        raise BadProperties("keys has a key that is null or empty: filter(keys, k -> k <> '')")
    try:
        flat.cast(pa.string())
    except pa.ArrowInvalid:
        raise BadProperties("keys has a key that is not UTF-8: base64(...) encodes it") from None
    return _cut_again(_fields(Field.KEY, _key("key in keys", flat)), counts)


def _headers(lists: pa.Array) -> pa.Array:
    if pa.types.is_map(lists.type):
        lists = _as_lists(lists)
    counts = _counts(lists)
    flat = pc.list_flatten(lists)
    if flat.null_count:
        raise BadProperties("headers has an element that is null")
    names, values = (as_binary(pc.struct_field(flat, name)) for name in ("key", "value"))
    sizes = sizes_of(names)
    if len(flat) and not 0 < int(sizes.min()) <= int(sizes.max()) <= MAX_NAME_BYTES:
        raise BadProperties(
            f"a header's name takes {int(sizes.max()) if sizes.min() else 0} bytes, between 1 and"
            f" {MAX_NAME_BYTES} are allowed"
        )
    if int(sizes_of(values).max(initial=0)) > _MAX_VALUE_BYTES:
        raise BadProperties(
            f"a header's value takes {int(sizes_of(values).max())} bytes, the properties of one"
            f" message may take {MAX_BYTES}"
        )
    return _cut_again(_fields(Field.HEADER, values.fill_null(b""), names), counts)


def _as_lists(maps: pa.Array) -> pa.Array:
    key, item = maps.type.key_type, maps.type.item_type
    kind = pa.list_(pa.struct([pa.field("key", key, nullable=False), pa.field("value", item)]))
    return pa.Array.from_buffers(
        kind,
        len(maps),
        maps.buffers()[:2],
        null_count=maps.null_count,
        offset=maps.offset,
        children=[
            pa.StructArray.from_arrays(
                [maps.keys, maps.items], fields=[kind.value_type.field(0), kind.value_type.field(1)]
            )
        ],
    )
