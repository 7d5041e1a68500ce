"""A stream of numbers into two topics, for ever: a process of its own, to be killed.

    sink_job.py ADDRESS CHECKPOINT ROWS ROW_BYTES

It prints the process id of its Java virtual machine.
"""

from __future__ import annotations

import sys

from martlet.spark.java import spark_session

MASTER = "local[2,3]"
"""Two tasks at a time, each of which is tried three times."""


def main() -> None:
    """Run until it is killed."""
    address, checkpoint, rows, row_bytes = sys.argv[1:]
    spark = spark_session(
        "sink job", MASTER, **{"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    )
    java = spark.sparkContext._jvm
    assert java is not None
    print(java.java.lang.ProcessHandle.current().pid(), flush=True)
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", 2)
        .load()
    )
    written = numbers.selectExpr(
        f"rpad(value, greatest(length(value), {row_bytes}), ' ') AS value",
        "if(value % 3 = 0, 'a', 'b') AS topic",
        "string(value) AS tag",
    )
    query = (
        written.writeStream.format("martlet")
        .option("addresses", address)
        .option("blockBytes", 4096 if int(row_bytes) < 4096 else 1 << 20)
        .option("timeoutMs", 120_000)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
