"""A flag: one option, with the name it has on a command line, in a config file and in Python.

A flag reads its value from text (``--msg-timeout=1m30s``) and from TOML
(``msg_timeout = "1m30s"``), and checks it against its limits.  Both readings are those of NSQ: a
command line or a file written for nsqd means the same here.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from martlet.text import MILLISECOND_NS, format_duration, parse_duration, parse_size


class OptionError(ValueError):
    """An option has a value that is not allowed; the text names both, and what is allowed."""


Size = int
"""A number of bytes, as the type of a field: ``4MiB`` on a command line."""


class FlagKind(StrEnum):
    """The kind of a flag's value."""

    STRING = "string"
    INT = "int"
    SIZE = "bytes"
    BOOL = "bool"
    DURATION = "duration"
    CHOICE = "choice"
    STRINGS = "list"
    FLOAT = "number"
    FLOATS = "floats"


_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def parse_bool(text: str) -> bool:
    """Read ``true``, ``false`` or one of the short forms that Go takes.

    Raises:
        ValueError: the text is neither.
    """
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError(f"{text!r} is neither true nor false")


_MAX_INT = 2**63 - 1
_NUMBER = re.compile(r"[+-]?(0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO]?[0-7_]+|[0-9][0-9_]*)")
_OCTAL = re.compile(r"\A([+-]?)0(?=[0-7_])")
_DECIMAL = re.compile(r"[+-]?[0-9]+")


def _parse_int(text: str) -> int:
    """Read a whole number as Go does from a flag: ``10``, ``1_000``, ``0x10``, ``017`` (15)."""
    try:
        if _NUMBER.fullmatch(text):
            return _in_range(int(_OCTAL.sub(r"\g<1>0o", text), 0), text)
    except ValueError as error:
        if "range" in str(error):
            raise
    raise ValueError(f"{text!r} is not a whole number")


