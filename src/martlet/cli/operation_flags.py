"""The flags of a command that calls operations: those of their requests.

A field of a request is a flag of its name, with the limits, the help and the section that its class
declares. A time is written as a date, or how long ago it was, and its flag has no unit in its name.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

from msgspec import inspect

from martlet.cli.broker_http import BrokerHttpOptions
from martlet.options.checks import parse_time, require_action
from martlet.options.flag import Flag, OptionError, option
from martlet.schema.operation import Operation, OperationRequest, RequestT
from martlet.schema.read import (
    Refusal,
    check_fields,
    fields_of,
    help_of,
    is_position,
    read_request,
    type_of,
    words_of,
)
from martlet.text import MILLISECOND_NS

T = TypeVar("T", bound="RequestOptions")
R = TypeVar("R")
_TIME_FORMS = (
    ": 2026-01-31T12:00:00 in local time, with Z or +01:00 in another, seconds since 1970, or how"
    " long ago, as 90m"
)


class FieldFlag(NamedTuple):
    """The flag of a field of a request."""

    attribute: str
    name: str
    is_time: bool
    """Whether its value is the text of a time."""


@dataclass(frozen=True, kw_only=True)
class RequestOptions(BrokerHttpOptions):
    """The options of a command that calls one operation."""

    operations: ClassVar[Mapping[str, Operation[..., Any, Any]]] = {}
    """By the words of the actions."""
    field_flags: ClassVar[Mapping[str, FieldFlag]] = {}
    """By the names of requests' fields."""

    @classmethod
    def flags(cls) -> dict[str, Flag]:
        """Every flag by its name, those of a section together."""
        sections: dict[str, list[Flag]] = {}
        section = ""
        for flag in super().flags().values():
            section = flag.section or section
            if flag.field == "action":
                flag = dataclasses.replace(flag, help=f"one of {', '.join(cls.operations)}")
            title = "" if section in sections else section
            sections.setdefault(section, []).append(dataclasses.replace(flag, section=title))
        return {flag.name: flag for flags in sections.values() for flag in flags}

    def request(self, kind: type[RequestT], **fixed: object) -> RequestT:
        """Return the request that the flags make, but for fixed fields. Raises OptionError."""
        names = fields_of(kind)
        fields = self._values() | fixed
        values = {name: value for name, value in fields.items() if name in names}
        return self._spelled(lambda: read_request(kind, values))

    def _values(self) -> dict[str, Any]:
        """Return the fields of requests that are set. Raises OptionError."""
        values: dict[str, Any] = {}
        now_ns, defaults = time.time_ns(), self.defaults()
        for name, flag in self.field_flags.items():
            value = getattr(self, flag.attribute)
            if value == defaults[flag.attribute]:
                continue
            if flag.is_time and value:
                value = parse_time(flag.name, value, now_ns) // MILLISECOND_NS
            values[name] = list(value) if isinstance(value, tuple) else value
        return values

    def _spelled(self, read: Callable[[], R]) -> R:
        try:
            return read()
        except Refusal as refusal:
            raise OptionError(refusal.spelled(self._spell)) from None

    def _spell(self, name: str, value: str | None) -> str:
        flag = self.field_flags.get(name)
        return f"--{flag.name if flag else name}" + ("" if value is None else f"={value}")


@dataclass(frozen=True, kw_only=True)
class OperationOptions(RequestOptions):
    """The options of a command whose actions are operations."""

    action: str = option("", "one of these", section="what to do")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_action(self.action, self.operations)
        values = self._values()
        for operation in self.operations.values():
            self._spelled(partial(check_fields, operation.parameters, values))
        self.request(self.operations[self.action].parameters)


def with_flags_of(**operations: Operation[..., Any, Any]) -> Callable[[type[T]], type[T]]:
    """Give a class of options the flags of operations, but for those that it has itself, in
    whatever unit.
    """

    def add(kind: type[T]) -> type[T]:
        own = {_without_unit(name) for name in kind.__annotations__}
        fields: list[Any] = []
        field_flags: dict[str, FieldFlag] = {}
        for operation in operations.values():
            for name in fields_of(operation.parameters):
                if _without_unit(name) not in own and name not in field_flags:
                    made = _flag_of(operation.parameters, name, field_flags)
                    if made is not None:
                        field_flags[name], type_name, flag = made
                        fields.append((field_flags[name].attribute, type_name, flag))
        namespace = {
            "operations": operations,
            "field_flags": field_flags,
            "__doc__": kind.__doc__,
            "__module__": kind.__module__,
        }
        flags = dataclasses.make_dataclass(
            "Flags", fields, bases=kind.__bases__, frozen=True, kw_only=True
        )
        # In the order of the help: common flags, those of the requests, those of the command.
        made_kind: Any = type(kind.__name__, (kind, flags), namespace)
        options: type[T] = dataclass(frozen=True, kw_only=True)(made_kind)
        return options

    return add


def _without_unit(name: str) -> str:
    return name.removesuffix("_ns").removesuffix("_ms")


def _flag_of(
    request: type[OperationRequest], name: str, others: Mapping[str, FieldFlag]
) -> tuple[FieldFlag, str, Any] | None:
    """Return the flag of a field, its type as text, and the option; None where it has no flag."""
    field = fields_of(request)[name]
    kind, extra = type_of(field)
    if is_position(field):
        return None
    is_time = extra.get("kind") == "time"
    attribute = name.removesuffix("_ms") if is_time else name
    flag = FieldFlag(attribute, extra.get("flag") or attribute.replace("_", "-"), is_time)
    text = help_of(request).get(name, "")
    if words := words_of(field.type):
        text += f": {', '.join(words[:-1])} or {words[-1]}"
    if is_time and not any(other.is_time for other in others.values()):
        text += _TIME_FORMS
    limits: tuple[int | None, int | None] = (None, None)
    type_name, default = "str | None", None if field.required else field.default
    if isinstance(kind, inspect.BoolType):
        type_name = "bool"
    elif isinstance(kind, inspect.CollectionType):
        type_name, default = "tuple[str, ...]", ()
    elif isinstance(kind, inspect.IntType) and not is_time:
        type_name = "Size" if extra.get("kind") == "size" else "int | None"
        limits = kind.ge, kind.le
    section = next(
        base.section
        for base in reversed(request.__mro__)
        if issubclass(base, OperationRequest) and name in base.__struct_fields__
    )
    made = option(default, text, name=flag.name, limits=limits, section=section)
    return flag, type_name, made
