"""A topic as a dataset of pyarrow, whose columns and filter engines push down.

::

    scan(...)                     the options are checked; no broker is asked
      scanner(columns, filter)    by an engine, once for each query
        to_reader()               the brokers are asked, the splits planned; then they are read
                                  one after the other, as the engine takes the batches
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from martlet.reader.batch_plan import batch_tasks
from martlet.reader.filters import FilterTerms, RowFilter, filter_of
from martlet.reader.options import ReadOptions
from martlet.reader.schema import schema_of, selected
from martlet.reader.split import Task
from martlet.reader.task import read as read_task

Place = str | datetime | Mapping[str, Any]


def read(
    topic: str | Sequence[str] = (),
    *,
    addresses: str | Sequence[str] = "127.0.0.1:4151",
    start: Place = "earliest",
    end: Place = "latest",
    columns: Sequence[str] | None = None,
    filter: pc.Expression | FilterTerms | None = None,
    **options: object,
) -> pa.RecordBatchReader:
    """Read the messages of a topic once, between two places that are fixed now.

    Args:
        topic: its name, or several; none with the option ``topic_pattern``.
        addresses: HTTP addresses of brokers.
        start, end: ``earliest``, ``latest-1000``, ``now-1h``, a time, or a dict of places by topic
            and queue, as ``startingOffsets`` of the Spark source.
        columns: the columns to read; those left out cost nothing.
        filter: only these messages: an expression of pyarrow, or terms such as
            ``[("tag", "=", "new")]``.
        options: other options of the Spark source, such as ``lookup``, ``view``,
            ``fail_on_data_loss`` and ``timeout_ms``.

    Raises:
        ValueError: an argument is wrong, or the topic does not exist.
        DataLossError: messages are missing, here or while batches are read.
        BrokerUnreachable, BrokerRefused: a broker does not answer, or not with its log.
    """
    topics = scan(topic, addresses=addresses, start=start, end=end, filter=filter, **options)
    return topics.scanner(columns).to_reader()


def scan(
    topic: str | Sequence[str] = (),
    *,
    addresses: str | Sequence[str] = "127.0.0.1:4151",
    start: Place = "earliest",
    end: Place = "latest",
    filter: pc.Expression | FilterTerms | None = None,
    **options: object,
) -> TopicScan:
    """Describe a topic as a dataset, which each query reads anew; the arguments are as of `read`.

    ``start`` and ``end`` are found at each query. Raises ValueError.
    """
    given: dict[str, object] = {"topic": _listed(topic)} if topic else {}
    given["addresses"] = _listed(addresses)
    given |= {"startingOffsets": _place(start), "endingOffsets": _place(end)}
    given |= {name.replace("_", ""): value for name, value in options.items()}
    if "lookup" in given and addresses == "127.0.0.1:4151":
        del given["addresses"]
    texts = {name: _text(value) for name, value in given.items()}
    parsed = ReadOptions.parse(texts, "batch")
    return TopicScan(parsed, None if filter is None else filter_of(filter, parsed.view))


class TopicScan(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The messages of topics as a dataset; see `scan`. DuckDB reads it as a table, Polars by
    `scan_pyarrow_dataset`, and all that takes an Arrow stream by `__arrow_c_stream__`.
    """

    def __init__(self, options: ReadOptions, row_filter: RowFilter | None) -> None:
        self._options = options
        self._row_filter = row_filter

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return schema_of(self._options.view)

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **_settings: object,
    ) -> TopicScanner:
        """Select columns and rows. Settings of pyarrow's scanners, such as `batch_size`, do not
        apply. Raises ValueError.
        """
        options = self._options
        if isinstance(columns, Mapping):
            raise ValueError("columns are a list of names, and no expressions")
        schema = self.schema if columns is None else selected(columns, options.view)
        narrowed = self if filter is None else self.filter(filter)
        return TopicScanner(options, schema, narrowed._row_filter)

    def filter(self, expression: pc.Expression) -> TopicScan:
        """The same with fewer messages. Raises ValueError."""
        if self._row_filter is not None:
            expression = self._row_filter.expression & expression
        return TopicScan(self._options, RowFilter(expression, self._options.view))

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.scanner().to_reader().__arrow_c_stream__(requested_schema)

    def __reduce__(self) -> tuple[type[TopicScan], tuple[ReadOptions, RowFilter | None]]:
        return TopicScan, (self._options, self._row_filter)

    def __repr__(self) -> str:
        return f"<martlet.arrow.TopicScan of {self._options.topics}>"

    def _refuse(self, *_arguments: object, **_named: object) -> NoReturn:
        raise NotImplementedError("a topic has no files and fragments: read its batches")

    get_fragments = _get_fragments = replace_schema = join = join_asof = _refuse
    sort_by = _scanner_options = _refuse
    partition_expression = property(_refuse)


class TopicScanner:
    """Selected columns and rows of topics, with the methods of pyarrow's scanners."""

    def __init__(
        self, options: ReadOptions, schema: pa.Schema, row_filter: RowFilter | None
    ) -> None:
        self._options = options
        self._row_filter = row_filter
        self.projected_schema = schema

    def to_reader(self) -> pa.RecordBatchReader:
        """Plan now, and read as batches are taken. Raises as `read`."""
        tasks = batch_tasks(self._options, self._row_filter)
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches(tasks))

    def _batches(self, tasks: Sequence[Task]) -> Iterator[pa.RecordBatch]:
        for task in tasks:
            yield from read_task(task, self.projected_schema, self._row_filter)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The record batches, read as they are taken."""
        yield from self.to_reader()

    def to_table(self) -> pa.Table:
        """All rows in memory."""
        return self.to_reader().read_all()

    def head(self, num_rows: int) -> pa.Table:
        """The first rows."""
        batches: list[pa.RecordBatch] = []
        left = num_rows
        for batch in self.to_batches():
            batches.append(batch.slice(0, left))
            left -= len(batches[-1])
            if left <= 0:
                break
        return pa.Table.from_batches(batches, self.projected_schema)

    def count_rows(self) -> int:
        """Count the rows."""
        view = self._options.view
        offsets = TopicScanner(self._options, selected(["offset"], view), self._row_filter)
        return sum(len(batch) for batch in offsets.to_batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)


def _listed(given: str | Sequence[str]) -> str:
    return given if isinstance(given, str) else ",".join(given)


def _place(given: Place) -> str:
    if isinstance(given, datetime):
        return given.isoformat()
    return json.dumps(given) if isinstance(given, Mapping) else str(given)


def _text(given: object) -> str:
    """An option as Spark has it."""
    return str(given).lower() if isinstance(given, bool) else str(given)
