"""The profile in the form of Go's pprof, for ``go tool pprof`` and whatever collects profiles.

A profile is a number of stacks, each with its counts.  In the binary form it is gzip around one
message of `profile.proto`_::

    Profile  = { 1 sample type: ValueType } { 2 Sample } { 4 Location } { 5 Function }
               { 6 string } 9 time_ns 10 duration_ns 11 period type: ValueType 12 period
    ValueType = 1 type: string 2 unit: string
    Sample   = 1 locations, innermost first  2 values
    Location = 1 id  4 Line
    Line     = 1 function  2 line
    Function = 1 id  2 name: string  3 system name: string  4 file: string

where a string is its place in the table of strings, and each field is a varint ``number << 3 | wire
type`` before its value: a varint (0), or a length and so many bytes (2).

.. _profile.proto: https://github.com/google/pprof/blob/main/proto/profile.proto
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import NamedTuple, TypeVar

_Key = TypeVar("_Key")


class CodeLocation(NamedTuple):
    """A line of a function."""

    function: str
    file: str
    line: int


Stack = tuple[CodeLocation, ...]
"""Where a program is, the innermost place first."""


class ValueType(NamedTuple):
    """What is counted, and in which unit."""

    name: str
    unit: str


@dataclass
class Profile:
    """Stacks and their counts.

    Attributes:
        types: what is counted; each stack has so many values.
        samples: the values of each stack.
        time_ns: when it began, since 1970.
        duration_ns: how long it took.
        period: of the last type, how much lies between two samples.
    """

    types: tuple[ValueType, ...]
    samples: dict[Stack, tuple[int, ...]] = field(default_factory=dict)
    time_ns: int = 0
    duration_ns: int = 0
    period: int = 1

    def add(self, stack: Stack, *values: int) -> None:
        """Count a stack once more."""
        before = self.samples.get(stack)
        if before is not None:
            values = tuple(map(sum, zip(before, values, strict=True)))
        self.samples[stack] = values

    def encode(self) -> bytes:
        """The profile as ``go tool pprof`` reads it."""
        strings = _StringTable({"": 0})
        functions: _StringTable[tuple[str, str]] = _StringTable()
        locations: _StringTable[CodeLocation] = _StringTable()
        out = bytearray()
        for kind in self.types:
            out += _field(1, _value_type(kind, strings))
        for stack, values in self.samples.items():
            ids = [locations[place] + 1 for place in stack]
            out += _field(2, _packed(1, ids) + _packed(2, values))
        for place, index in locations.items():
            function = functions[place.function, place.file] + 1
            line = _number(1, function) + _number(2, place.line)
            out += _field(4, _number(1, index + 1) + _field(4, line))
        for (name, file), index in functions.items():
            text = _number(2, strings[name]) + _number(3, strings[name])
            out += _field(5, _number(1, index + 1) + text + _number(4, strings[file]))
        period_type = _value_type(self.types[-1], strings)
        for string in strings:
            out += _field(6, string.encode(errors="replace"))
        out += _number(9, self.time_ns) + _number(10, self.duration_ns)
        out += _field(11, period_type) + _number(12, self.period)
        return gzip.compress(bytes(out), 1, mtime=0)

    def as_text(self, title: str) -> str:
        """The profile for a person: each stack once, the one with the most first."""
        total = sum(values[0] for values in self.samples.values())
        parts = [f"{title} profile: total {total}\n"]
        for stack, values in sorted(self.samples.items(), key=lambda item: item[1], reverse=True):
            parts.append(" ".join(map(str, values)) + " @\n" + as_lines(stack))
        return "\n".join(parts)


def as_lines(stack: Iterable[CodeLocation]) -> str:
    """A stack for a person, a line a place."""
    return "".join(f"#\t{place.function}\t{place.file}:{place.line}\n" for place in stack)


def stack_of(frame: FrameType | None) -> Stack:
    """Where a frame is, and what called it."""
    places: list[CodeLocation] = []
    while frame is not None:
        places.append(place_of(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(places)


def place_of(code: CodeType, line: int | None) -> CodeLocation:
    """A line of some code; a frame that is between two has none."""
    return CodeLocation(code.co_qualname, code.co_filename, line or code.co_firstlineno)


class _StringTable(dict[_Key, int]):
    """Numbers what it is asked for, from 0 on."""

    def __missing__(self, key: _Key) -> int:
        self[key] = number = len(self)
        return number


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _packed(number: int, values: Iterable[int]) -> bytes:
    return _field(number, b"".join(map(_varint, values)))


def _value_type(kind: ValueType, strings: _StringTable[str]) -> bytes:
    return _number(1, strings[kind.name]) + _number(2, strings[kind.unit])
