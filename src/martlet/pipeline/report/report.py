"""The job: run a streaming query for each output of each figure.

Terminal and page use Spark's output mode ``update``: the current row of a window after each
micro-batch.  Parquet and topics use the mode ``append``: the final row of a window, exactly once,
when the watermark has passed its end.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from martlet.options.flag import OptionError
from martlet.pipeline.archive.store import Store
from martlet.pipeline.job import (
    OK,
    Job,
    JobFailed,
    Run,
    cause,
    query_errors_as,
    require_topics,
    retried,
    session,
    with_fields,
)
from martlet.pipeline.report.board import MAX_BOARD_ROWS, FigureBoard, Row
from martlet.pipeline.report.description import (
    BadDescription,
    Description,
    Figure,
    Mode,
    of_sql,
    parse,
)
from martlet.pipeline.report.identity import keys_of
from martlet.pipeline.report.options import LiveReportOptions
from martlet.pipeline.report.query import START, TABLE, quoted, require_columns, sql_of
from martlet.pipeline.report.render import page_of, print_board
from martlet.pipeline.stream_monitor import Start, follow
from martlet.text import SECOND_NS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_FIGURE = "figure.json"


def report(
    options: LiveReportOptions,
    description: Description | None = None,
    *,
    spark: SparkSession | None = None,
) -> dict[str, list[Row]]:
    """Report until the process is ended; with `once`, on the messages that are there now.

    Args:
        description: the report; None for the one that the options name.

    Returns:
        The newest rows of each figure.

    Raises:
        OptionError, BadDescription: the options or the description are invalid, or a topic does not
            exist.
        BrokerUnreachable, BrokerRefused: a broker does not answer, or rejects the request.
        JobFailed: a column does not exist, or a query cannot run.
    """
    _check(options, description)
    with session("report", options, spark) as own:
        return LiveReport(options, description, Run(own)).run()


class LiveReport:
    """One run of the job."""

    def __init__(
        self, options: LiveReportOptions, description: Description | None, run: Run
    ) -> None:
        complete = description or read_description(options)
        self.description = dataclasses.replace(complete, topics=topics_of(complete, options))
        check_description(complete, options)
        self._options = options
        self._run = run
        self._boards: dict[str, FigureBoard] = {}
        self._names: dict[str, str] = {}
        """The figure and the output of each query, by the query's id."""

    def run(self) -> dict[str, list[Row]]:
        """Run the queries until they end, and return the rows of the boards."""
        from pyspark.errors import StreamingQueryException

        folder: AbstractContextManager[str] = (
            nullcontext(self._options.checkpoint.rstrip("/"))
            if self._options.checkpoint
            else tempfile.TemporaryDirectory(prefix="martlet-report-")
        )
        with folder as checkpoint:
            retried(self._table, self._run).createOrReplaceTempView(TABLE)
            rows = {figure.name: self._plan(figure) for figure in self.description.figures}
            for figure in self.description.figures:
                self._require_same(figure, checkpoint)
                if self._options.console or self._options.page:
                    store = Store.at(f"{checkpoint}/{figure.name}")
                    keys = keys_of(figure, rows[figure.name])
                    self._boards[figure.name] = FigureBoard(keys, store)
            starts = [
                start
                for figure in self.description.figures
                for start in self._starts(figure, rows[figure.name], checkpoint)
            ]
            try:
                follow(starts, self._run, "reported", names=self._names)
            except StreamingQueryException as error:
                text = str(error)
                failed = next(name for query_id, name in self._names.items() if query_id in text)
                name = failed.partition(",")[0]
                raise JobFailed(f"figures.{name} has failed: {cause(error)}") from error
        return {name: board.rows for name, board in self._boards.items()}

    def _table(self) -> DataFrame:
        from pyspark.sql import functions as F

        description = self.description
        reader = (
            self._run.spark.readStream.format("martlet")
            .options(**self._options.source)
            .option("topic", ",".join(description.topics))
            .option("startingOffsets", self._options.start)
            .option("maxOffsetsPerTrigger", self._options.max_offsets)
        )
        with query_errors_as(f"the schema {description.schema!r} is invalid"):
            messages = with_fields(reader.load(), description.schema)
        with query_errors_as(f"time = {description.time!r} is invalid"):
            kind = dict(messages.select(F.col(quoted(description.time))).dtypes)[description.time]
        if not kind.startswith("timestamp"):
            raise JobFailed(
                f"time = {description.time!r} is invalid: it must name a column of type TIMESTAMP,"
                f" and this is {kind.upper()}"
            )
        with query_errors_as(f"watermark = {description.watermark!r} is invalid"):
            return messages.withWatermark(description.time, description.watermark)

    def _require_same(self, figure: Figure, checkpoint: str) -> None:
        """Check that a figure is the one that the checkpoint was written for. Raises JobFailed."""
        fields = json.loads(json.dumps(dataclasses.asdict(figure)))
        fields |= {"schema": self.description.schema, "time": self.description.time}
        store = Store.at(f"{checkpoint}/{figure.name}")
        kept = store.read(_FIGURE)
        if kept is None:
            store.create(_FIGURE, json.dumps(fields, indent=1).encode())
            return
        try:
            before = dict(json.loads(kept))
        except (ValueError, TypeError, RecursionError) as error:
            raise JobFailed(
                f"cannot read {_FIGURE} of {checkpoint}/{figure.name}, which says what figure that"
                f" was begun for ({error}): bring it back, or remove it if the figure is the same"
            ) from None
        changed = [name for name, value in fields.items() if before.get(name) != value]
        if changed:
            raise JobFailed(
                f"figures.{figure.name} was another one when {checkpoint} was begun:"
                f" {', '.join(changed)} changed since. Give it another name, or the report another"
                " --checkpoint; either begins with what --start says"
            )

    def _starts(self, figure: Figure, rows: DataFrame, checkpoint: str) -> Iterator[Start]:
        options = self._options
        folder = f"{checkpoint}/{figure.name}"
        if figure.name in self._boards:
            show = partial(self._show, figure)
            yield partial(self._begin, figure, rows, f"{folder}/live", figure.mode, foreach=show)
        final: Mode = figure.mode if figure.sql else "append"
        if options.parquet:
            if final != "append":
                raise JobFailed(
                    f'figures.{figure.name}: --parquet takes only final rows: mode = "append"'
                )
            path = f"{options.parquet.rstrip('/')}/{figure.name}"
            into = {"sink_format": "parquet", "path": path}
            yield partial(self._begin, figure, rows, f"{folder}/parquet", final, **into)
        if options.to_topic:
            sent = as_messages(figure, rows)
            into = {"sink_format": "martlet", "topic": options.to_topic, **options.sink}
            yield partial(self._begin, figure, sent, f"{folder}/topic", final, **into)

    def _plan(self, figure: Figure) -> DataFrame:
        at = f"figures.{figure.name}"
        with query_errors_as(f"{at} is invalid"):
            rows = self._run.spark.sql(sql_of(figure, self.description.time))
        if not rows.isStreaming:
            raise JobFailed(f"{at}: its query does not read the table {TABLE}")
        twice = [name for name, count in Counter(map(str.lower, rows.columns)).items() if count > 1]
        if twice:
            raise JobFailed(
                f"{at}: several of its columns are called {', '.join(twice)}; name them by AS"
            )
        return rows

    def _begin(
        self,
        figure: Figure,
        rows: DataFrame,
        checkpoint: str,
        mode: Mode,
        *,
        foreach: Any = None,
        sink_format: str = "",
        **settings: str,
    ) -> StreamingQuery:
        writer = rows.writeStream.outputMode(mode).option("checkpointLocation", checkpoint)
        writer = writer.foreachBatch(foreach) if foreach else writer.format(sink_format)
        writer = writer.options(**settings)
        writer = writer.trigger(**self._options.trigger)
        with query_errors_as(f"figures.{figure.name} is invalid"):
            query = writer.start()
        name, kind = checkpoint.rsplit("/", 2)[-2:]
        self._names[query.id] = f"{name}, {kind}"
        return query

    def _show(self, figure: Figure, batch: DataFrame, number: int) -> None:
        board = self._boards[figure.name]
        is_complete = figure.mode == "complete"
        if START in batch.columns and not is_complete:
            batch = batch.orderBy(batch[START].desc())
        rows = batch.limit(MAX_BOARD_ROWS).toArrow().to_pylist()
        if not (rows or is_complete):
            return  # Spark closes windows by an empty batch.
        board.update(rows, complete=is_complete, batch=number)
        if self._options.console:
            print_board(self._run.console, figure, board.rows)
        if self._options.page:
            reload_s = 0 if self._options.once else max(1, self._options.interval_ns // SECOND_NS)
            boards = {name: board.rows for name, board in self._boards.items()}
            page_of(self.description, boards, reload_s=reload_s).write(Path(self._options.page))


def read_description(options: LiveReportOptions) -> Description:
    """Read the description that the options name. Raises OptionError, BadDescription."""
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
    query = of_sql(sql, topics=(), mode=options.mode)  # type: ignore[arg-type]  # checked there
    return dataclasses.replace(
        query, schema=options.json_schema, time=options.time, watermark=options.watermark
    )


def check_description(description: Description, options: LiveReportOptions) -> None:
    """Check the topics and the names of columns. Raises OptionError, BadDescription."""
    for figure in description.figures:
        require_columns(figure)
    if not (description.topics or options.topics):
        raise OptionError("which topics? Name them in the description, or with --topic=TOPIC")


def topics_of(description: Description, options: LiveReportOptions) -> tuple[str, ...]:
    """Return the topics that a report reads."""
    return tuple(dict.fromkeys([*description.topics, *options.topics]))


def as_messages(figure: Figure, rows: DataFrame) -> DataFrame:
    """Convert rows to JSON messages with the figure's name as the tag."""
    from pyspark.sql import functions as F

    named = F.struct(F.lit(figure.name).alias("figure"), *rows.columns)
    return rows.select(
        F.to_json(named).cast("binary").alias("value"), F.lit(figure.name).alias("tag")
    )


def _work(options: LiveReportOptions, run: Run) -> int:
    LiveReport(options, None, run).run()
    return OK


def _check(options: LiveReportOptions, description: Description | None = None) -> None:
    try:
        complete = description or read_description(options)
        check_description(complete, options)
    except BadDescription as error:
        if description is not None:
            raise
        raise OptionError(f"--description={options.description}: {error}") from None
    require_topics(options, {"topic": ",".join(topics_of(complete, options))})


JOB = Job(
    name="report",
    description=(
        "Live figures over time windows: counts, rates, percentiles, distinct values, the most"
        " frequent values, or any SQL; on the terminal, as a page with plots, and once they are"
        " final in Parquet or a topic."
    ),
    options=LiveReportOptions,
    work=_work,
    check=_check,
    operands=("description",),
)
