"""The job: each figure is a streaming query, or two.

What is shown live (terminal, page) comes in Spark's mode ``update``: a window's figures as they
stand after each micro-batch.  What is kept (Parquet, a topic) comes in mode ``append``: a window's
figures once, when the watermark has passed its end, each exactly once.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from martlet.duration import SECOND_NS
from martlet.options.flag import OptionError
from martlet.options.live_report import LiveReportOptions
from martlet.pipeline.fields import with_fields
from martlet.pipeline.follow import begun, follow
from martlet.pipeline.job import OK, Job, JobFailed, Run, session, told_as
from martlet.pipeline.report.board import MOST_ROWS, Board, Row
from martlet.pipeline.report.description import (
    BadDescription,
    Description,
    Figure,
    Mode,
    of_sql,
    parse,
)
from martlet.pipeline.report.query import START, TABLE, name_of, sql_of
from martlet.pipeline.report.show import page_of, print_board

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_NO_KEYS = ("int", "bigint", "smallint", "tinyint", "float", "double", "decimal", "array", "map")


def report(
    options: LiveReportOptions,
    description: Description | None = None,
    *,
    spark: SparkSession | None = None,
) -> dict[str, list[Row]]:
    """Report until the process is told to end, or with `once` on what there is.

    Args:
        options: the job's.
        description: what to report; else what the options name.
        spark: where to; else the active session, or one of its own.

    Returns:
        The newest rows of each figure.

    Raises:
        OptionError, BadDescription: the options or the description are wrong.
        JobFailed: no such columns, or the query cannot run.
    """
    if spark is not None:
        return Report(options, description, Run(spark)).run()
    with session("report", options) as own:
        return Report(options, description, Run(own)).run()


class Report:
    """One run of the job."""

    def __init__(
        self, options: LiveReportOptions, description: Description | None, run: Run
    ) -> None:
        found = description or described(options)
        self.description = dataclasses.replace(
            found, topics=tuple(dict.fromkeys([*found.topics, *options.topics]))
        )
        require_topics(found, options)
        self._options = options
        self._run = run
        self._boards: dict[str, Board] = {}
        self._folder = Path(options.checkpoint or "")

    def run(self) -> dict[str, list[Row]]:
        """Start the queries, follow them, and return what stands on the boards at the end."""
        with self._checkpoint() as checkpoint:
            found = with_fields(self._source(), self.description.schema)
            table = found.withWatermark(self.description.time, self.description.watermark)
            table.createOrReplaceTempView(TABLE)
            queries: list[StreamingQuery] = []
            try:
                for figure in self.description.figures:
                    queries += self._start(figure, checkpoint)
                follow(queries, self._run, "reported")
            finally:
                for query in queries:
                    query.stop()
        return {name: board.rows for name, board in self._boards.items()}

    @contextmanager
    def _checkpoint(self) -> Iterator[str]:
        """Where positions are kept: a folder that goes at the end, where nobody named one."""
        if self._options.checkpoint:
            yield self._options.checkpoint.rstrip("/")
            return
        with tempfile.TemporaryDirectory(prefix="martlet-report-") as folder:
            yield folder

    def _source(self) -> DataFrame:
        reader = self._run.spark.readStream.format("martlet").options(**self._options.source)
        return (
            reader.option("topic", ",".join(self.description.topics))
            .option("startingOffsets", self._options.start)
            .option("maxOffsetsPerTrigger", self._options.max_offsets)
            .load()
        )

    def _start(self, figure: Figure, checkpoint: str) -> Iterator[StreamingQuery]:
        """The queries of a figure."""
        options = self._options
        rows = self._plan(figure)
        place = f"{checkpoint}/{figure.name}"
        if options.console or options.page:
            kept = Path(place) / "board.json" if "://" not in place else None
            board = self._boards[figure.name] = Board(keys_of(figure, rows), kept)
            mode: Mode = figure.mode if figure.sql else "update"

            def show(batch: DataFrame, _number: int) -> None:
                self._show(figure, board, batch, whole=mode == "complete")

            yield self._begin(rows, f"{place}/live", mode, foreach=show)
        final: Mode = "append" if not figure.sql or figure.mode == "append" else figure.mode
        if options.parquet:
            if final != "append":
                raise JobFailed(
                    f'figures.{figure.name}: --parquet takes final rows alone: mode = "append"'
                )
            path = f"{options.parquet.rstrip('/')}/{figure.name}"
            yield self._begin(rows, f"{place}/parquet", final, format="parquet", path=path)
        if options.to_topic:
            sent = as_messages(figure, rows)
            place_options = {"topic": options.to_topic, **options.sink}
            yield self._begin(sent, f"{place}/topic", final, format="martlet", **place_options)

    def _plan(self, figure: Figure) -> DataFrame:
        with told_as(f"figures.{figure.name} cannot be"):
            return self._run.spark.sql(sql_of(figure, self.description.time))

    def _begin(
        self,
        rows: DataFrame,
        checkpoint: str,
        mode: Mode,
        *,
        foreach: Any = None,
        format: str = "",
        **settings: str,
    ) -> StreamingQuery:
        writer = rows.writeStream.outputMode(mode).option("checkpointLocation", checkpoint)
        writer = writer.foreachBatch(foreach) if foreach else writer.format(format)
        writer = writer.options(**settings)
        if self._options.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=self._options.interval)
        return begun(writer.start, self._run)

    def _show(self, figure: Figure, board: Board, batch: DataFrame, *, whole: bool) -> None:
        """Take a micro-batch's rows in, and show what stands now."""
        order = [batch[START].desc()] if START in batch.columns else []
        newest = batch.orderBy(*order).limit(MOST_ROWS) if order else batch.limit(MOST_ROWS)
        rows = newest.toArrow().to_pylist()[::-1]
        if not (rows or whole):
            return  # Spark ends windows by a batch of nothing
        board.tell(rows, whole=whole)
        if self._options.console:
            print_board(self._run.console, figure.name, board.rows)
        if self._options.page:
            reload_s = 0 if self._options.once else max(1, self._options.interval_ns // SECOND_NS)
            boards = {name: board.rows for name, board in self._boards.items()}
            page_of(self.description, boards, reload_s=reload_s).write(Path(self._options.page))


def described(options: LiveReportOptions) -> Description:
    """The description that the options name.

    Raises:
        OptionError: they name none, or there is no such file.
        BadDescription: it cannot be.
    """
    if not (options.description or options.sql):
        raise OptionError("say what to report: --description=FILE or --sql=QUERY")
    sql = options.sql
    if options.description:
        try:
            text = Path(options.description).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"--description={options.description}: {error}") from None
        if not options.description.endswith(".sql"):
            return parse(text)
        sql = text.strip().rstrip(";")
    found = of_sql(sql, topics=(), mode=options.mode)  # type: ignore[arg-type]  # checked there
    return dataclasses.replace(
        found, schema=options.json_schema, time=options.time, watermark=options.watermark
    )


