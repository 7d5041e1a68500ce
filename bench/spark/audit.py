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

import json
from pathlib import Path

from pyspark.sql import SparkSession

from bench.spark.beside import Way, folder_for, parser, take_turns, tell, timed
from bench.spark.letters import TOPIC, fill
from martlet.client.sync import Consumer
from martlet.pipeline.audit import Audit, AuditOptions, audit
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


def ways(spark: SparkSession, broker: BrokerProcess, folder: Path, messages: int) -> dict[str, Way]:
    """What is compared; the Parquet is written here."""
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

    return {
        "Parquet to Parquet": lambda: timed(
            lambda: spark.read.parquet(first).write.mode("overwrite").parquet(second)
        ),
        "audit, by files": lambda: timed(lambda: check(audit(by_files, spark), messages)),
        "audit, over HTTP": lambda: timed(by_door),
    }


def main() -> None:
    """Measure and print."""
    asked = parser(__doc__).parse_args()
    with folder_for(asked) as folder, BrokerProcess(folder / "broker") as broker:
        fill(broker.tcp_address, asked.messages, asked.size)
        finish_some(broker.tcp_address, min(FINISHED, asked.messages))
        spark = spark_session("martlet bench", master=asked.master)
        seconds = take_turns(ways(spark, broker, folder, asked.messages), asked.rounds)
        spark.stop()
    medians = tell(seconds, asked, "Parquet to Parquet")
    limit_s = LIMIT * medians["Parquet to Parquet"]
    for name in ("audit, by files", "audit, over HTTP"):
        verdict = "within" if medians[name] < limit_s else "ABOVE"
        print(f"{name} is {verdict} {LIMIT} times Parquet to Parquet ({limit_s:.1f} s)")


if __name__ == "__main__":
    main()
