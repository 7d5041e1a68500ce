"""Make `checkpoint.tar.xz`: a broker's folder and a query's checkpoint, by an old version.

Usage: PYTHONPATH=OLD/src python tests/data/old_checkpoint.py OUT.tar.xz

The query copies the topic `orders` to the topic `copied` of the same broker, exactly once.  It has
copied messages 0 to 19; messages 20 to 29 were stored afterwards, and the broker was killed.  The
file in the repository was made with commit ea3b3ca.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

from martlet.spark.java import spark_session
from martlet.testing import BrokerProcess


def publish(address: str, first: int, end: int) -> None:
    """Publish messages to `orders`, one a line."""
    body = "\n".join(f"order {number}" for number in range(first, end)).encode()
    urllib.request.urlopen(f"http://{address}/mpub?topic=orders", body, timeout=30).close()


def main(out: str) -> None:
    """Run the broker and the query, and pack their folders."""
    with tempfile.TemporaryDirectory() as folder:
        data, checkpoint = Path(folder) / "data", Path(folder) / "checkpoint"
        with BrokerProcess(data, "--max-bytes-per-file=1048576") as broker:
            publish(broker.http_address, 0, 20)
            spark = spark_session("checkpoint")
            rows = (
                spark.readStream.format("martlet")
                .option("addresses", broker.http_address)
                .option("topic", "orders")
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", 8)
                .load()
            )
            query = (
                rows.selectExpr("value")
                .writeStream.format("martlet")
                .option("addresses", broker.http_address)
                .option("topic", "copied")
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(200)
            spark.stop()
            publish(broker.http_address, 20, 30)
            broker.kill()
        with tarfile.open(out, "w:xz") as archive:
            for part in (data, checkpoint):
                archive.add(part, part.name)


if __name__ == "__main__":
    main(sys.argv[1])
