"""Properties as columns: one property of many messages of a batch, found without a loop over them.

The entries of a block (see `martlet.properties.block`) are walked side by side: the first field of
each, the second of those that have one, and so on. A column points into the entries::

    entries   | tag red | eu 1 || eu 0 || tag red | us 7 | eu 22 |
    column eu    ^ start 11, 1      ^ start 19, 1           ^ start 40, 2

A comparison gathers the bytes of all values of one length as numpy's fixed-length strings. Those
drop zeros at their end, which is exact here: of strings of equal length, no two differ in that
alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from martlet.properties.block import Block
from martlet.properties.model import BadProperties, Field

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

MAX_NUMBER_BYTES = 64
"""A longer text is no number."""
_HEAD_BYTES = 4
_MAX_ROUNDS = 32
"""Fields of a message that are walked side by side with the others'; further ones by themselves."""
_MAX_EXACT_DIGITS = 15
"""A whole number of this many digits is a float without rounding."""
_PADDING = bytes(MAX_NUMBER_BYTES)
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(rb"[+-]?[0-9]+")
_IN_NUMBERS = np.zeros(256, bool)
_IN_NUMBERS[list(b"0123456789+-.eE")] = True


class Property(NamedTuple):
    """A property that a filter tests, by the kind of its field."""

    kind: Field
    name: bytes = b""
    """Of a header, in UTF-8; empty for others."""


TAG = Property(Field.TAG)


def number_of(text: bytes) -> int | float | None:
    """Return the number that a text is; None where it is none."""
    if len(text) > MAX_NUMBER_BYTES or not _NUMBER.fullmatch(text):
        return None
    return int(text) if _WHOLE.fullmatch(text) else float(text)


class PropertyColumn:
    """The values of one property.

    Args:
        raw: the bytes that the values are in, and `MAX_NUMBER_BYTES` more.
        starts: where each message's value begins.
        lengths: its length; -1 where a message has no such property.
    """

    __slots__ = ("_lengths", "_numbers", "_raw", "_starts", "present")

    def __init__(self, raw: npt.NDArray[np.uint8], starts: Int64s, lengths: Int64s) -> None:
        self._raw = raw
        self._starts = starts
        self._lengths = lengths
        self._numbers: tuple[Float64s, Bools] | None = None
        self.present: Bools = lengths >= 0
        """Which messages have the property."""

    def is_one_of(self, texts: Collection[bytes]) -> Bools:
        """Return which values are one of some texts."""
        matches = np.zeros(len(self._lengths), bool)
        for length in {len(text) for text in texts}:
            rows = np.flatnonzero(self._lengths == length)
            some = [text for text in texts if len(text) == length]
            if length and len(rows):
                values = _strings(self._raw, self._starts[rows], length)
                matches[rows] = values == some[0] if len(some) == 1 else np.isin(values, some)
            else:
                matches[rows] = True
        return matches

    def has_prefix(self, text: bytes) -> Bools:
        """Return which values begin with a text."""
        return self._has(text, self._starts)

    def has_suffix(self, text: bytes) -> Bools:
        """Return which values end with a text."""
        return self._has(text, self._starts + self._lengths - len(text))

    def _has(self, text: bytes, positions: Int64s) -> Bools:
        matches = self._lengths >= len(text)
        rows = np.flatnonzero(matches)
        if text and len(rows):
            matches[rows] = _strings(self._raw, positions[rows], len(text)) == text
        return matches

    def matching(self, test: Callable[[bytes], bool], among: Bools | None = None) -> Bools:
        """Return which values pass a test, made once for each different value."""
        rows = np.flatnonzero(self.present if among is None else among)
        starts = self._starts[rows]
        stops = (starts + self._lengths[rows]).tolist()
        data, outcomes = self._raw.data, dict[bytes, bool]()
        results = []
        for start, stop in zip(starts.tolist(), stops, strict=True):
            text = bytes(data[start:stop])
            result = outcomes.get(text)
            if result is None:
                result = outcomes[text] = test(text)
            results.append(result)
        matches = np.zeros(len(self._lengths), bool)
        matches[rows] = results
        return matches

    def numbers(self) -> tuple[Float64s, Bools]:
        """Return the values as numbers, whole ones rounded, and which of them are numbers."""
        if self._numbers is None:
            self._numbers = self._read_numbers()
        return self._numbers

    def _read_numbers(self) -> tuple[Float64s, Bools]:
        numbers = np.zeros(len(self._lengths))
        valid = (self._lengths > 0) & (self._lengths <= MAX_NUMBER_BYTES)
        rows = np.flatnonzero(valid)
        if not len(rows):
            return numbers, valid
        lengths = self._lengths[rows]
        width = int(lengths.max())
        texts = _strings(self._raw, self._starts[rows], width)
        letters = texts.view(np.uint8).reshape(-1, width)
        behind = np.arange(width) >= lengths[:, None]
        digits = letters - np.uint8(ord("0"))
        if width <= _MAX_EXACT_DIGITS and ((digits < 10) | behind).all():
            exact = np.zeros(len(rows))
            for digit, is_behind in zip(digits.T, behind.T, strict=True):
                exact = np.where(is_behind, exact, exact * 10 + digit)
            numbers[rows] = exact
            return numbers, valid
        good = (_IN_NUMBERS[letters] | behind).all(axis=1)
        letters[behind] = 0
        valid[rows] = good
        try:
            numbers[rows[good]] = texts[good].astype(np.float64)
        except ValueError:  # One of them, such as 1-2, is none: read one by one.
            for row, text in zip(rows[good].tolist(), texts[good].tolist(), strict=True):
                number = number_of(text)
                valid[row] = number is not None
                numbers[row] = number or 0
        return numbers, valid

    def exact_number(self, row: int) -> int | float | None:
        """Return one value as a number, not rounded; None where it is none."""
        start, length = int(self._starts[row]), int(self._lengths[row])
        return number_of(bytes(self._raw.data[start : start + max(length, 0)]))


