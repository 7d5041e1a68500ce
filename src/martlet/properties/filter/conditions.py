"""Conditions: what a filter consists of, evaluated for one message or for all of a batch.

They follow SQL's logic of three values: a test of a property that a message does not have is
neither true nor false but unknown, and so is a comparison with a number where the value is no
number. A message passes if the filter is true for it::

    a AND b   true if both are     false if one is     otherwise unknown
    a OR b    true if one is       false if both are   otherwise unknown
    NOT a     true if a is false   false if a is true  otherwise unknown

For a batch, a condition says for which messages it is true, or for which it is false: only what is
asked for is evaluated. A test of a text is true of none if the text is nowhere in the entries; a
search of their bytes tells that sooner than their fields do.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from martlet.properties.filter.columns import (
    Bools,
    Property,
    PropertyColumn,
    PropertyColumns,
    number_of,
)
from martlet.properties.model import Bytes, fields

Values = Mapping[tuple[int, bytes], bytes]
"""The values of a message, by the kind and the name of their fields."""

MAX_TOPIC_BYTES = 255
"""A longer value matches no pattern, as AMQP has no longer routing key."""
_MAX_LITERALS = 8
"""More texts are not searched for in the bytes of all entries."""
_ROUNDED_FROM = 2.0**53
"""From here on a whole number may be rounded as a float."""


def values_of(entry: Bytes) -> Values:
    """Return the values of a message's packed properties."""
    return {(kind, name): value for kind, name, value in fields(entry)}


class Condition(ABC):
    """A condition on the properties of a message."""

    __slots__ = ()

    @abstractmethod
    def of(self, values: Values) -> bool | None:
        """Evaluate it for one message; None for unknown."""

    @abstractmethod
    def select(self, columns: PropertyColumns, truth: bool) -> Bools:
        """Return for which messages of a batch it is true, or for which it is false."""


@dataclass(frozen=True, slots=True)
class Constant(Condition):
    """TRUE or FALSE."""

    value: bool

    def of(self, values: Values) -> bool | None:
        """Evaluate it for one message; None for unknown."""
        return self.value

    def select(self, columns: PropertyColumns, truth: bool) -> Bools:
        """Return for which messages of a batch it is true, or for which it is false."""
        return np.full(len(columns), self.value is truth)


@dataclass(frozen=True, slots=True)
class And(Condition):
    """True if all conditions are."""

    conditions: tuple[Condition, ...]

    def of(self, values: Values) -> bool | None:
        """Evaluate it for one message; None for unknown."""
        is_known = True
        for condition in self.conditions:
            truth = condition.of(values)
            if truth is False:
                return False
            is_known = is_known and truth is not None
        return True if is_known else None

    def select(self, columns: PropertyColumns, truth: bool) -> Bools:
        """Return for which messages of a batch it is true, or for which it is false."""
        selected = self.conditions[0].select(columns, truth)
        for condition in self.conditions[1:]:
            if truth:
                if not selected.any():
                    break
                selected = selected & condition.select(columns, True)
            else:
                selected = selected | condition.select(columns, False)
        return selected


@dataclass(frozen=True, slots=True)
class Not(Condition):
    """True if the condition is false."""

    condition: Condition

    def of(self, values: Values) -> bool | None:
        """Evaluate it for one message; None for unknown."""
        truth = self.condition.of(values)
        return None if truth is None else not truth

    def select(self, columns: PropertyColumns, truth: bool) -> Bools:
        """Return for which messages of a batch it is true, or for which it is false."""
        return self.condition.select(columns, not truth)


def either(conditions: tuple[Condition, ...]) -> Condition:
    """Return the condition that one of some is true."""
    return conditions[0] if len(conditions) == 1 else Not(And(tuple(map(Not, conditions))))


@dataclass(frozen=True, slots=True)
class IsNull(Condition):
    """Whether a message does not have a property; never unknown."""

    property: Property

    def of(self, values: Values) -> bool | None:
        """Evaluate it for one message; None for unknown."""
        return self.property not in values

    def select(self, columns: PropertyColumns, truth: bool) -> Bools:
        """Return for which messages of a batch it is true, or for which it is false."""
        present = columns.of(self.property).present
        return ~present if truth else present


@dataclass(frozen=True, slots=True)
class Compared(Condition):
    """A comparison with a number."""

    property: Property
    operator: Callable[[Any, Any], Any]
    """Of the module of that name, such as ``operator.lt``."""
    number: int | float

    def of(self, values: Values) -> bool | None:
        """Evaluate it for one message; None for unknown."""
        text = values.get(self.property)
        number = None if text is None else number_of(text)
        return None if number is None else bool(self.operator(number, self.number))

    def select(self, columns: PropertyColumns, truth: bool) -> Bools:
        """Return for which messages of a batch it is true, or for which it is false."""
        column = columns.of(self.property)
        numbers, valid = column.numbers()
        rounded = float(self.number)
        true: Bools = valid & self.operator(numbers, rounded)
        if abs(rounded) >= _ROUNDED_FROM:
            # Rounding keeps the order, but may make different numbers equal.
            for row in np.flatnonzero(valid & (numbers == rounded)).tolist():
                true[row] = self.operator(column.exact_number(row), self.number)
        return true if truth else valid & ~true


