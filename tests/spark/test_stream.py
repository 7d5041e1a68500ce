"""Streams on a real broker: exactly once over restarts of the query and of the broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.publish import ask, post, publish

from martlet.testing import BrokerProcess

# A machine that is busy elsewhere starts a Java virtual machine in a minute.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", "--max-bytes-per-file=1048576") as process:
        yield process


class Job:
    """A query that archives topic t, with a checkpoint, so that it can be run again."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.out = str(folder / "out")
        self.checkpoint = str(folder / "checkpoint")

    def start(self, *, once: bool = False, **options: str) -> StreamingQuery:
        rows = (
            self.spark.readStream.format("martlet")
            .schema("value BINARY, offset BIGINT")
            .option("addresses", self.broker.http_address)
            .option("topic", "t")
            .options(**({"startingOffsets": "earliest"} | options))
            .load()
        )
        writer = rows.writeStream.option("checkpointLocation", self.checkpoint).format("parquet")
        if once:
            writer = writer.trigger(availableNow=True)
        return writer.start(self.out)

    def run(self, **options: str) -> StreamingQuery:
        """Everything there is now."""
        query = self.start(once=True, **options)
        assert query.awaitTermination(60)
        return query

    def values(self) -> list[bytes]:
        """What has been archived, by offset."""
        rows = self.spark.read.parquet(self.out).orderBy("offset").collect()
        assert [row.offset for row in rows] == list(range(len(rows)))
        return [bytes(row.value) for row in rows]


@pytest.fixture
def job(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Job:
    return Job(spark, broker, tmp_path)


def bodies(first: int, last: int) -> list[bytes]:
    return [b"message %d" % number for number in range(first, last)]


def depth(broker: BrokerProcess, channel: str) -> int:
    stats = ask(broker.http_address, "/stats?format=json&topic=t")
    (found,) = [c for c in stats["topics"][0]["channels"] if c["channel_name"] == channel]
    value: int = found["depth"]
    return value


def test_a_run_again_goes_on_where_the_last_one_ended(job: Job, broker: BrokerProcess) -> None:
    publish(broker.http_address, "t", bodies(0, 2500))
    query = job.run(maxOffsetsPerTrigger="1000")
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    assert [size for size in sizes if size] == [1000, 1000, 500]
    publish(broker.http_address, "t", bodies(2500, 3000))
    broker.restart()
    job.run()
    assert job.values() == bodies(0, 3000)


def test_the_channel_follows_and_holds_what_is_unread(job: Job, broker: BrokerProcess) -> None:
    publish(broker.http_address, "t", bodies(0, 1000))
    job.run(channel="archive")
    assert depth(broker, "archive") == 0
    publish(broker.http_address, "t", bodies(1000, 1500))
    assert depth(broker, "archive") == 500
    job.run(channel="archive")
    assert depth(broker, "archive") == 0
    assert job.values() == bodies(0, 1500)


def test_the_broker_is_killed_and_started_again_while_the_query_runs(
    job: Job, broker: BrokerProcess
) -> None:
    publish(broker.http_address, "t", bodies(0, 500))
    query = job.start(channel="archive")
    wait_for(lambda: sum(p["numInputRows"] for p in query.recentProgress) >= 500, query)
    broker.kill()
    starter = threading.Timer(1.5, broker.restart)
    starter.start()
    starter.join()
    publish(broker.http_address, "t", bodies(500, 1200))
    wait_for(lambda: sum(p["numInputRows"] for p in query.recentProgress) >= 1200, query)
    assert query.isActive
    query.stop()
    assert job.values() == bodies(0, 1200)


def test_a_topic_that_appears_later_is_read_from_its_start(job: Job, broker: BrokerProcess) -> None:
    query = job.start(startingOffsets="latest")
    wait_for(lambda: query.status["message"] == "Waiting for data to arrive", query)
    publish(broker.http_address, "t", bodies(0, 10))
    wait_for(lambda: sum(p["numInputRows"] for p in query.recentProgress) >= 10, query)
    query.stop()
    assert job.values() == bodies(0, 10)


def test_deferred_messages_are_rows_like_others(job: Job, broker: BrokerProcess) -> None:
    post(broker.http_address, "/pub?topic=t&defer=3600000", b"message 0")
    publish(broker.http_address, "t", bodies(1, 3))
    job.run()
    assert job.values() == bodies(0, 3)


def test_another_broker_at_the_address_is_a_loss(
    job: Job, broker: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    publish(broker.http_address, "t", bodies(0, 10))
    job.run()
    with BrokerProcess(tmp_path / "another") as another:
        publish(another.http_address, "t", bodies(10, 20))
        job.broker = another
        query = job.start(once=True)
        with pytest.raises(Exception, match=r"(?s)data loss by missing broker.*none of .* is that"):
            query.awaitTermination(60)
        job.run(failOnDataLoss="false")
    rows = spark.read.parquet(job.out).count()
    assert rows == 20


def test_deleted_and_made_anew_is_a_loss(job: Job, broker: BrokerProcess) -> None:
    publish(broker.http_address, "t", bodies(0, 100))
    job.run()
    post(broker.http_address, "/topic/delete?topic=t")
    publish(broker.http_address, "t", bodies(0, 5))
    query = job.start(once=True)
    with pytest.raises(Exception, match=r"(?s)data loss by recreation.*offset 100 is wanted"):
        query.awaitTermination(60)


def wait_for(condition, query: StreamingQuery, timeout_s: float = 60) -> None:  # type: ignore[no-untyped-def]
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        error = query.exception()
        assert error is None, error
        assert time.monotonic() < deadline_s, query.lastProgress
        time.sleep(0.05)
