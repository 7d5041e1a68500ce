"""Encode frozen dataclasses as JSON, and decode them: the types of the fields are the format.

==========================  ========================================================
a field of type             in JSON
==========================  ========================================================
`int`, `str`, `bool`        a number without a fraction, a string, true or false
a `StrEnum`                 the string of a member; any other is an error
``X | None``                null, or as X
``tuple[X, ...]``           a list
``tuple[X, Y]``             a list of two
a `NamedTuple`              a list; those at its end that have a default may be missing
``Mapping[int | str, X]``   an object; the names of its fields are decimal numbers, or strings
a dataclass                 an object
a union of dataclasses      an object whose field `op` names the dataclass
`bytes`                     nothing: the bytes behind the object and a zero byte
==========================  ========================================================

A field with a default is left out where it has that value, so its absence is its default.  Unknown
fields are ignored: a later version has added them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Any, ClassVar, NamedTuple, Protocol, Union, get_args, get_origin, get_type_hints

from martlet.log.record import BadRecord

SEPARATOR = b"\0"
"""Separates the JSON of an entry from the bytes behind it; no JSON contains it."""
_MAX_SHOWN = 80
"""The maximum length of a wrong value in an error text."""
Reader = Callable[[Any], Any]


class Shaped(Protocol):
    """A dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class _Layout(NamedTuple):
    """The layout of a dataclass in JSON."""

    op: str
    """Empty where it has none."""
    names: tuple[str, ...]
    """The names of the fields in JSON, in order."""
    defaults: tuple[object, ...]
    """Their defaults; `MISSING` for none."""
    values_of: Callable[[object], tuple[object, ...]]
    """Returns their values of a record."""
    tail: str
    """The name of the field behind the JSON; empty where there is none."""


class _Wrong(Exception):
    """A value has not its field's type."""

    def __init__(self, text: str, *path: str) -> None:
        super().__init__(text)
        self.path = list(path)
        """The names of the fields that lead to it, the innermost first."""


def _not(expected: str, value: object) -> _Wrong:
    return _Wrong(f"must be {expected}, not {repr(value)[:_MAX_SHOWN]}")


@cache
def _layout(shape: type[Shaped]) -> _Layout:
    hints = get_type_hints(shape)
    written = [f for f in fields(shape) if hints[f.name] is not bytes]
    names = tuple(f.name for f in written)
    values_of = attrgetter(*names) if len(names) > 1 else lambda r: (getattr(r, names[0]),)
    tail = next((name for name, hint in hints.items() if hint is bytes), "")
    defaults = tuple(f.default for f in written)
    return _Layout(getattr(shape, "op", ""), names, defaults, values_of, tail)


def _as_object(record: Shaped) -> dict[str, object]:
    op, names, defaults, values_of, _ = _layout(type(record))
    made = {
        name: value
        for name, default, value in zip(names, defaults, values_of(record), strict=True)
        if value is not default and value != default
    }
    return {"op": op, **made} if op else made


_encode_json = json.JSONEncoder(separators=(",", ":"), default=_as_object).encode


def encode(record: Shaped) -> bytes:
    """Encode a record."""
    tail = _layout(type(record)).tail
    text = _encode_json(record).encode()
    return text + SEPARATOR + getattr(record, tail) if tail else text


def decode(data: bytes, kind: Any, otherwise: type[Shaped] | None = None) -> Any:
    """Decode a record of a type, a dataclass or a union of dataclasses; `otherwise` is that for
    records with an op unknown to the union. Raises BadRecord, which names the op and the field.
    """
    text, _, packed = data.partition(SEPARATOR)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadRecord(f"a journal entry that is no JSON: {error}") from None
    shape = kind
    if not is_dataclass(kind):
        op = value.get("op") if type(value) is dict else None
        shape = _by_op(kind).get(op) or otherwise
        if shape is None:
            raise BadRecord(f"a journal entry of unknown op: {text[:_MAX_SHOWN]!r}")
    try:
        made = _reader(shape)(value)
    except _Wrong as error:
        name = ".".join(reversed(error.path))
        op = getattr(shape, "op", shape.__name__)
        raise BadRecord(f"journal entry {op!r}, field {name!r} {error}") from None
    tail = _layout(shape).tail
    if tail:
        object.__setattr__(made, tail, packed)
    return made


