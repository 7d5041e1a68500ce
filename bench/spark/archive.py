"""`martlet pipeline archive` beside Spark's own Parquet-to-Parquet of the same rows, in one run.

    spark_archive.py [--messages 10000000] [--size 200] [--rounds 3] [--master local[2]]

A broker is started and given messages of random letters.  They are archived once, which does not
count, and what came of it is what Spark copies then: ``spark.read.parquet(archive)`` written with
``partitionBy("topic", "date", "hour")``, every column.  Then both are done in turns, each into a
folder that is new; the archive with its flushes to disk, Spark's writer as it is, without.  After
each turn the rows are counted.  What is printed is the median of the rounds.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from bench.spark.beside import Way, folder_for, parser, take_turns, tell, timed
from bench.spark.letters import TOPIC, fill
from martlet.pipeline.archive import ArchiveOptions, archive
from martlet.spark.java import spark_session
from martlet.testing import BrokerProcess

Writer = Callable[[Path], None]


def writers(spark: SparkSession, http_address: str, first: Path, batch: int) -> dict[str, Writer]:
    """What is compared, by name: each writes a folder."""
    options = ArchiveOptions(
        addresses=(http_address,),
        topics=(TOPIC,),
        channel="",
        once=True,
        out="-",
        max_offsets=batch,
    )

    def archived(out: Path, flush: bool) -> None:
        archive(options.replace(out=str(out), flush=flush), spark)

    def copied(out: Path) -> None:
        rows = spark.read.parquet(str(first))
        rows.write.partitionBy("topic", "date", "hour").parquet(str(out))

    archived(first, False)
    return {
        "archive": lambda out: archived(out, True),
        "archive, --flush=false": lambda out: archived(out, False),
        "Parquet to Parquet": copied,
    }


def way(write: Writer, name: str, out: Path, messages: int) -> Way:
    """A writer, of which is seen that it has written all."""

    def run() -> float:
        took_s = timed(lambda: write(out))
        found = ds.dataset(out, partitioning="hive").count_rows()
        if found != messages:
            raise SystemExit(f"{name}: {found:,} rows of {messages:,}")
        shutil.rmtree(out)
        return took_s

    return run


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--batch", type=int, default=2_000_000, help="messages a micro-batch")
    asked = options.parse_args()
    with folder_for(asked) as folder, BrokerProcess(folder / "data") as broker:
        fill(broker.tcp_address, asked.messages, asked.size)
        spark = spark_session("martlet bench", master=asked.master)
        found = writers(spark, broker.http_address, folder / "first", asked.batch)
        out = folder / "out"
        ways = {name: way(write, name, out, asked.messages) for name, write in found.items()}
        seconds = take_turns(ways, asked.rounds)
        spark.stop()
    tell(seconds, asked, "Parquet to Parquet")


if __name__ == "__main__":
    main()
