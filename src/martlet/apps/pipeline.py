"""`martlet pipeline`: Spark jobs on topics."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from martlet.duration import parse_duration
from martlet.spark.archive import Archive
from martlet.spark.java import spark_session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S = 1


def main(argv: Sequence[str]) -> int:
    """Run a pipeline; the result is the exit code of the process."""
    arguments = _parser().parse_args(argv)
    settings = Archive(
        addresses=arguments.addresses,
        topics=arguments.topic,
        out=_location(arguments.out),
        json_schema=arguments.json_schema,
        partition_by=tuple(name for name in arguments.partition_by.split(",") if name),
        checkpoint=_location(arguments.checkpoint) if arguments.checkpoint else None,
        channel=arguments.channel or None,
        max_offsets=arguments.max_offsets,
        once=arguments.once,
        interval=arguments.interval,
    )
    spark = spark_session("martlet archive", master=arguments.master)
    try:
        query = settings.start(spark)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        _follow(query)
        return 0
    except KeyboardInterrupt:
        return 0
    except Exception as error:
        print(f"martlet pipeline archive: {_cause(error)}", file=sys.stderr)
        return 1
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.stop()


def _location(text: str) -> str:
    """A path as Spark is to take it: a local one absolute, a URL as it is."""
    return text if "://" in text else str(Path(text).resolve())


def _interval(text: str) -> str:
    """A duration such as 10s or 1m30s, as Spark writes it."""
    return f"{parse_duration(text) // 1_000_000} milliseconds"


def _follow(query: StreamingQuery) -> None:
    """Tell of each micro-batch, until the query ends. Raises what ended it."""
    told = -1
    ended: bool | None = False
    while not ended:
        ended = query.awaitTermination(_POLL_S)
        for progress in query.recentProgress:
            if progress["batchId"] > told and progress["numInputRows"]:
                told = progress["batchId"]
                print(_line(progress), flush=True)


def _line(progress: Any) -> str:
    rows, rate = progress["numInputRows"], progress["processedRowsPerSecond"] or 0
    return f"batch {progress['batchId']}: {rows:,} messages archived, {rate:,.0f} a second"


def _cause(error: Exception) -> str:
    """The last line of what a query says when it ends: the cause, without Spark's stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Error:" in line or "Unreachable:" in line]
    return (causes or lines or [type(error).__name__])[-1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="martlet pipeline", description=__doc__)
    jobs = parser.add_subparsers(title="pipelines", required=True, metavar="PIPELINE")
    archive = jobs.add_parser(
        "archive",
        help="topics as a growing table of Parquet files",
        description="Write topics to a table of Parquet files, each message exactly once.",
    )
    add = archive.add_argument
    add("--addresses", required=True, metavar="HOST:PORT,...", help="HTTP addresses of the brokers")
    add("--topic", required=True, metavar="TOPIC,...", help="what to archive")
    add("--out", required=True, metavar="DIR", help="the table's folder, or a URL that Spark knows")
    add("--json-schema", metavar="DDL", help="fields of the messages: 'origin STRING, month INT'")
    add(
        "--partition-by",
        default="topic,date",
        metavar="COLUMN,...",
        help="columns that become folders: fields, topic, date (default: %(default)s)",
    )
    add("--checkpoint", metavar="DIR", help="where the position is kept (default: OUT/_checkpoint)")
    add(
        "--channel",
        default="archive",
        help="keeps at the broker what is not archived yet; '' for none (default: %(default)s)",
    )
    add("--max-offsets", type=int, default=1_000_000, help="the most messages of a micro-batch")
    add("--master", default="local[*]", help="where Spark runs (default: %(default)s)")
    when = archive.add_mutually_exclusive_group()
    when.add_argument("--once", action="store_true", help="archive what there is now, and end")
    when.add_argument(
        "--interval", type=_interval, default="10s", help="else how often (default: %(default)s)"
    )
    return parser