def _parse_decimal(text: str) -> int:
    """Read a whole number as nsqd does from the text of a config file."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"{text!r} is not a whole number")
    return _in_range(int(text), text)


def _in_range(number: int, text: str) -> int:
    if not -_MAX_INT <= number <= _MAX_INT:
        raise ValueError(f"{text} is out of range; the largest number is {_MAX_INT}")
    return number


def _parse_size(text: str) -> int:
    return _parse_int(text) if _NUMBER.fullmatch(text) else parse_size(text)


def _parse_float(text: str) -> float:
    (number, *others) = _parse_floats(text)
    if others or not math.isfinite(number):
        raise ValueError(f"{text!r} is not a number such as 0.5")
    return number


def _parse_floats(text: str) -> tuple[float, ...]:
    try:
        if "_" in text or any(character.isspace() for character in text):
            raise ValueError
        return tuple(float(piece) for piece in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of numbers such as 1.0,0.99,0.95") from None


_PARSERS: dict[FlagKind, Callable[[str], object]] = {
    FlagKind.STRING: str,
    FlagKind.INT: _parse_int,
    FlagKind.SIZE: _parse_size,
    FlagKind.BOOL: parse_bool,
    FlagKind.DURATION: parse_duration,
    FlagKind.STRINGS: lambda text: (text,),
    FlagKind.FLOAT: _parse_float,
    FlagKind.FLOATS: _parse_floats,
}


_WRITE = {
    FlagKind.STRING: 'write "text"',
    FlagKind.INT: "write a whole number",
    FlagKind.SIZE: 'write a number of bytes, or "64MiB"',
    FlagKind.BOOL: "write true or false",
    FlagKind.DURATION: 'write "1m30s", or a number of milliseconds',
    FlagKind.STRINGS: 'write ["a", "b"]',
    FlagKind.FLOAT: "write a number such as 0.5",
    FlagKind.FLOATS: "write [1.0, 0.99]",
}
"""How a value is written in a config file."""


_KINDS = {
    "str": FlagKind.STRING,
    "str | None": FlagKind.STRING,
    "int": FlagKind.INT,
    "int | None": FlagKind.INT,
    "Size": FlagKind.SIZE,
    "bool": FlagKind.BOOL,
    "tuple[str, ...]": FlagKind.STRINGS,
    "float": FlagKind.FLOAT,
    "tuple[float, ...]": FlagKind.FLOATS,
}
"""The kind of a flag by the type of its field."""
_DURATION_SUFFIX = "_ns"


class Removed(str):
    """The value of a choice that is still accepted, but no longer shown in the help."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One option: its names, its kind, its limits and its help.

    Attributes:
        name: on the command line, without dashes: ``msg-timeout``.
        aliases: other names that mean the same.
        config_key: in a config file: ``msg_timeout``.
        field: in Python, a field of the options: ``msg_timeout_ns``.
        minimum, maximum: the limits of a number; None for none.
        choices: of a choice, the texts that may be written, each with its value.
        instead: of a flag that is accepted without effect, what happens instead.
        section: on the first flag of a section of the help, its title.
    """

    help: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    kind: FlagKind = FlagKind.CHOICE
    config_key: str = ""
    field: str = ""
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[tuple[str, object], ...] = ()
    instead: str = ""
    section: str = ""

    def for_field(self, field: str, type_name: str, separator: str) -> Flag:
        """Return the flag of a field, named after it unless it has a name of its own."""
        is_duration = field.endswith(_DURATION_SUFFIX)
        name = self.name or field.removesuffix(_DURATION_SUFFIX).replace("_", separator)
        return dataclasses.replace(
            self,
            name=name,
            kind=FlagKind.CHOICE
            if self.choices
            else FlagKind.DURATION
            if is_duration
            else _KINDS[type_name],
            config_key=self.config_key or name.replace("-", "_"),
            field=field,
        )

    def parse(self, text: str) -> Any:
        """Read a value from the text of a command line. Raises OptionError."""
        try:
            if self.kind is FlagKind.CHOICE:
                return self._choose(text)
            return _PARSERS[self.kind](text)
        except ValueError as error:
            raise OptionError(f"--{self.name}: {error}") from None

    def coerce(self, value: object) -> Any:
        """Read a value from an entry of a config file.

        As with nsqd, text is read as on a command line, and a plain number for a duration counts
        milliseconds.

        Raises:
            OptionError: it is not of the flag's kind.
        """
        try:
            coerced = self._coerce(value)
        except ValueError as error:
            raise OptionError(f"{self.config_key}: {error}") from None
        if coerced is None:
            raise OptionError(
                f"{self.config_key}: {value!r} cannot be a {self.kind}; {_WRITE[self.kind]}"
            )
        return coerced

    def _coerce(self, value: object) -> Any:
        kind = self.kind
        if kind is FlagKind.CHOICE:
            return self._choose(str(value))
        if kind is FlagKind.STRINGS:
            pieces = value.split(",") if isinstance(value, str) else value
            if isinstance(pieces, list) and all(isinstance(piece, str) for piece in pieces):
                return tuple(piece.strip() for piece in pieces)
        elif kind is FlagKind.FLOATS:
            pieces = value.split(",") if isinstance(value, str) else value
            pieces = pieces if isinstance(pieces, list) else [pieces]
            if not any(isinstance(piece, bool) for piece in pieces):
                return tuple(x for piece in pieces for x in _parse_floats(str(piece).strip()))
        elif isinstance(value, str):
            return (_parse_decimal if kind is FlagKind.INT else _PARSERS[kind])(value)
        elif isinstance(value, bool):
            return value if kind is FlagKind.BOOL else None
        elif isinstance(value, float):
            return value if kind is FlagKind.FLOAT else None
        elif isinstance(value, int):
            if kind is FlagKind.BOOL:
                return value == 0  # a slip of nsqd's, which files may have come to rely on
            if kind in (FlagKind.INT, FlagKind.SIZE, FlagKind.FLOAT):
                return value
            if kind is FlagKind.DURATION:
                return _in_range(value * MILLISECOND_NS, f"{value} ms in ns")
        return None

    def check(self, value: object) -> None:
        """Check that a value is within the limits, or one of the choices. Raises OptionError."""
        if self.choices and value not in [choice for _, choice in self.choices]:
            raise OptionError(f"--{self.name} is {value!r}; it must be one of {self._shown}")
        if not isinstance(value, int) or isinstance(value, bool):
            return
        low, high = self.minimum, self.maximum
        if (low is None or value >= low) and (high is None or value <= high):
            return
        if high is None:
            limit = f"at least {self.format(low)}"
        elif low is None:
            limit = f"at most {self.format(high)}"
        else:
            limit = f"between {self.format(low)} and {self.format(high)}"
        raise OptionError(f"--{self.name} is {self.format(value)}; it must be {limit}")

    def format(self, value: object) -> str:
        """Write a value as on a command line."""
        if self.kind is FlagKind.DURATION and isinstance(value, int):
            return format_duration(value)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple):
            return ",".join(str(piece) for piece in value)
        for text, choice in self.choices:
            if value == choice:
                return text
        return str(value)

    def _choose(self, text: str) -> object:
        for name, value in self.choices:
            if name == text.lower():
                return value
        raise ValueError(f"{text!r} is none of {self._shown}")

    @property
    def config_keys(self) -> tuple[str, ...]:
        """Its names in a config file, the usual one first."""
        return (self.config_key, *(name.replace("-", "_") for name in self.aliases))

    @property
    def _shown(self) -> str:
        return ", ".join(t for t, value in self.choices if t and not isinstance(value, Removed))


def option(
    default: object,
    description: str,
    *,
    name: str | tuple[str, ...] = "",
    config_key: str = "",
    limits: tuple[int | None, int | None] = (None, None),
    choices: tuple[tuple[str, object], ...] = (),
    instead: str = "",
    section: str = "",
) -> Any:
    """Make a dataclass field that is a flag.

    The field gives the flag its name and its kind: ``msg_timeout_ns: int`` is the duration
    ``--msg-timeout``, ``max_msg_size: Size`` a number of bytes.

    Args:
        default: the value without the flag; what can be called is a default factory.
        description: the text of ``--help``.
        name, config_key: where they do not follow from the field. Behind the first name may stand
            others, which mean the same.
        limits: the least and the greatest number; None for no limit.
        choices, instead, section: as those of `Flag`.
    """
    first, *aliases = (name,) if isinstance(name, str) else name
    flag = Flag(
        help=description,
        name=first,
        aliases=tuple(aliases),
        config_key=config_key,
        minimum=limits[0],
        maximum=limits[1],
        choices=choices,
        instead=instead,
        section=section,
    )
    metadata = {"flag": flag}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)
