"""Options: what a command is started with, a frozen dataclass whose fields are flags.

The one dataclass makes the command line, the config file and their help; what exists of it is
valid.  Options that several commands share are a base class of theirs, and the bases from last to
first give the order of the help.  A base that no command has alone gets no methods of a dataclass:
to make them at each start takes time.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar, Self

from martlet.options.flag import Flag, option


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a command.

    Raises:
        OptionError: a value is out of its limits, is missing, or does not go with another.
    """

    separator: ClassVar[str] = "-"
    """Stands between the words of a flag's name."""

    def __post_init__(self) -> None:
        for flag in self.flags().values():
            flag.check(getattr(self, flag.field))

    @classmethod
    def flags(cls) -> dict[str, Flag]:
        """Every flag by its name on the command line, in the order of the help."""
        kind: Any = cls  # mypy takes the class for its unhashable instances
        return _flags_of(kind)

    @classmethod
    def flag(cls, name: str) -> Flag | None:
        """The flag of that name, or with that alias; None for none."""
        kind: Any = cls
        return _names_of(kind).get(name)

    @classmethod
    def defaults(cls) -> dict[str, object]:
        """The default of each option, by field."""
        kind: Any = cls
        return _defaults_of(kind)

    def without_effect(self) -> list[tuple[Flag, object]]:
        """The flags that are set to another value than the default, and do nothing here."""
        return [
            (flag, getattr(self, flag.field))
            for flag in self.flags().values()
            if flag.instead and getattr(self, flag.field) != self.defaults()[flag.field]
        ]

    def replace(self, **changes: Any) -> Self:
        """The same options but for those named, checked again."""
        return dataclasses.replace(self, **changes)


@cache
def _flags_of(kind: type[Options]) -> dict[str, Flag]:
    flags = [
        entry.metadata["flag"].for_field(entry.name, str(entry.type), kind.separator)
        for entry in dataclasses.fields(kind)
        if "flag" in entry.metadata
    ]
    return {flag.name: flag for flag in flags}


@cache
def _names_of(kind: type[Options]) -> dict[str, Flag]:
    flags = kind.flags().values()
    return {name: flag for flag in flags for name in (flag.name, *flag.aliases)}


@cache
def _defaults_of(kind: type[Options]) -> dict[str, object]:
    return {
        entry.name: entry.default
        if entry.default_factory is dataclasses.MISSING
        else entry.default_factory()
        for entry in dataclasses.fields(kind)
    }


class LogLevel(IntEnum):
    """A level of logging; the numbers are nsqd's."""

    DEBUG = 1
    INFO = 2
    WARN = 3
    ERROR = 4
    FATAL = 5

    @property
    def for_logging(self) -> int:
        """The same level in the ``logging`` module."""
        return 10 * self


@dataclass(frozen=True, kw_only=True)
class LogOptions(Options):
    """Options of log lines."""

    log_level: LogLevel = option(
        LogLevel.INFO,
        "how much to log: debug, info, warn, error or fatal",
        choices=tuple((level.name.lower(), level) for level in LogLevel),
        section="log lines",
    )
    log_prefix: str = option("[martlet] ", "what each log line begins with")
