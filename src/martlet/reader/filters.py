"""Filters on the columns of a topic: which queues, batches and messages can match.

A filter is an expression of pyarrow.  Arrow decides from what holds of a queue or of some batches,
the guarantee, whether any of their messages can match: `pyarrow.dataset` leaves files out like
that, and here the files are only names, never opened::

    offset > 500 and tag = "new"    offset >= 0 and offset < 400      cannot match
                                    offset >= 400 and offset < 800    may match

A message is never stored later than its batch, but may say an earlier time: delayed messages and
those imported from nsqd keep the time at which they were published.  So the index leaves out
batches that are too old for a filter, and none that is too new.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import acero
from pyarrow.fs import LocalFileSystem

from martlet.log.index import Rows
from martlet.reader.offset_bound import parse_timestamp
from martlet.reader.offsets import QueueKey, Span
from martlet.reader.schema import all_columns

_LAST_OFFSET = (1 << 63) - 2
_LAST_MICROSECOND = (1 << 63) // 1000
_PARTS = 32
"""Into how many parts a search cuts a range at once."""
_MAX_TESTS = 20_000
"""Guarantees to test while a query is planned, of 10 us each, about."""
_MIN_TESTS_A_QUEUE = 64

FilterTerms = Sequence[tuple[str, str, Any]] | Sequence[list[tuple[str, str, Any]]]
_COMPARE: Mapping[str, Callable[[pc.Expression, pa.Scalar], pc.Expression]] = {
    "=": lambda column, value: column == value,
    "==": lambda column, value: column == value,
    "!=": lambda column, value: column != value,
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
}


class RowFilter:
    """A filter of messages, or of the rows of another view. It can be pickled.

    Attributes:
        expression: the condition; rows for which it is null do not match.
        columns: the columns that it needs.

    Raises:
        ValueError: it does not fit the view's columns.
    """

    def __init__(self, expression: pc.Expression, view: str = "messages") -> None:
        self.expression = expression
        schema = all_columns(view)
        if "FieldPath(" in str(expression):
            raise ValueError(f"filter {expression}: name columns, and do not number them")
        try:
            self.mask(schema.empty_table())
        except (pa.ArrowException, TypeError) as error:
            names = ", ".join(schema.names)
            problem = str(error).partition("\n")[0]
            raise ValueError(f"filter {expression}: {problem}; the columns are {names}") from error
        self.columns = tuple(name for name in schema.names if self._needs(name, schema))

    def _needs(self, name: str, schema: pa.Schema) -> bool:
        try:
            self.mask(schema.remove(schema.get_field_index(name)).empty_table())
        except pa.ArrowInvalid:
            return True
        return False

    def mask(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Whether each row matches."""
        plan = [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions([self.expression])),
        ]
        # One thread keeps the order.
        answer = acero.Declaration.from_sequence(plan).to_table(use_threads=False).column(0)
        if not pa.types.is_boolean(answer.type):
            raise TypeError(f"it is of type {answer.type}, and no condition")
        matches: npt.NDArray[np.bool_] = answer.fill_null(False).to_numpy()
        return matches

    def matching(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """The rows of a batch that match, with these columns of it."""
        matches = pa.array(self.mask(pa.Table.from_batches([batch])))
        return batch.select(schema.names).filter(matches)

    def widened(self, schema: pa.Schema, view: str) -> pa.Schema:
        """A schema with the columns that the filter needs added."""
        columns = all_columns(view)
        missing = [name for name in self.columns if name not in schema.names]
        return pa.schema([*schema, *(columns.field(name) for name in missing)])

    def may_match(
        self, guarantees: Iterable[pc.Expression], *, inverted: bool = False
    ) -> npt.NDArray[np.bool_]:
        """Whether any message can match, by what holds of all of them.

        Args:
            inverted: whether any message can be one for which the condition is false.
        """
        files = [
            _FORMAT.make_fragment(str(number), _FILES, partition_expression=guarantee)
            for number, guarantee in enumerate(guarantees)
        ]
        matches = np.zeros(len(files), np.bool_)
        if files:
            schema = pa.unify_schemas([all_columns("messages"), all_columns("batches")])
            named = ds.FileSystemDataset(files, schema, _FORMAT, _FILES)
            expression = ~self.expression if inverted else self.expression
            numbers = [int(file.path) for file in named.get_fragments(expression)]
            matches[numbers] = True
        return matches

    def clipped(
        self, spans: Iterable[Span], first_since: Callable[[Span, int], int]
    ) -> Iterator[Span]:
        """Yield the spans of the queues that can match, without the offsets before and behind those
        that can.

        Args:
            first_since: the first offset of a span in a batch stored at or after a time in us.
        """
        here = list(spans)
        possible = self.may_match(_of_queue(span.key) for span in here)
        low, high = self._offsets() if "offset" in self.columns else (0, _LAST_OFFSET)
        since_us = self._earliest_us() if "timestamp" in self.columns else 0
        for number in np.flatnonzero(possible).tolist():
            key, start, end = here[number]
            span = Span(key, max(start, low), min(end, high))
            if span.start < span.end and since_us:
                span = span._replace(start=max(span.start, first_since(span, since_us)))
            if span.start < span.end:
                yield span

    def _offsets(self) -> tuple[int, int]:
        """The first offset that can match, and the one behind the last; in any queue."""
        offset = pc.field("offset")
        low = _first(lambda n: self.may_match(offset <= top for top in n), 0, _LAST_OFFSET)
        behind = _first(
            lambda n: self.may_match(offset >= _LAST_OFFSET - below for below in n), 0, _LAST_OFFSET
        )
        return low, _LAST_OFFSET - behind + 1

    def _earliest_us(self) -> int:
        """The earliest time that can match, in us since 1970."""
        return _first(
            lambda times: self.may_match(_until(time_us) for time_us in times), 0, _LAST_MICROSECOND
        )

    def pieces(self, indexed: Sequence[tuple[Span, Rows]]) -> Iterator[tuple[Span, Rows]]:
        """Yield the parts of spans that can match, given the index rows of each. A gap in the
        offsets belongs to the batch behind it.
        """
        if not {"offset", "timestamp"} & set(self.columns):
            yield from indexed
            return
        max_tests = max(_MIN_TESTS_A_QUEUE, _MAX_TESTS // max(1, len(indexed)))
        for (key, start, end), rows in indexed:
            ends = (rows["first_offset"] + rows["count"]).astype(np.int64)
            for first, behind in self._row_ranges(key, rows, ends, max_tests):
                begin = start if first == 0 else max(start, int(ends[first - 1]))
                until = end if behind == len(rows) else min(end, int(ends[behind - 1]))
                if begin < until:
                    yield Span(key, begin, until), rows[first:behind]

    def _row_ranges(
        self, key: QueueKey, rows: Rows, ends: npt.NDArray[np.int64], max_tests: int
    ) -> list[tuple[int, int]]:
        """Find the ranges of index rows that can match: cut those that may, and test the parts."""
        queue = _of_queue(key)

        def guarantee(first: int, behind: int) -> pc.Expression:
            offset = pc.field("offset")
            stored_at_us = int(rows["stored_at_ns"][first:behind].max()) // 1000
            low, high = int(rows["first_offset"][first]), int(ends[behind - 1])
            return queue & (offset >= low) & (offset < high) & _until(stored_at_us)

        done: list[tuple[int, int]] = []
        todo = [(0, len(rows))] if len(rows) else []
        if not len(rows):
            return [(0, 0)]
        while todo:
            guarantees = [guarantee(*part) for part in todo]
            possible = self.may_match(guarantees)
            mixed = self.may_match(guarantees, inverted=True)
            max_tests -= 2 * len(todo)
            parts: list[tuple[int, int]] = []
            for part, may, is_mixed in zip(todo, possible, mixed, strict=True):
                if may and is_mixed and part[1] - part[0] > 1:
                    parts += _parts(*part)
                elif may:
                    done.append(part)
            if len(parts) > max_tests:
                done += parts
                parts = []
            todo = parts
        return _joined(sorted(done))


_FORMAT = ds.IpcFileFormat()
_FILES = LocalFileSystem()


def filter_of(given: pc.Expression | FilterTerms, view: str = "messages") -> RowFilter:
    """A filter of an expression of pyarrow, or of terms as `pandas.read_parquet` takes them:
    ``[("tag", "=", "new"), ("offset", ">", 500)]``, all of which must hold, or a list of such
    lists, of which one must hold.

    A time is a datetime with a zone, or a text such as ``now-1h``. Raises ValueError.
    """
    if isinstance(given, pc.Expression):
        return RowFilter(given, view)
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise ValueError(_wrong(given))
    is_nested = isinstance(given[0], list) and _is_nested(given)
    alternatives: Sequence[Any] = given if is_nested else [given]
    expression = None
    for terms in alternatives:
        every = None
        for term in terms:
            if isinstance(term, str) or not isinstance(term, Sequence) or len(term) != 3:
                raise ValueError(_wrong(term))
            name, sign, value = term
            condition = _condition(name, sign, value, view)
            every = condition if every is None else every & condition
        if every is None:
            raise ValueError(_wrong(given))
        expression = every if expression is None else expression | every
    return RowFilter(expression, view)


def parse_filter(text: str, view: str = "messages") -> RowFilter:
    """Parse the option filter: terms as `filter_of` takes them, in JSON. Raises ValueError."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"option filter: {text[:200]!r} is no JSON: {error}") from None
    try:
        return filter_of(given, view)
    except ValueError as error:
        raise ValueError(f"option {error}") from None


def _is_nested(given: Sequence[Any]) -> bool:
    return not isinstance(given[0][0], str) if given[0] else False


def _wrong(given: object) -> str:
    return (
        f"filter: {str(given)[:200]!r} is neither an expression of pyarrow nor a list of terms such"
        ' as ["tag", "=", "new"]'
    )


def _condition(name: object, sign: object, value: Any, view: str) -> pc.Expression:
    columns = all_columns(view)
    if name not in columns.names:
        raise ValueError(f"filter: no column {name!r}; there are {', '.join(columns.names)}")
    kind = columns.field(name).type
    column = pc.field(name)
    if value is None:
        if sign in ("=", "=="):
            return column.is_null()
        if sign == "!=":
            return column.is_valid()
    elif sign in _COMPARE:
        return _COMPARE[str(sign)](column, typed(value, kind))
    elif sign in ("in", "not in") and isinstance(value, list | tuple | set | frozenset):
        values = pa.array([typed(one, kind) for one in value], kind)
        # A null is in no list, and not outside of one either.
        return column.isin(values) if sign == "in" else column.is_valid() & ~column.isin(values)
    raise ValueError(
        f"filter: {name} {sign} {value!r} is no term: =, !=, <, <=, > and >= take a value, = and !="
        " also null, in and not in a list"
    )


def typed(value: object, kind: pa.DataType) -> pa.Scalar:
    """A value of a column's type. Raises ValueError."""
    if pa.types.is_timestamp(kind):
        if isinstance(value, str):
            value = _since_us(value)
        elif isinstance(value, datetime) and value.tzinfo is None:
            raise ValueError(f"filter: {value} has no zone")
    if pa.types.is_binary(kind) and isinstance(value, str):
        value = value.encode()
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ValueError(f"filter: {value!r} is no {kind}: {error}") from None


def _since_us(text: str) -> int:
    """Microseconds since 1970 of a time as a starting timestamp has it. Raises ValueError."""
    point = parse_timestamp("filter", text).everywhere
    assert point is not None
    time_ns = point.time_ns if point.ago_ns is None else time.time_ns() - point.ago_ns
    assert time_ns is not None
    return time_ns // 1000


def _of_queue(key: QueueKey) -> pc.Expression:
    """What holds of all messages of a queue."""
    same_queue = pc.field("partition") == pa.scalar(key.queue, pa.int32())
    return same_queue & (pc.field("topic") == key.topic) & (pc.field("broker") == key.broker)


def _until(time_us: int) -> pc.Expression:
    """What holds of all messages of batches that were stored no later than that."""
    return pc.field("timestamp") <= pa.scalar(time_us, pa.timestamp("us", "UTC"))


def _first(holds: Callable[[Sequence[int]], npt.NDArray[np.bool_]], first: int, end: int) -> int:
    """The first number for which something holds, as it does for all behind it; else `end`."""
    while first < end:
        numbers = [first + n * (end - first) // _PARTS for n in range(_PARTS)]
        numbers = sorted({*numbers, end - 1})
        matches = holds(numbers)
        if not matches.any():
            return end
        hit = int(np.argmax(matches))
        end = numbers[hit]
        if hit:
            first = numbers[hit - 1] + 1
        else:
            return end
    return first


def _parts(first: int, behind: int) -> list[tuple[int, int]]:
    edges = sorted({first + n * (behind - first) // _PARTS for n in range(_PARTS)} | {behind})
    return list(pairwise(edges))


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges that touch each other."""
    joined: list[tuple[int, int]] = []
    for first, behind in ranges:
        if joined and joined[-1][1] == first:
            joined[-1] = joined[-1][0], behind
        else:
            joined.append((first, behind))
    return joined
