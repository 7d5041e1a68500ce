"""A Spark driver on the cluster, in a process of its own: a test process may have a local session.

``python -m tests.spark_cluster.driver spark://...`` takes steps as lines of JSON on standard input,
``{"step": "read", ...}``, and answers each with a line, ``{"result": ...}`` or ``{"failed": ...}``.
While a step goes on it may report progress, as ``{"progress": "..."}``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from martlet.pipeline.archive import ArchiveOptions
from martlet.pipeline.audit import AuditOptions
from martlet.pipeline.dead_letters import DeadLetterJobOptions
from martlet.pipeline.job import Run
from martlet.pipeline.replay import ReplayJobOptions
from martlet.pipeline.report import LiveReportOptions
from martlet.pipeline.stream_monitor import follow
from martlet.spark.java import spark_session

Tell = Callable[[str], None]


def read(spark: SparkSession, report: Tell, *, address: str, topic: str) -> Any:
    """Count and add up what a topic holds, and name the processes' machines that read it."""
    rows = (
        spark.read.format("martlet")
        .option("addresses", address)
        .option("topic", topic)
        .option("splitBytes", 64 << 10)
        .load()
    )
    report(f"{rows.rdd.getNumPartitions()} splits")
    (totals,) = rows.agg(
        F.count("*").alias("rows"),
        F.countDistinct("offset").alias("offsets"),
        F.sum(F.col("value").cast("string").cast("long")).alias("sum"),
    ).collect()
    return totals.asDict()


class _ReportingRun(Run):
    """A job's run whose lines go to the test."""

    def __init__(self, spark: SparkSession, report: Tell) -> None:
        super().__init__(spark)
        self._report = report

    def say(self, line: str) -> None:
        self._report(line)


def copy(
    spark: SparkSession,
    report: Tell,
    *,
    address: str,
    topic: str,
    to_topic: str,
    checkpoint: str,
    max_offsets: int,
) -> Any:
    """Write a topic to another, micro-batch by micro-batch."""
    reader = spark.readStream.format("martlet").option("addresses", address)
    reader = reader.option("startingOffsets", "earliest").option("splitBytes", 64 << 10)
    rows = reader.option("topic", topic).option("maxOffsetsPerTrigger", max_offsets).load()
    writer = rows.select("value").writeStream.format("martlet").option("addresses", address)
    writer = writer.option("topic", to_topic).option("checkpointLocation", checkpoint)
    start = writer.trigger(availableNow=True).start
    return follow([start], _ReportingRun(spark, report), "copied")


def job(name: str, options_of: Callable[..., Any]) -> Callable[..., Any]:
    """A step that does a job as its command does."""

    def step(spark: SparkSession, report: Tell, **options: Any) -> Any:
        for key, value in options.items():
            options[key] = tuple(value) if isinstance(value, list) else value
        module = importlib.import_module(f"martlet.pipeline.{name}")
        return module.JOB.work(options_of(**options), _ReportingRun(spark, report))

    return step


STEPS: dict[str, Callable[..., Any]] = {
    "read": read,
    "copy": copy,
    "archive": job("archive", ArchiveOptions),
    "audit": job("audit", AuditOptions),
    "report": job("report", LiveReportOptions),
    "replay": job("replay", ReplayJobOptions),
    "dead-letters": job("dead_letters", DeadLetterJobOptions),
}


def main(url: str) -> None:
    """Take steps until standard input ends."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what Java prints goes elsewhere

    def say(**fields: Any) -> None:
        print(json.dumps(fields), file=out)

    settings: dict[str, str | int | bool] = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": 2,
    }
    spark = spark_session("cluster tests", master=url, **settings)
    say(result="ready")
    for line in sys.stdin:
        fields = json.loads(line)
        try:
            result = STEPS[fields.pop("step")](spark, lambda text: say(progress=text), **fields)
        except Exception:
            say(failed=traceback.format_exc())
        else:
            say(result=result)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
