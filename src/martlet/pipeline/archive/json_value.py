"""Convert one JSON value to an Arrow type, by the rules of Spark's ``from_json``."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds


class Misfit(ValueError):
    """A value does not match the type."""


def fitted(value: Any, kind: pa.DataType) -> Any:
    """Convert a value so that `pyarrow.array` accepts it for a type.

    A string type accepts every value, as its JSON text; other types accept only their own values.

    Raises:
        Misfit: the value does not match the type, or is out of its range.
    """
    if value is None:
        return None
    if kinds.is_string(kind):
        return _text(value)
    if kinds.is_struct(kind):
        return _struct(value, kind)
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


def _struct(value: Any, kind: pa.DataType) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Misfit(value)
    return {field.name: fitted(value.get(field.name), field.type) for field in kind}


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
