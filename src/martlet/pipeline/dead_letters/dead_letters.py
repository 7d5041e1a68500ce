"""The job: select dead letters of all brokers by a condition; group, redrive or drop them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.table import Table

from martlet.pipeline.dead_letters.options import DeadLetterJobOptions
from martlet.pipeline.dead_letters.reader import dead_letter_topics, read_dead_letters
from martlet.pipeline.dead_letters.redrive import RedriveResult, act
from martlet.pipeline.job import (
    FAILED,
    OK,
    Job,
    Run,
    query_errors_as,
    retried,
    session,
    with_fields,
)
from martlet.text import counted, visible

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAX_GROUPS = 1000
"""The largest groups, which are shown; the others are only counted."""
_PAST = {"redrive": "brought back", "drop": "dropped"}


@dataclass(frozen=True)
class Grouped:
    """The result of a run."""

    count: int
    groups: list[dict[str, Any]]
    """The 1000 largest groups, with ``count``, ``oldest``, ``newest`` and ``example``, an id."""
    done: RedriveResult | None
    """The result of the redrive or drop; None for a list or dry run."""


def dead_letters(options: DeadLetterJobOptions, *, spark: SparkSession | None = None) -> Grouped:
    """Group dead letters, and redrive or drop them.

    Raises:
        JobFailed: the condition or an expression is invalid.
        BrokerUnreachable, BrokerRefused: a broker does not answer, or rejects the request.
    """
    with session("dead-letters", options, spark) as own:
        return _run(options, Run(own))


def _run(options: DeadLetterJobOptions, run: Run) -> Grouped:
    topics = dead_letter_topics(options)
    # Read once, so that the same dead letters are counted and redriven.
    chosen = _select(read_dead_letters(run.spark, topics), options).persist()
    try:
        groups = retried(partial(_groups, chosen, options), run)
        if options.out:
            chosen.write.mode("append").parquet(options.out)
        count = chosen.count()
        done = None
        if options.action != "list" and not options.dry_run:
            endpoints = {topic.endpoint.address: topic.endpoint for topic in topics}
            done = retried(partial(act, chosen, options, count, endpoints), run)
        run.meter.batch(count, 0)
        return Grouped(count, groups, done)
    finally:
        chosen.unpersist()


def _select(letters: DataFrame, options: DeadLetterJobOptions) -> DataFrame:
    with query_errors_as(f"--json-schema={options.json_schema}"):
        fields = with_fields(letters, options.json_schema)
    with query_errors_as(f"--where={options.where}"):
        return fields.where(options.where) if options.where else fields


def _groups(chosen: DataFrame, options: DeadLetterJobOptions) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F

    with query_errors_as(f"--by={options.by}"):
        grouped = chosen.groupBy(*map(F.expr, options.expressions)).agg(
            F.count("*").alias("count"),
            F.min("died_at").alias("oldest"),
            F.max("died_at").alias("newest"),
            F.min("id").alias("example"),
        )
    rows: list[dict[str, Any]] = (
        grouped.orderBy(F.col("count").desc(), "example").limit(_MAX_GROUPS).toArrow().to_pylist()
    )
    return rows


def _work(options: DeadLetterJobOptions, run: Run) -> int:
    result = _run(options, run)
    if result.groups:
        table = Table(box=None, pad_edge=False)
        for name in result.groups[0]:
            is_count = name == "count"
            table.add_column(name, justify="right" if is_count else "left", overflow="fold")
        for row in result.groups:
            table.add_row(*map(_cell, row.values()))
        run.console.print(table)
    if len(result.groups) == _MAX_GROUPS:
        run.say(f"these are the {_MAX_GROUPS:,} largest groups; --by=reason,topic makes fewer")
    if options.action == "list" or options.dry_run:
        verb = f" would be {_PAST[options.action]}" if options.dry_run else ""
        run.say(f"{counted(result.count, 'dead letter', form=',')}{verb}")
        return OK
    assert result.done is not None
    run.say(f"{counted(result.done.count, 'dead letter', form=',')} {_PAST[options.action]}")
    for why, number in result.done.kept.items():
        run.say(f"{number:,} stay: {why}")
    if result.done.gone:
        run.say(f"{result.done.gone:,} were not there any more when it came to them")
    return FAILED if result.done.kept else OK


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if hasattr(value, "isoformat"):
        return str(value.isoformat(sep=" ", timespec="seconds"))
    return visible(str(value))


JOB = Job(
    name="dead-letters",
    description=(
        "Group the dead letters of all brokers by their errors; redrive or drop those that match a"
        " condition. The action can be given without its flag: list, redrive or drop."
    ),
    options=DeadLetterJobOptions,
    work=_work,
    operands=("action",),
    has_steps=False,
)