@cache
def _by_op(union: Any) -> dict[str | None, type[Shaped]]:
    return {shape.op: shape for shape in get_args(union)}


@cache
def _reader(kind: Any) -> Reader:
    """Return a function that converts parsed JSON to a value of a type, and raises _Wrong."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if kind in (int, str, bool):
        return _plain_reader(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _enum_reader(kind)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return _list_reader(_reader(arguments[0]))
        return _row_reader(tuple, [_reader(argument) for argument in arguments], 0)
    if origin in (Union, UnionType):
        return _union_reader(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_reader(arguments[0], _reader(arguments[1]))
    if isinstance(kind, type) and is_dataclass(kind):
        return _object_reader(kind)
    hints = get_type_hints(kind)
    readers = [_reader(hint) for hint in hints.values()]
    return _row_reader(lambda row: kind(*row), readers, len(kind._field_defaults))


def _plain_reader(kind: type) -> Reader:
    expected = {int: "a whole number", str: "a string", bool: "true or false"}[kind]

    def read(value: object) -> object:
        if type(value) is not kind:
            raise _not(expected, value)
        return value

    return read


def _enum_reader(kind: type[StrEnum]) -> Reader:
    by_value = {member.value: member for member in kind}

    def read(value: object) -> object:
        if type(value) is not str or value not in by_value:
            raise _not(f"one of {', '.join(by_value)}", value)
        return by_value[value]

    return read


def _list_reader(read_item: Reader) -> Reader:
    def read(value: object) -> tuple[object, ...]:
        if type(value) is not list:
            raise _not("a list", value)
        made = []
        for item in value:
            try:
                made.append(read_item(item))
            except _Wrong as error:
                error.path.append(str(len(made)))
                raise
        return tuple(made)

    return read


def _row_reader(make: Callable[[Any], Any], readers: list[Reader], optional: int) -> Reader:
    min_count = len(readers) - optional

    def read(value: object) -> object:
        if type(value) is not list or not min_count <= len(value) <= len(readers):
            raise _not(f"a list of {len(readers)}", value)
        row = []
        for read_item, item in zip(readers, value, strict=False):
            try:
                row.append(read_item(item))
            except _Wrong as error:
                error.path.append(str(len(row)))
                raise
        return make(row)

    return read


def _union_reader(union: Any) -> Reader:
    some = [kind for kind in get_args(union) if kind is not type(None)]
    if len(some) < len(get_args(union)):
        (kind,) = some
        read_value = _reader(kind)
        return lambda value: None if value is None else read_value(value)

    def read(value: object) -> object:
        op = value.get("op") if type(value) is dict else None
        shape = _by_op(union).get(op)
        if shape is None:
            raise _not("an entry of a known op", value)
        return _reader(shape)(value)

    return read


def _mapping_reader(key_kind: type, read_item: Reader) -> Reader:
    def read(value: object) -> dict[Any, object]:
        if type(value) is not dict:
            raise _not("an object", value)
        made = {}
        for name, item in value.items():
            if key_kind is int and not name.isdecimal():
                raise _not("an object by whole numbers", value)
            try:
                made[key_kind(name)] = read_item(item)
            except _Wrong as error:
                error.path.append(name)
                raise
        return made

    return read


def _object_reader(shape: type[Shaped]) -> Reader:
    hints = get_type_hints(shape)
    layout = _layout(shape)
    readers = [
        (name, default is MISSING, _reader(hints[name]))
        for name, default in zip(layout.names, layout.defaults, strict=True)
    ]

    def read(value: object) -> object:
        if type(value) is not dict:
            raise _not("an object", value)
        made = {}
        for name, is_required, read_value in readers:
            if name in value:
                try:
                    made[name] = read_value(value[name])
                except _Wrong as error:
                    error.path.append(name)
                    raise
            elif is_required:
                raise _Wrong("is missing", name)
        return shape(**made)

    return read
