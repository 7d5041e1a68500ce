"""The archive job as a function and as a command."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import Counter

from martlet.options.flag import OptionError
from martlet.pipeline.archive.compaction import Compacted, Compaction
from martlet.pipeline.archive.options import ArchiveOptions
from martlet.pipeline.archive.parquet_table import ParquetTable
from martlet.pipeline.archive.query import Archive, ArchiveBatch, topics_of
from martlet.pipeline.archive.store import Store
from martlet.pipeline.job import OK, Job, Run, require_topics, retried, session
from martlet.pipeline.stream_monitor import follow
from martlet.text import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    batches: int = 0
    """The number of micro-batches that added files."""
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    compacted: Compacted = field(default_factory=Compacted)


def archive(options: ArchiveOptions, spark: SparkSession | None = None) -> Result:
    """Archive topics until the query is stopped; with ``once``, the messages that are there now.

    Raises:
        OptionError: the options do not fit the messages or each other, or a topic does not exist.
        BrokerUnreachable, BrokerRefused: a broker does not answer, or rejects the request.
        StreamingQueryException: the query has failed.
    """
    _check(options)
    with session("archive", options, spark) as own:
        return _archive(options, Run(own))


def _archive(options: ArchiveOptions, run: Run) -> Result:
    if options.compact:
        return retried(partial(_compact, options, run), run)
    totals = _RunTotals(run)
    try:
        query = Archive(options, run.spark, totals.add)
    except ValueError as error:
        raise OptionError(str(error)) from error
    follow([query.start], run, "archived", totals.rows_of)
    if options.once and not totals.result.rows:
        run.say("nothing new to archive")
    return totals.result


def _compact(options: ArchiveOptions, run: Run) -> Result:
    if options.format == "delta":
        from martlet.pipeline.archive.delta_table import compact

        try:
            done = compact(Store.at(options.out).location, options.target_bytes)
        except ValueError as error:
            raise OptionError(str(error)) from error
    else:
        compaction = Compaction(ParquetTable(Store.at(options.out)), options)
        folders = compaction.folders()
        if not folders:
            raise OptionError(f"--out={options.out} holds no Parquet files")
        done = compaction.run(run.spark, folders, None)
    run.say(f"{counted(done.files, 'small file', form=',')} joined into {done.into:,}")
    return Result(compacted=done)


class _RunTotals:
    def __init__(self, run: Run) -> None:
        self.result = Result()
        self._rows: dict[int, int] = {}
        counter = partial(Counter, registry=run.meter.registry)
        self._files = counter("martlet_archive_files", "Parquet files that were committed")
        self._bytes = counter("martlet_archive_bytes", "bytes of the files that were committed")
        self._joined = counter("martlet_archive_joined_files", "small files that were joined")

    def add(self, batch: ArchiveBatch) -> None:
        self._rows[batch.number] = batch.rows
        self._files.inc(batch.files)
        self._bytes.inc(batch.size_bytes)
        self._joined.inc(batch.compacted.files)
        before = self.result
        self.result = Result(
            batches=before.batches + bool(batch.files),
            rows=before.rows + batch.rows,
            files=before.files + batch.files,
            size_bytes=before.size_bytes + batch.size_bytes,
            compacted=Compacted(
                before.compacted.files + batch.compacted.files,
                before.compacted.into + batch.compacted.into,
            ),
        )

    def rows_of(self, number: int) -> int:
        """Return and forget the number of messages that a micro-batch has added."""
        return self._rows.pop(number, 0)


def _check(options: ArchiveOptions) -> None:
    if not options.compact:
        require_topics(options, topics_of(options))


def _work(options: ArchiveOptions, run: Run) -> int:
    _archive(options, run)
    return OK


JOB = Job(
    name="archive",
    description="Write topics to a table of Parquet files, each message exactly once.",
    options=ArchiveOptions,
    work=_work,
    check=_check,
)
