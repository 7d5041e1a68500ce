"""Batch queries on a real broker: Spark sees the stored messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.publish import ask, publish

from martlet.testing import BrokerProcess

# A machine that is busy elsewhere starts a Java virtual machine in a minute.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SEGMENT = "--max-bytes-per-file=1048576"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with 30,000 messages of topic t over several segments, and some of topic u."""
    with BrokerProcess(tmp_path_factory.mktemp("data"), SEGMENT) as process:
        for first in range(0, 30_000, 1000):
            publish(process.http_address, "t", map(body, range(first, first + 1000)))
            publish(process.http_address, "u", [b"other"] * 10)
        yield process


def body(number: int) -> bytes:
    return json.dumps({"number": number, "pad": "x" * (number % 200)}).encode()


def load(
    spark: SparkSession, broker: BrokerProcess, schema: str | None = None, **options: str
) -> DataFrame:
    reader = spark.read.schema(schema) if schema else spark.read
    texts = {"addresses": broker.http_address, "topic": "t"} | options
    return reader.format("martlet").options(**texts).load()


def test_every_message_and_column(spark: SparkSession, broker: BrokerProcess) -> None:
    before = datetime.now(UTC) - timedelta(minutes=5)
    rows = load(spark, broker, splitBytes="2000000").orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(30_000))
    assert [bytes(row.value) for row in rows] == [body(number) for number in range(30_000)]
    assert len({row.message_id for row in rows}) == 30_000
    broker_id = ask(broker.http_address, "/log/topics")["broker"]
    for row in rows[:: len(rows) - 1]:
        assert (row.key, row.topic, row.partition, row.headers) == (None, "t", 0, None)
        assert (row.timestampType, row.attempts, row.broker) == (1, 1, broker_id)
        assert before < row.timestamp.replace(tzinfo=UTC) < datetime.now(UTC)


def test_columns_that_were_asked_for_in_their_order(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    rows = load(spark, broker, "offset BIGINT, value BINARY")
    assert rows.columns == ["offset", "value"]
    total = rows.agg(F.sum(F.length("value")), F.max("offset"), F.count("*")).collect()[0]
    assert tuple(total) == (sum(len(body(number)) for number in range(30_000)), 29_999, 30_000)


def test_splits_become_tasks(spark: SparkSession, broker: BrokerProcess) -> None:
    narrow = load(spark, broker, "offset BIGINT", splitBytes="500000")
    assert narrow.rdd.getNumPartitions() > 5
    assert load(spark, broker, "offset BIGINT").rdd.getNumPartitions() == 1


def test_topics_together(spark: SparkSession, broker: BrokerProcess) -> None:
    counts = load(spark, broker, topic="t,u").groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in counts} == {"t": 30_000, "u": 300}


def test_a_row_for_each_batch(spark: SparkSession, broker: BrokerProcess) -> None:
    batches = load(spark, broker, view="batches")
    totals = batches.agg(F.count("*"), F.sum("count"), F.max("end_offset"), F.sum("body_bytes"))
    bytes_of_all = sum(len(body(number)) for number in range(30_000))
    assert tuple(totals.collect()[0]) == (30, 30_000, 30_000, bytes_of_all)
    assert batches.where("sends IS NOT NULL OR channel_id IS NOT NULL").count() == 0
    few = load(spark, broker, "offset BIGINT, intact BOOLEAN", view="batches").collect()
    assert [tuple(row) for row in few] == [(first, True) for first in range(0, 30_000, 1000)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "nothing"}, "there is no topic 'nothing' at .*; there is .*t"),
        ({"startingOffsets": '{"t": {"0": 99999}}'}, "offset 99999 of topic t.*after its end"),
        ({"startingOffsets": '{"t": {"7": 1}}'}, "there is no topic t, queue 7"),
        ({"startingOffsets": '{"u": {"0": 1}}'}, "startingOffsets"),
        ({"startOffsets": "earliest"}, "did you mean startingOffsets"),
    ],
)
def test_bad_options_are_refused(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=f"(?s){message}"):
        load(spark, broker, **options).count()
