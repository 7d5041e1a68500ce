"""The sink in a real Spark, with a real broker: each row is stored once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests import brokers
from tests.spark.publish import ask, post, publish
from tests.spark.stored import rows_of, values_of

from martlet.testing import BrokerProcess

# A machine that is busy elsewhere starts a Java virtual machine in a minute.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


broker = brokers.process("--max-transaction-bytes=1MiB")


def write(rows: DataFrame, broker: BrokerProcess, **options: str) -> None:
    writer = rows.write.format("martlet").option("addresses", broker.http_address)
    writer.options(**options).mode("append").save()


def copy(
    spark: SparkSession, broker: BrokerProcess, checkpoint: Path, source: str, **options: str
) -> None:
    """Run a stream from one topic to others until all that is there was written."""
    rows = (
        spark.readStream.format("martlet")
        .option("addresses", broker.http_address)
        .option("topic", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 60)
        .load()
    )
    query = (
        rows.writeStream.format("martlet")
        .option("addresses", broker.http_address)
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)


def open_count(broker: BrokerProcess) -> int:
    count: int = json.loads(post(broker.http_address, "/call/transaction.list"))["count"]
    return count


def test_a_batch_query_writes_all_that_rows_say(spark: SparkSession, broker: BrokerProcess) -> None:
    rows = spark.range(1000, numPartitions=3).select(
        F.concat(F.lit("row "), "id").alias("value"),
        F.when(F.col("id") % 2 == 0, "even").otherwise("odd").alias("topic"),
        F.concat(F.lit("k"), F.col("id") % 7).alias("key"),
        F.create_map(F.lit("h"), F.col("id").cast("string")).alias("headers"),
        F.lit("tagged").alias("tag"),
        F.array(F.col("id").cast("string")).alias("keys"),
        F.expr("if(id = 999, interval 2 hours, null)").alias("delay"),
    )
    write(rows, broker)
    for topic, first in (("even", 0), ("odd", 1)):
        by_value = {row["value"].decode(): row for row in rows_of(broker.http_address, topic)}
        numbers = range(first, 999, 2)
        assert by_value.keys() == {f"row {number}" for number in numbers}
        for number in (first, first + 500):
            row = by_value[f"row {number}"]
            assert (row["key"], row["tag"]) == (b"k%d" % (number % 7), "tagged")
            assert row["keys"] == [str(number)]
            assert row["headers"] == [{"key": "h", "value": b"%d" % number}]
    assert open_count(broker) == 0


def test_a_numbered_write_is_published_once(spark: SparkSession, broker: BrokerProcess) -> None:
    for number, text in ((3, "three"), (3, "three"), (2, "two"), (4, "four")):
        rows = spark.createDataFrame([(text,)], "value STRING")
        write(rows, broker, topic="numbered", applicationId="nightly", batchId=str(number))
    assert values_of(broker.http_address, "numbered") == ["three", "four"]


def test_a_stream_goes_on_where_it_was(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    numbers = iter(range(1000))

    def fill() -> None:
        publish(broker.http_address, "from", [b"%03d" % next(numbers) for _ in range(100)])

    fill()
    copy(spark, broker, tmp_path, "from", topic="to")
    assert values_of(broker.http_address, "to") == [f"{n:03}" for n in range(100)]
    # As though Spark had been killed after the broker's commit and before its own.
    (tmp_path / "commits" / "1").unlink()
    (tmp_path / "commits" / ".1.crc").unlink(missing_ok=True)
    fill()
    copy(spark, broker, tmp_path, "from", topic="to")
    assert values_of(broker.http_address, "to") == [f"{n:03}" for n in range(200)]
    query = json.loads((tmp_path / "metadata").read_text())["id"]
    request = json.dumps({"series": query}).encode()
    last = json.loads(post(broker.http_address, "/call/transaction.series", request))
    assert last["series_number"] == 3
    assert open_count(broker) == 0


def test_an_application_outlives_its_checkpoint(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker.http_address, "source", [b"%03d" % n for n in range(50)])
    for checkpoint in ("first", "second"):
        copy(spark, broker, tmp_path / checkpoint, "source", topic="copy", applicationId="copier")
        assert values_of(broker.http_address, "copy") == [f"{n:03}" for n in range(50)]


def test_a_task_that_fails_leaves_nothing(spark: SparkSession, broker: BrokerProcess) -> None:
    rows = spark.range(100, numPartitions=4).select(
        F.expr("if(id = 99, null, string(id))").alias("value")
    )
    with pytest.raises(PySparkException, match="column 'value' is null in row 24 of a batch"):
        write(rows, broker, topic="failing")
    assert values_of(broker.http_address, "failing") == []
    assert open_count(broker) == 0


@pytest.mark.parametrize(
    ("options", "error_text"),
    [
        ({"topik": "t"}, "unknown option 'topik': did you mean topic"),
        ({}, "give option topic, or a column 'topic'"),
        ({"topic": "t", "batchId": "1"}, "give option applicationId too"),
    ],
)
def test_bad_options_are_refused(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], error_text: str
) -> None:
    with pytest.raises(PySparkException, match=f"(?s){re.escape(error_text)}"):
        write(spark.range(1).selectExpr("string(id) AS value"), broker, **options)


def test_a_write_too_large_for_one_transaction_is_refused(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    rows: Any = spark.range(4000).selectExpr("repeat('x', 500) AS value")
    with pytest.raises(PySparkException, match="max-transaction-bytes is 1048576"):
        write(rows, broker, topic="large")
    topics = [listed["topic"] for listed in ask(broker.http_address, "/log/topics")["topics"]]
    assert "large" not in topics
    with pytest.raises(PySparkException, match=r"overwrite.*appended to a topic"):
        rows.write.format("martlet").option("addresses", broker.http_address).mode(
            "overwrite"
        ).option("topic", "large").save()
