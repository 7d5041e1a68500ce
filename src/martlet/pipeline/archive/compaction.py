"""Compaction: merge the small files of each folder into a few large ones, in Spark tasks.

A query on Parquet opens every file, so a folder that got a file every ten seconds is slow to read.
Files of at least half the target size stay; smaller ones are merged up to the target size, in the
order of their names and so of their messages.  Files with different schemas are not merged.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from martlet.pipeline.archive.commit_log import STAGED, Swap, in_folder
from martlet.pipeline.archive.options import ArchiveOptions
from martlet.pipeline.archive.parquet_table import ParquetTable
from martlet.pipeline.archive.store import Store
from martlet.pipeline.archive.writing import parquet_writer, row_groups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_BATCH_ROWS = 64 << 10
_MAX_FOLDERS_AT_ONCE = 256


@dataclass(frozen=True)
class Joining:
    """A task that merges files of one folder."""

    location: str
    folder: str
    names: Sequence[str]
    new: str
    """The staged folder for the merged files."""
    compression: str
    flush: bool

    def join(self) -> tuple[Joining, list[str], list[str]]:
        """Merge the files that have the same schema, and return the task, the names of these files
        and those of the merged ones. Raises OSError, pyarrow.ArrowException.
        """
        store = Store.at(self.location)
        joined: list[str] = []
        made: list[str] = []
        for schema, names in self._by_schema(store):
            if len(names) < 2:
                continue
            output = f"{names[0].rpartition('-')[0]}-{uuid.uuid4().hex[:12]}.parquet"
            self._write(store, schema, names, f"{self.new}/{output}")
            joined += names
            made.append(output)
        return self, joined, made

    def _by_schema(self, store: Store) -> Iterator[tuple[pa.Schema, list[str]]]:
        kinds: list[tuple[pa.Schema, list[str]]] = []
        for name in self.names:
            schema = pq.read_schema(self._path(store, name), filesystem=store.system)
            for kind_schema, names in kinds:
                if kind_schema.equals(schema):
                    names.append(name)
                    break
            else:
                kinds.append((schema, [name]))
        yield from kinds

    def _write(self, store: Store, schema: pa.Schema, names: list[str], output: str) -> None:
        read = written = 0
        with store.sink(output) as sink, parquet_writer(sink, schema, self.compression) as writer:
            for rows in row_groups(self._batches(store, names)):
                writer.write_table(rows, row_group_size=len(rows))
                written += len(rows)
        for name in names:
            read += pq.read_metadata(self._path(store, name), filesystem=store.system).num_rows
        if read != written:
            raise OSError(f"{output}: {written:,} rows were written of {read:,}")
        if self.flush:
            store.flush(output)

    def _batches(self, store: Store, names: list[str]) -> Iterator[pa.RecordBatch]:
        for name in names:
            with pq.ParquetFile(self._path(store, name), filesystem=store.system) as file:
                yield from file.iter_batches(_BATCH_ROWS)

    def _path(self, store: Store, name: str) -> str:
        return store.path(in_folder(self.folder, name))


@dataclass(frozen=True)
class Compacted:
    """The number of files that were merged, and of the files that they were merged into."""

    files: int = 0
    into: int = 0


class Compaction:
    """Merges the small files of one archive."""

    def __init__(self, table: ParquetTable, options: ArchiveOptions) -> None:
        self._table = table
        self._options = options

    def folders(self) -> list[str]:
        """List the folders that have files."""
        files = self._table.files(recursive=True)
        return sorted({name.rpartition("/")[0] for name in files})

    def small(self, folder: str) -> dict[str, int]:
        """Return the small files of a folder, and their sizes in bytes."""
        return {
            name: size
            for name, size in self._table.files(folder).items()
            if size < self._options.target_bytes // 2
        }

    def run(self, spark: SparkSession, folders: Sequence[str], run: str | None) -> Compacted:
        """Merge the small files of these folders."""
        files = into = 0
        for first in range(0, len(folders), _MAX_FOLDERS_AT_ONCE):
            done = self._run(spark, folders[first : first + _MAX_FOLDERS_AT_ONCE], run)
            files += sum(len(swap.inputs) for swap in done)
            into += sum(len(swap.outputs) for swap in done)
        return Compacted(files, into)

    def _run(self, spark: SparkSession, folders: Sequence[str], run: str | None) -> list[Swap]:
        stage = f"{STAGED}/compaction-{uuid.uuid4().hex}"
        joinings = [
            Joining(
                self._table.store.location,
                folder,
                names,
                f"{stage}/{number}",
                self._options.compression,
                self._options.flush,
            )
            for number, folder in enumerate(folders)
            for names in self._groups(folder)
        ]
        if not joinings:
            return []
        try:
            tasks = spark.sparkContext.parallelize(joinings, len(joinings))
            swaps: dict[str, Swap] = {}
            for joining, inputs, outputs in tasks.map(Joining.join).collect():
                swap = swaps.setdefault(joining.folder, Swap(joining.folder, joining.new, [], []))
                swap.inputs.extend(inputs)
                swap.outputs.extend(outputs)
            return self._table.compacted([s for s in swaps.values() if s.outputs], run)
        finally:
            self._table.store.remove_tree(stage)

    def _groups(self, folder: str) -> Iterator[list[str]]:
        group: list[str] = []
        size = 0
        for path, size_bytes in self.small(folder).items():
            if group and size + size_bytes > self._options.target_bytes:
                if len(group) > 1:
                    yield group
                group, size = [], 0
            group.append(path.rpartition("/")[2])
            size += size_bytes
        if len(group) > 1:
            yield group


class CompactionWatch:
    """Compacts folders during a run: those with many small files, and those that get no more."""

    def __init__(self, table: ParquetTable, options: ArchiveOptions) -> None:
        self._compaction = Compaction(table, options)
        self._max_files = max(2, options.compact_files)
        self._idle_s = options.compact_idle_ns / 1e9
        self._small: dict[str, int] = {}
        self._last_s: dict[str, float] = {}

    def added(self, files: Mapping[str, int]) -> None:
        """Count the files that were committed to these folders."""
        now_s = time.monotonic()
        for folder, count in files.items():
            if folder in self._small:
                self._small[folder] += count
            else:
                self._small[folder] = len(self._compaction.small(folder))
            self._last_s[folder] = now_s

    def run(self, spark: SparkSession, run: str) -> Compacted:
        """Compact the folders that are due; log a failure and continue."""
        folders = self._due()
        if not folders:
            return Compacted()
        try:
            return self._compaction.run(spark, folders, run)
        except OSError as error:
            _log.warning("cannot merge small files of %s: %s", ", ".join(folders), error)
            return Compacted()

    def _due(self) -> list[str]:
        """Return the folders to compact now, and forget their counts."""
        now_s = time.monotonic()
        folders = []
        for folder, count in list(self._small.items()):
            idle = now_s - self._last_s[folder] >= self._idle_s
            if count >= self._max_files or (idle and count > 1):
                folders.append(folder)
            if idle or count >= self._max_files:
                del self._small[folder], self._last_s[folder]
        return folders