@dataclass(frozen=True, slots=True)
class _TextTest(Condition):
    """A test of a property's text: the base of some conditions."""

    property: Property

    @abstractmethod
    def _holds(self, text: bytes) -> bool:
        """Return whether a text passes."""

    @abstractmethod
    def _literals(self) -> Sequence[bytes]:
        """Return bytes of which some are in the entry of each message that passes; none where that
        is not known.
        """

    @abstractmethod
    def _among(self, column: PropertyColumn) -> Bools:
        """Return which texts of a column pass; the others may be anything."""

    def of(self, values: Values) -> bool | None:
        """Evaluate it for one message; None for unknown."""
        text = values.get(self.property)
        return None if text is None else self._holds(text)

    def select(self, columns: PropertyColumns, truth: bool) -> Bools:
        """Return for which messages of a batch it is true, or for which it is false."""
        literals = self._literals()
        if truth and literals and not any(map(columns.contains, literals)):
            return np.zeros(len(columns), bool)
        column = columns.of(self.property)
        among = self._among(column)
        return column.present & (among if truth else ~among)


@dataclass(frozen=True, slots=True)
class IsOneOf(_TextTest):
    """Whether it is one of some texts."""

    texts: frozenset[bytes]

    def _holds(self, text: bytes) -> bool:
        return text in self.texts

    def _literals(self) -> Sequence[bytes]:
        if len(self.texts) > _MAX_LITERALS:
            return ()
        return [self.property.name + text for text in self.texts]

    def _among(self, column: PropertyColumn) -> Bools:
        return column.is_one_of(self.texts)


@dataclass(frozen=True, slots=True)
class StartsWith(_TextTest):
    """Whether it begins with a text."""

    text: bytes

    def _holds(self, text: bytes) -> bool:
        return text.startswith(self.text)

    def _literals(self) -> Sequence[bytes]:
        return (self.property.name + self.text,)

    def _among(self, column: PropertyColumn) -> Bools:
        return column.has_prefix(self.text)


@dataclass(frozen=True, slots=True)
class EndsWith(_TextTest):
    """Whether it ends with a text."""

    text: bytes

    def _holds(self, text: bytes) -> bool:
        return text.endswith(self.text)

    def _literals(self) -> Sequence[bytes]:
        return (self.text,)

    def _among(self, column: PropertyColumn) -> Bools:
        return column.has_suffix(self.text)


@dataclass(frozen=True, slots=True)
class Contains(_TextTest):
    """Whether it contains a text."""

    text: bytes

    def _holds(self, text: bytes) -> bool:
        return self.text in text

    def _literals(self) -> Sequence[bytes]:
        return (self.text,)

    def _among(self, column: PropertyColumn) -> Bools:
        return column.matching(self._holds)


@dataclass(frozen=True, slots=True)
class Matches(_TextTest):
    """Whether it matches a pattern of AMQP's topic exchange, such as ``orders.*.eu.#``."""

    pattern: bytes
    _prefix: bytes = field(init=False, compare=False, repr=False)
    _literal: bytes = field(init=False, compare=False, repr=False)
    _expression: re.Pattern[bytes] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        words = self.pattern.split(b".") if self.pattern else []
        wildcards = [index for index, word in enumerate(words) if word in (b"*", b"#")]
        fixed = words[: wildcards[0]] if wildcards else words
        prefix = b".".join(fixed)
        word = max((w for w in words if w not in (b"*", b"#")), key=len, default=b"")
        literal = word if len(word) > len(prefix) else self.property.name + prefix
        object.__setattr__(self, "_prefix", prefix)
        object.__setattr__(self, "_literal", literal)
        object.__setattr__(self, "_expression", re.compile(_topic_expression(words)))

    def _holds(self, text: bytes) -> bool:
        if len(text) > MAX_TOPIC_BYTES:
            return False
        return self._expression.fullmatch(b"." + text if text else b"") is not None

    def _literals(self) -> Sequence[bytes]:
        return (self._literal,)

    def _among(self, column: PropertyColumn) -> Bools:
        return column.matching(self._holds, column.has_prefix(self._prefix))


def _topic_expression(words: list[bytes]) -> bytes:
    """Return the regular expression of a pattern's words, for a text with a dot before each word.

    Between two ``#`` the earliest match is as good as any later one. So it is atomic, and the time
    is at most the product of both lengths.
    """
    runs: list[bytes] = [b""]
    for word in words:
        if word == b"#":
            runs.append(b"")
        else:
            runs[-1] += rb"\.[^.]*+" if word == b"*" else rb"\." + re.escape(word) + rb"(?![^.])"
    first, *middle = runs
    if not middle:
        return first
    last = middle.pop()
    skipped = rb"(?:\.[^.]*+)*"
    return first + b"".join(b"(?>%s?%s)" % (skipped, run) for run in middle) + skipped + last


@dataclass(frozen=True, slots=True)
class IsBoolean(Condition):
    """Whether it is ``true``, or ``false``, in letters of any case; unknown for other texts."""

    property: Property
    value: bool

    def of(self, values: Values) -> bool | None:
        """Evaluate it for one message; None for unknown."""
        text = values.get(self.property, b"").lower()
        if text not in (b"true", b"false"):
            return None
        return (text == b"true") == self.value

    def select(self, columns: PropertyColumns, truth: bool) -> Bools:
        """Return for which messages of a batch it is true, or for which it is false."""
        word = b"true" if self.value is truth else b"false"
        return columns.of(self.property).matching(lambda text: text.lower() == word)
