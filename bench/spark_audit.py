"""The audit of a log beside Spark's Parquet-to-Parquet of the same rows.

    spark_audit.py [--messages 10000000] [--size 200] [--rounds 3] [--master local[2]]
                   [--folder DIR]

A broker is started and given messages of random letters, of which a channel finishes some; Spark
writes all of them, every column, as Parquet.  Then, in turns and after one turn that does not
count, that Parquet is read and written as Parquet again, and the log is audited: by the files of
the broker, and once more over HTTP, as where they lie on another machine.  What is printed is the
median of the rounds, and 1.5 times what Parquet to Parquet takes, which the audit is to stay below.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from pyspark.sql import SparkSession
from spark_read import TOPIC, fill

from martlet.client.sync import Consumer
from martlet.options.audit import AuditOptions
from martlet.pipeline.audit import Audit, audit
from martlet.spark.java import spark_session
from martlet.testing import BrokerProcess

FINISHED = 100_000
LIMIT = 1.5
"""How much of what Parquet to Parquet takes the audit may take."""


def finish_some(address: str, count: int) -> None:
    """Have a channel finish some messages."""
    with Consumer(TOPIC, "bench", address) as consumer:
        for batch in consumer.batches():
            batch.finish()
            count -= len(batch)
            if count <= 0:
                return


def check(found: Audit, messages: int) -> None:
    """See that the audit has seen everything."""
    published = sum(row["published"] for row in found.totals())
    if found.findings or published != messages:
        raise SystemExit(f"{published} of {messages} messages; {found.verdict}")


def measure(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """The seconds that each takes, round by round; the first round only warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            started_s = time.monotonic()
            run()
            took_s = time.monotonic() - started_s
            if number:
                seconds[name].append(took_s)
            print(f"  round {number}: {name} {took_s:.2f} s", flush=True)
    return seconds


def compare(
    spark: SparkSession, broker: BrokerProcess, folder: Path, messages: int, rounds: int
) -> dict[str, list[float]]:
    """Write the Parquet, and measure."""
    first, second = str(folder / "first"), str(folder / "second")
    topic = spark.read.format("martlet").option("addresses", broker.http_address)
    topic.option("topic", TOPIC).load().write.parquet(first)
    over_http = AuditOptions(addresses=(broker.http_address,))
    by_files = AuditOptions(data_paths=(str(broker.data_path),))
    identity = broker.data_path / "broker.json"

    def by_door() -> None:
        """As on a machine where another broker's folder has the same path."""
        told = identity.read_text()
        identity.write_text(json.dumps({"broker": "another", "version": 1}))
        try:
            check(audit(over_http, spark), messages)
        finally:
            identity.write_text(told)

    return measure(
        {
            "Parquet to Parquet": lambda: (
                spark.read.parquet(first).write.mode("overwrite").parquet(second)
            ),
            "audit, by files": lambda: check(audit(by_files, spark), messages),
            "audit, over HTTP": by_door,
        },
        rounds,
    )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="spark-audit-", dir=arguments.folder))
    try:
        with BrokerProcess(folder / "broker") as broker:
            fill(broker.tcp_address, arguments.messages, arguments.size)
            finish_some(broker.tcp_address, min(FINISHED, arguments.messages))
            spark = spark_session("spark_audit", master=arguments.master)
            try:
                seconds = compare(spark, broker, folder, arguments.messages, arguments.rounds)
            finally:
                spark.stop()
    finally:
        shutil.rmtree(folder)
    medians = {name: statistics.median(took) for name, took in seconds.items()}
    limit_s = LIMIT * medians["Parquet to Parquet"]
    print(f"\n{arguments.messages:,} messages of {arguments.size} bytes, {arguments.master}")
    for name, median_s in medians.items():
        print(f"  {name:<20} {median_s:6.2f} s")
    for name in ("audit, by files", "audit, over HTTP"):
        verdict = "within" if medians[name] < limit_s else "ABOVE"
        print(f"  {name} is {verdict} {LIMIT} times Parquet to Parquet ({limit_s:.1f} s)")


if __name__ == "__main__":
    main()
