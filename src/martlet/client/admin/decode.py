"""Read a broker's JSON into dataclasses.

A field is read from the JSON field of its name, or of the name in its metadata (`named`). A field
without a default must be there. What this version does not know is kept in `Described.fields`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

Fields = Mapping[str, Any]
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError)
"""The errors of reading an unexpected answer."""
_MAX_NUMBER = (1 << 64) - 1
"""No counter of a broker is larger, and no time."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """The base of what a broker describes.

    Attributes:
        fields: the broker's JSON object, with what this version may not know.
    """

    fields: Fields = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, answer: Any) -> Self:
        """Read a broker's JSON object. Raises ValueError where it is another one."""
        kind: Any = cls
        result: Self = _reader(kind)(answer)
        return result


def named(name: str, **options: Any) -> Any:
    """Declare a field with another name in JSON."""
    return field(metadata={"name": name}, **options)


class _FieldReader(NamedTuple):
    name: str
    json_name: str
    read: Callable[[Any], Any]
    is_required: bool


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return the function that reads a type."""
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        item = _reader(arguments[0])
        return lambda value: tuple(map(item, _checked(list, value))) if value else ()
    if isinstance(origin, type) and issubclass(origin, Mapping):
        item = _reader(arguments[1])
        return lambda value: {key: item(inner) for key, inner in _checked(dict, value).items()}
    if origin in (Union, UnionType):
        (inner,) = (_reader(argument) for argument in arguments if argument is not NoneType)
        return lambda value: None if value is None else inner(value)
    if kind is Any:
        return lambda value: value
    if kind is float:
        return lambda value: float(_checked((int, float), value))
    if kind is int:
        return _read_int
    return lambda value: _checked(kind, value)


def _dataclass_reader(kind: Any) -> Callable[[Any], Any]:
    readers = list(_field_readers(kind))
    keeps_fields = issubclass(kind, Described)

    def read_one(value: Any) -> Any:
        fields: Fields = _checked(dict, value)
        values: dict[str, Any] = {"fields": fields} if keeps_fields else {}
        for name, json_name, read, is_required in readers:
            if json_name in fields:
                try:
                    values[name] = read(fields[json_name])
                except ValueError as error:
                    raise ValueError(f"{json_name}: {error}") from None
            elif is_required:
                raise ValueError(f"{json_name} is missing")
        return kind(**values)

    return read_one


def _field_readers(kind: Any) -> Iterator[_FieldReader]:
    types = get_type_hints(kind)
    for declared in dataclasses.fields(kind):
        if declared.name == "fields" and issubclass(kind, Described):
            continue
        is_required = declared.default is MISSING and declared.default_factory is MISSING
        json_name = declared.metadata.get("name", declared.name)
        yield _FieldReader(declared.name, json_name, _reader(types[declared.name]), is_required)


def _read_int(value: Any) -> Any:
    # Most fields are counts, of which thousands of topics have many.
    if type(value) is int and -_MAX_NUMBER <= value <= _MAX_NUMBER:
        return value
    return _checked(int, value)


def _checked(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{str(value)[:40]!r} is unexpected")
    if isinstance(value, (int, float)) and not abs(value) <= _MAX_NUMBER:  # as NaN is
        raise ValueError(f"{value:.3g} is too large" if isinstance(value, float) else "too large")
    return value