def require_topics(description: Description, options: LiveReportOptions) -> None:
    """See that it is said what to read. Raises OptionError."""
    if not (description.topics or options.topics):
        raise OptionError("which topics? Name them in the description, or with --topic=TOPIC")


def keys_of(figure: Figure, rows: DataFrame) -> list[str]:
    """The columns that say what a row is of."""
    if not figure.sql:
        return [START, *(name_of(expression) for expression in figure.by)]
    kinds = {field.name: field.dataType.simpleString() for field in rows.schema}
    return [name for name, kind in kinds.items() if not kind.startswith(_NO_KEYS)]


def as_messages(figure: Figure, rows: DataFrame) -> DataFrame:
    """Rows as messages: JSON, tagged with the figure's name."""
    from pyspark.sql import functions as F

    named = F.struct(F.lit(figure.name).alias("figure"), *rows.columns)
    return rows.select(
        F.to_json(named).cast("binary").alias("value"), F.lit(figure.name).alias("tag")
    )


def _work(options: LiveReportOptions, run: Run) -> int:
    Report(options, None, run).run()
    return OK


def _check(options: LiveReportOptions) -> None:
    try:
        found = described(options)
    except BadDescription as error:
        raise OptionError(f"--description={options.description}: {error}") from None
    require_topics(found, options)


JOB = Job(
    name="report",
    description=(
        "Figures over windows of time, live: counts, rates, percentiles, different values, the most"
        " frequent ones, or any SQL; on the terminal, in a page with plots, and once they are final"
        " in Parquet or a topic."
    ),
    options=LiveReportOptions,
    work=_work,
    check=_check,
    operands=("description",),
)
