"""Parse JSON messages into columns, by the rules of Spark's ``from_json`` in PERMISSIVE mode.

Arrow's reader parses a block of messages at once, but rejects the block if one message does not
match the schema, and it knows lines and documents, not messages.  So a block goes to Arrow only if
each message, trimmed, begins with ``{`` and ends with ``}``.  Then no document can extend into the
next message: ``{`` cannot follow ``}`` within a document, and strings end before the line does.  A
message with two documents is noticed, as there are more rows than messages.  A rejected block is
halved until the bad message is among a few, which are parsed one by one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as kinds

_MAX_UNHALVED = 64
"""The maximum size of a rejected block whose messages are parsed one by one."""


@dataclass(frozen=True)
class Parsed:
    """Parsed messages, a row each."""

    columns: Sequence[pa.Array]
    corrupt: pa.Array
    """The text of messages that do not match the schema, null for the others."""
    values: pa.Array
    """The bytes of messages that are not UTF-8, null for the others."""


class JsonFields:
    """Parses JSON messages."""

    def __init__(self, fields: pa.Schema) -> None:
        self._fields = fields
        as_read = pa.schema(
            [
                # Arrow's reader cannot parse dates; they are cast from text afterwards.
                field.with_type(pa.string()) if kinds.is_date(field.type) else field
                for field in fields
            ]
        )
        self._reads_blocks = all(_is_read(field.type) for field in as_read)
        self._options = pj.ParseOptions(
            explicit_schema=as_read, newlines_in_values=True, unexpected_field_behavior="ignore"
        )

    def parse(self, messages: pa.Array) -> Parsed:
        """Parse messages."""
        pieces: list[Parsed] = []
        self._parse(messages, pieces)
        if len(pieces) == 1:
            return pieces[0]
        return Parsed(
            [
                pa.concat_arrays(columns)
                for columns in zip(*(p.columns for p in pieces), strict=True)
            ],
            pa.concat_arrays([piece.corrupt for piece in pieces]),
            pa.concat_arrays([piece.values for piece in pieces]),
        )

    def _parse(self, messages: pa.Array, pieces: list[Parsed]) -> None:
        parsed = self._parse_block(messages)
        if parsed is not None:
            pieces.append(parsed)
            return
        if len(messages) <= _MAX_UNHALVED:
            pieces.append(self._one_by_one(messages))
            return
        middle = len(messages) // 2
        self._parse(messages[:middle], pieces)
        self._parse(messages[middle:], pieces)

    def _parse_block(self, messages: pa.Array) -> Parsed | None:
        """Parse messages at once; return None if one does not match the schema."""
        count = len(messages)
        if not self._reads_blocks or not count:
            return None
        try:
            texts = pc.utf8_trim(messages.cast(pa.string()), " \t\r\n")
            framed = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
            if not pc.all(framed, min_count=0).as_py():
                return None
            lines = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), texts)
            block = pc.binary_join(lines, "\n")[0].as_buffer()
            read = pj.ReadOptions(use_threads=False, block_size=max(block.size, 1))
            table = pj.read_json(pa.BufferReader(block), read, self._options)
            if len(table) != count:
                return None
            columns = [_flat(table[field.name], field) for field in self._fields]
        except pa.ArrowInvalid:
            return None
        return Parsed(columns, pa.nulls(count, pa.string()), pa.nulls(count, pa.binary()))

    def _one_by_one(self, messages: pa.Array) -> Parsed:
        rows: list[list[Any]] = []
        corrupt: list[str | None] = []
        values: list[bytes | None] = []
        for message in messages.to_pylist():
            row, fits = self._row(message)
            rows.append(row)
            if fits:
                corrupt.append(None)
                values.append(None)
                continue
            try:
                corrupt.append(message.decode())
                values.append(None)
            except UnicodeDecodeError:
                corrupt.append(message.decode(errors="replace"))
                values.append(message)
        columns = [
            pa.array([row[number] for row in rows], field.type)
            for number, field in enumerate(self._fields)
        ]
        return Parsed(columns, pa.array(corrupt, pa.string()), pa.array(values, pa.binary()))

    def _row(self, message: bytes) -> tuple[list[Any], bool]:
        """Return the fields of one message, and whether all of them match the schema."""
        nothing = [None] * len(self._fields)
        try:
            values = json.loads(message, parse_constant=_no_number)
        except (ValueError, RecursionError):
            return nothing, False
        if not isinstance(values, dict):
            return nothing, False
        fits = True
        row = []
        for field in self._fields:
            try:
                row.append(fitted(values.get(field.name), field.type))
            except Misfit:
                row.append(None)
                fits = False
        return row, fits


def _flat(column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.nulls(0, field.type)
    return array if array.type == field.type else array.cast(field.type)


def _is_read(kind: pa.DataType) -> bool:
    """Return whether Arrow's JSON reader supports a type."""
    if kinds.is_map(kind) or kinds.is_date(kind):
        return False
    return all(_is_read(kind.field(number).type) for number in range(kind.num_fields))


def _no_number(word: str) -> None:
    """Reject NaN and Infinity, which Python accepts as JSON."""
    raise ValueError(f"{word} is not JSON")


class Misfit(ValueError):
    """A value does not match the type."""


def fitted(value: Any, kind: pa.DataType) -> Any:
    """Convert a value so that `pyarrow.array` accepts it for a type. Raises Misfit.

    A string type accepts every value, as its JSON text; other types accept only their own values.
    """
    if value is None:
        return None
    if kinds.is_string(kind):
        return _text(value)
    if kinds.is_struct(kind):
        if not isinstance(value, dict):
            raise Misfit(value)
        return {field.name: fitted(value.get(field.name), field.type) for field in kind}
    if kinds.is_map(kind):
        if not isinstance(value, dict):
            raise Misfit(value)
        return [(name, fitted(inner, kind.item_type)) for name, inner in value.items()]
    if kinds.is_list(kind):
        if not isinstance(value, list):
            raise Misfit(value)
        return [fitted(inner, kind.value_type) for inner in value]
    scalar = _scalar(value, kind)
    try:
        pa.scalar(scalar, kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise Misfit(value) from error
    return scalar


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise Misfit(value) from error
    return text


def _scalar(value: Any, kind: pa.DataType) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kinds.is_boolean(kind):
        if isinstance(value, bool):
            return value
    elif kinds.is_integer(kind):
        if is_number and isinstance(value, int):
            return value
    elif kinds.is_floating(kind):
        if is_number:
            return float(value)
    elif kinds.is_decimal(kind):
        if is_number or isinstance(value, str):
            try:
                return Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale))
            except InvalidOperation as error:
                raise Misfit(value) from error
    elif kinds.is_binary(kind):
        if isinstance(value, str):
            return value.encode()
    elif isinstance(value, str):
        return _moment(value, kind)
    raise Misfit(value)


def _moment(text: str, kind: pa.DataType) -> date | datetime:
    """Parse a date or a timestamp; a timestamp without a zone is UTC."""
    try:
        if kinds.is_date(kind):
            return date.fromisoformat(text)
        if kinds.is_timestamp(kind):
            moment = datetime.fromisoformat(text)
            if kind.tz is None:
                return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except ValueError as error:
        raise Misfit(text) from error
    raise Misfit(text)