def _strings(raw: npt.NDArray[np.uint8], positions: Int64s, length: int) -> npt.NDArray[np.bytes_]:
    """Gather the bytes of some length from each position."""
    at_each = np.ndarray((len(raw) - length + 1,), f"S{length}", raw.data, 0, (1,))
    texts: npt.NDArray[np.bytes_] = at_each[positions]
    return texts


class EntryFields(NamedTuple):
    """The fields of all entries, those of one entry in their order."""

    rows: Int64s
    """The entry of each."""
    ids: npt.NDArray[Any]
    """Its kind, and the length of its name << 8."""
    names: Int64s
    """Where its name begins."""
    lengths: Int64s
    """Of its value."""


class PropertyColumns:
    """The columns of some messages of a block, each made when it is first asked for.

    The messages are at least one, by rising indexes of the block's numbers. Raises BadProperties:
    an entry is cut in the middle of a field.
    """

    def __init__(self, block: Block, numbers: Int64s) -> None:
        ends = block.ends[numbers].astype(np.int64)
        starts = np.where(numbers > 0, block.ends[numbers - 1], 0).astype(np.int64)
        base = int(starts[0])
        self._starts = starts - base
        self._stops = ends - base
        self._data = b"".join((block.entries[base : ends[-1]], _PADDING))
        self._raw = np.frombuffer(self._data, np.uint8)
        self._columns: dict[Property, PropertyColumn] = {}
        self._fields: EntryFields | None = None

    def __len__(self) -> int:
        return len(self._starts)

    def contains(self, literal: bytes) -> bool:
        """Whether some bytes are anywhere in the entries."""
        return literal in self._data

    def of(self, tested: Property) -> PropertyColumn:
        """Return the column of a property; the last value counts where a message has several."""
        column = self._columns.get(tested)
        if column is None:
            column = self._columns[tested] = self._find(tested)
        return column

    def _find(self, tested: Property) -> PropertyColumn:
        if self._fields is None:
            self._fields = fields_of(self._data, self._starts, self._stops)
        fields = self._fields
        size = len(tested.name)
        numbers = np.flatnonzero(fields.ids == tested.kind | size << 8)
        if size and len(numbers):
            numbers = numbers[_strings(self._raw, fields.names[numbers], size) == tested.name]
        starts, lengths = np.zeros_like(self._starts), np.full_like(self._starts, -1)
        rows = fields.rows[numbers]
        starts[rows] = fields.names[numbers] + size
        lengths[rows] = fields.lengths[numbers]
        return PropertyColumn(self._raw, starts, lengths)


def fields_of(data: Any, starts: Int64s, stops: Int64s) -> EntryFields:
    """Find the fields of the entries that begin and end at these bytes of a buffer, which is longer
    than they are. Raises BadProperties: an entry is cut in the middle of a field.
    """
    # The head of a field, read at any byte: kind u8, name length u8, value length u16.
    at_each = memoryview(data).nbytes - _HEAD_BYTES
    name_lengths = np.ndarray((at_each,), "u1", data, 1, (1,))
    value_lengths = np.ndarray((at_each,), "<u2", data, 2, (1,))
    rows = np.flatnonzero(starts < stops)
    positions, ends = starts[rows], stops[rows]
    rounds: list[tuple[Int64s, Int64s]] = []
    while len(rows):
        if len(rounds) == _MAX_ROUNDS:
            view = memoryview(data)
            for row, position, end in zip(rows.tolist(), positions, ends.tolist(), strict=True):
                rounds.append(_rest_of(view, row, int(position), end))
            break
        rounds.append((rows, positions))
        positions = positions + name_lengths[positions] + value_lengths[positions] + _HEAD_BYTES
        goes_on = positions < ends
        if not goes_on.all():
            rows, positions, ends = rows[goes_on], positions[goes_on], ends[goes_on]
    if not rounds:
        return EntryFields(rows, rows, rows, rows)
    rows, positions = map(np.concatenate, zip(*rounds, strict=True))
    lengths = value_lengths[positions].astype(np.int64)
    names = positions + _HEAD_BYTES
    if (names + name_lengths[positions] + lengths > stops[rows]).any():
        raise BadProperties("properties that are cut in the middle of a field")
    ids = np.ndarray((at_each,), "<u2", data, 0, (1,))[positions]
    return EntryFields(rows, ids, names, lengths)


def _rest_of(data: memoryview, row: int, position: int, end: int) -> tuple[Int64s, Int64s]:
    """Find the rest of the fields of an entry of very many."""
    positions = []
    while position < end:
        positions.append(position)
        length = int.from_bytes(data[position + 2 : position + _HEAD_BYTES], "little")
        position += _HEAD_BYTES + data[position + 1] + length
    return np.full(len(positions), row), np.array(positions)
