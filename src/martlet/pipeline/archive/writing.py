"""The work of a task: write a stretch of a queue as Parquet files, without the JVM.

A task gathers the rows of a split up to the size of a row group, divides them among their folders,
and writes one file for each folder.  The files are staged: readers of the archive do not see them
until the driver has moved them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from martlet.pipeline.archive.partition import (
    LONG,
    MAX_FOLDERS_PER_TASK,
    TooManyFoldersError,
    UnwritableFolderError,
    Values,
    fitted,
    folder_of,
)
from martlet.pipeline.archive.position import Manifest, Written
from martlet.pipeline.archive.rows import Shape, encodings
from martlet.pipeline.archive.store import Store
from martlet.reader.decode import gathered
from martlet.reader.offsets import Span

ROW_GROUP_BYTES = 64 << 20
"""The size of a row group in memory, before it is encoded and compressed."""


@dataclass(frozen=True)
class Writing:
    """The settings of a write, which are sent to each task."""

    location: str
    shape: Shape
    compression: str = "snappy"
    """One of snappy, zstd, gzip and none."""
    flush: bool = True
    """Whether to flush each file to disk before it is committed."""
    in_place: bool = False
    """Whether to write files to their final folders: readers of Delta see only committed ones."""

    def write(
        self, batches: Iterable[pa.RecordBatch], stretch: Span, folder: str, store: Store
    ) -> Manifest:
        """Write the messages of a stretch.

        Raises:
            TooManyFoldersError: the messages belong to more folders than a task can write to.
            UnwritableFolderError: a message's folder has a path that is too long.
            OSError: a file cannot be written.
        """
        files = Files(self, stretch, folder, store)
        try:
            for rows in row_groups(map(self.shape.rows, batches)):
                files.add(rows)
            return Manifest(stretch, folder, files.finish())
        except BaseException:
            files.abandon()
            raise


def row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Gather batches up to the size of a row group."""
    return map(pa.Table.from_batches, gathered(batches, ROW_GROUP_BYTES))


def parquet_writer(sink: Any, schema: pa.Schema, compression: str) -> pq.ParquetWriter:
    """Create a writer for a file of an archive."""
    return pq.ParquetWriter(
        sink, schema, compression=compression, store_schema=False, **encodings(schema)
    )


def with_full_values(rows: pa.Table, values: Mapping[str, str]) -> pa.Table:
    """Add the full values of shortened partition columns to rows."""
    for name, value in values.items():
        rows = rows.append_column(LONG + name, pa.repeat(pa.scalar(value), len(rows)))
    return rows


@dataclass
class _OpenFile:
    name: str
    target: str
    partition: Values
    full: dict[str, str]
    sink: Any
    writer: pq.ParquetWriter
    rows: int = 0


class Files:
    """The files of one stretch, one for each folder."""

    def __init__(self, writing: Writing, stretch: Span, folder: str, store: Store) -> None:
        self._writing = writing
        self._stretch = stretch
        self._folder = folder
        self._store = store
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}
        self._max_bytes = store.max_folder_bytes
        self._file_columns = writing.shape.file_schema.names

    def add(self, rows: pa.Table) -> None:
        """Write rows to the files of their folders."""
        partitioning = self._writing.shape.partitioning
        for partition, group in partitioning.divide(rows, self._stretch.key.topic):
            try:
                file = self._file(partition)
            except UnwritableFolderError as error:
                key, names = self._stretch.key, group.column_names
                offset = group["_offset" if "_offset" in names else "offset"][0]
                raise UnwritableFolderError(
                    f"message {offset} of queue {key.queue} of topic {key.topic}: {error}"
                ) from None
            own = with_full_values(group.select(self._file_columns), file.full)
            file.writer.write_table(own, row_group_size=len(group))
            file.rows += len(group)

    def finish(self) -> list[Written]:
        """Close all files and return them."""
        written = []
        for file in self._open.values():
            file.writer.close()
            size_bytes = file.sink.tell()
            file.sink.close()
            if self._writing.flush:
                self._store.flush(file.name)
            written.append(Written(file.name, file.target, file.rows, size_bytes, file.partition))
        return written

    def abandon(self) -> None:
        """Close all files after a failure; they are removed with the staged folder."""
        for file in self._open.values():
            with suppress(OSError, pa.ArrowException):
                file.writer.close()
                file.sink.close()

    def _file(self, partition: Values) -> _OpenFile:
        values = tuple(value or None for value in partition.values())
        file = self._open.get(values)
        if file is None:
            fit = fitted(partition, self._max_bytes)
            folder = folder_of(fit)
            if len(self._open) == MAX_FOLDERS_PER_TASK:
                raise TooManyFoldersError(
                    f"partitions by {', '.join(partition)} make more than {MAX_FOLDERS_PER_TASK}"
                    f" folders in one task, {folder} being one: partition by columns with fewer"
                    " values"
                )
            unique = uuid.uuid4().hex
            target = f"{folder}/{self._name(unique)}" if folder else self._name(unique)
            name = target if self._writing.in_place else f"{self._folder}/{unique}"
            sink = self._store.sink(name)
            full: dict[str, str] = {}
            if not self._writing.in_place:  # Delta's log has the values themselves.
                full = {n: v for n, v in partition.items() if v is not None and v != fit[n]}
            schema = with_full_values(self._writing.shape.file_schema.empty_table(), full).schema
            writer = parquet_writer(sink, schema, self._writing.compression)
            file = _OpenFile(name, target, partition, full, sink, writer)
            self._open[values] = file
        return file

    def _name(self, unique: str) -> str:
        """Name a file so that names sort like messages: broker, queue, first offset."""
        key = self._stretch.key
        return f"{key.broker[:8]}-{key.queue}-{self._stretch.start:020d}-{unique[:12]}.parquet"
