"""The audit of a log beside Spark's Parquet-to-Parquet of the same rows.

    ./run bench spark-audit [--messages 10000000] [--size 200] [--rounds 3] [--master local[2]]
                            [--folder DIR] [--json FILE]

A broker is started and given messages of random letters, of which a channel finishes some; Spark
writes all of them, every column, as Parquet. Then, in turns and after one turn that does not
count, that Parquet is read and written as Parquet again, and the log is audited: by the files of
the broker, and once more over HTTP, as where they lie on another machine. Printed is the median of
the rounds, and 1.5 times that of Parquet to Parquet, which the audit is to stay below.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from bench.spark.beside import Setting, Way, compare, setting, timed
from bench.spark.letters import TOPIC
from martlet.client.sync import Consumer
from martlet.pipeline.audit import Audit, AuditOptions, audit

FINISHED = 100_000
LIMIT = 1.5
"""The audit's share of the time of Parquet to Parquet at most."""


def finish_some(address: str, count: int) -> None:
    """Have a channel finish some messages."""
    with Consumer(TOPIC, "bench", address) as consumer:
        for batch in consumer.batches():
            batch.finish()
            count -= len(batch)
            if count <= 0:
                return


def check(found: Audit, messages: int) -> None:
    """Check that the audit has seen everything."""
    published = sum(row["published"] for row in found.totals())
    if found.findings or published != messages:
        raise SystemExit(f"{published} of {messages} messages; {found.verdict}")


def ways(bench: Setting) -> dict[str, Way]:
    """The ways; the Parquet is written here."""
    first, second = str(bench.folder / "first"), str(bench.folder / "second")
    spark, broker = bench.spark, bench.broker
    topic = spark.read.format("martlet").option("addresses", broker.http_address)
    topic.option("topic", TOPIC).load().write.parquet(first)
    over_http = AuditOptions(addresses=(broker.http_address,))
    by_files = AuditOptions(data_paths=(str(broker.data_path),))
    identity = broker.data_path / "broker.json"

    def audited(options: AuditOptions) -> None:
        check(audit(options, spark), bench.given.messages)

    def from_elsewhere() -> None:
        """Audit as on a machine where another broker's folder has the same path."""
        text = identity.read_text()
        identity.write_text(json.dumps({"broker": "another", "version": 1}))
        try:
            audited(over_http)
        finally:
            identity.write_text(text)

    return {
        "Parquet to Parquet": lambda: timed(
            lambda: spark.read.parquet(first).write.mode("overwrite").parquet(second)
        ),
        "audit, by files": lambda: timed(lambda: audited(by_files)),
        "audit, over HTTP": lambda: timed(from_elsewhere),
    }


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    with setting(__doc__, arguments) as bench:
        finish_some(bench.broker.tcp_address, min(FINISHED, bench.given.messages))
        medians = compare(bench.given, ways(bench), "Parquet to Parquet")
    limit_s = LIMIT * medians["Parquet to Parquet"]
    for name in ("audit, by files", "audit, over HTTP"):
        verdict = "within" if medians[name] < limit_s else "ABOVE"
        print(f"{name} is {verdict} {LIMIT} times Parquet to Parquet ({limit_s:.1f} s)")
