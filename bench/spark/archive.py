"""`martlet pipeline archive` beside Spark's own Parquet-to-Parquet of the same rows, in one run.

    ./run bench spark-archive [--messages 10000000] [--size 200] [--rounds 3] [--master local[2]]
                              [--batch 2000000] [--folder DIR] [--json FILE]

A broker is started and given messages of random letters. They are archived once, which does not
count, and Spark copies that archive then: ``spark.read.parquet(archive)`` written with
``partitionBy("topic", "date", "hour")``, every column. Then both are done in turns, each into a
folder that is new; the archive with its flushes to disk, Spark's writer as it is, without. After
each turn the rows are counted. Printed is the median of the rounds. `--batch` is the messages of
a micro-batch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.dataset as ds

from bench.spark.beside import Setting, Way, compare, setting, timed
from bench.spark.letters import TOPIC
from martlet.pipeline.archive import ArchiveOptions, archive

Writer = Callable[[Path], None]


def writers(bench: Setting) -> dict[str, Writer]:
    """The writers by name: each fills a folder."""
    first = bench.folder / "first"
    options = ArchiveOptions(
        addresses=(bench.broker.http_address,),
        topics=(TOPIC,),
        channel="",
        once=True,
        out="-",
        max_offsets=bench.given.batch,
    )

    def archived(out: Path, flush: bool) -> None:
        archive(options.replace(out=str(out), flush=flush), bench.spark)

    def copied(out: Path) -> None:
        rows = bench.spark.read.parquet(str(first))
        rows.write.partitionBy("topic", "date", "hour").parquet(str(out))

    archived(first, False)
    return {
        "archive": lambda out: archived(out, True),
        "archive, --flush=false": lambda out: archived(out, False),
        "Parquet to Parquet": copied,
    }


def way(write: Writer, name: str, out: Path, messages: int) -> Way:
    """A writer, and a check that it has written all."""

    def run() -> float:
        took_s = timed(lambda: write(out))
        found = ds.dataset(out, partitioning="hive").count_rows()
        if found != messages:
            raise SystemExit(f"{name}: {found:,} rows of {messages:,}")
        shutil.rmtree(out)
        return took_s

    return run


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    with setting(__doc__, arguments, batch=2_000_000) as bench:
        out = bench.folder / "out"
        ways = {
            name: way(write, name, out, bench.given.messages)
            for name, write in writers(bench).items()
        }
        compare(bench.given, ways, "Parquet to Parquet")
