"""Streams on a real broker: exactly once over restarts of the query and of the broker."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests import brokers
from tests.spark.publish import ask, key_of, post, publish, wait_for

from martlet.testing import BrokerProcess

# A machine that is busy elsewhere starts a Java virtual machine in a minute.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


broker = brokers.process("--max-bytes-per-file=1048576", "--journal-interval=10ms")
"""One for all tests, each of which has a topic of its own."""


class Job:
    """A query that archives a topic, with a checkpoint, so that it can be run again."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.topic = folder.name
        self.out = str(folder / "out")
        self.checkpoint = str(folder / "checkpoint")

    def start(self, *, once: bool = False, **options: str) -> StreamingQuery:
        rows = (
            self.spark.readStream.format("martlet")
            .schema("value BINARY, offset BIGINT")
            .option("addresses", self.broker.http_address)
            .option("topic", self.topic)
            .options(**({"startingOffsets": "earliest"} | options))
            .load()
        )
        writer = rows.writeStream.option("checkpointLocation", self.checkpoint).format("parquet")
        if once:
            writer = writer.trigger(availableNow=True)
        return writer.start(self.out)

    def publish(self, first: int, last: int, order_key: str = "") -> None:
        publish(self.broker.http_address, self.topic, bodies(first, last), order_key)

    def run(self, **options: str) -> StreamingQuery:
        """Everything there is now."""
        query = self.start(once=True, **options)
        assert query.awaitTermination(60)
        return query

    def values(self) -> list[bytes]:
        """Return the archived values by offset."""
        rows = self.spark.read.parquet(self.out).orderBy("offset").collect()
        assert [row.offset for row in rows] == list(range(len(rows)))
        return [bytes(row.value) for row in rows]


@pytest.fixture
def job(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Job:
    return Job(spark, broker, tmp_path)


def bodies(first: int, last: int) -> list[bytes]:
    return [b"message %d" % number for number in range(first, last)]


def depth(job: Job, channel: str) -> int:
    stats = ask(job.broker.http_address, f"/stats?format=json&topic={job.topic}")
    (matching,) = [c for c in stats["topics"][0]["channels"] if c["channel_name"] == channel]
    value: int = matching["depth"]
    return value


def test_a_run_again_goes_on_with_other_limits(job: Job) -> None:
    """A busy queue and an idle one, over restarts of the query and of the broker."""
    post(job.broker.http_address, f"/topic/create?topic={job.topic}&queues=2")
    busy, idle = key_of(0, 2), key_of(1, 2)
    job.publish(0, 1250, busy)
    job.publish(1250, 2500, busy)
    query = job.run(maxOffsetsPerTrigger="1000")
    assert sizes(query) == [1000, 1000, 500]
    job.publish(2500, 2800, busy)
    job.publish(2800, 3000, busy)
    job.broker.restart()
    # By batches now, of which a byte is in the first one.
    assert sizes(job.run(maxBytesPerTrigger="1")) == [300, 200]
    assert job.values() == bodies(0, 3000)
    job.publish(3000, 3010, idle)
    assert sizes(job.run(minRows="100000")) == [10]
    assert job.spark.read.parquet(job.out).count() == 3010


def sizes(query: StreamingQuery) -> list[int]:
    """How many messages the micro-batches had that had any."""
    return [n for progress in query.recentProgress if (n := progress["numInputRows"])]


def test_a_micro_batch_that_failed_is_read_again_as_it_was_planned(
    job: Job, spark: SparkSession, tmp_path: Path
) -> None:
    job.publish(0, 40)
    tried: list[list[bytes]] = []

    def keep(rows: DataFrame, _: int) -> None:
        tried.append(sorted(bytes(row.value) for row in rows.collect()))
        if len(tried) == 1:
            raise OSError("the disk is full")

    def run(**options: str) -> StreamingQuery:
        rows = spark.readStream.format("martlet").options(
            addresses=job.broker.http_address, topic=job.topic, startingOffsets="earliest"
        )
        return (
            rows.options(**options)
            .load()
            .writeStream.option("checkpointLocation", str(tmp_path / "again"))
            .trigger(availableNow=True)
            .foreachBatch(keep)
            .start()
        )

    with pytest.raises(Exception, match="the disk is full"):
        run(maxOffsetsPerTrigger="30").awaitTermination(60)
    assert run(maxOffsetsPerTrigger="7", splitBytes="64KiB").awaitTermination(60)
    assert tried == [sorted(bodies(0, 30))] * 2 + [sorted(bodies(30, 37)), bodies(37, 40)]


def test_the_channel_follows_and_keeps_unread_messages(job: Job) -> None:
    job.publish(0, 1000)
    job.run(channel="archive")
    assert depth(job, "archive") == 0
    job.publish(1000, 1500)
    assert depth(job, "archive") == 500
    job.run(channel="archive")
    assert depth(job, "archive") == 0
    assert job.values() == bodies(0, 1500)


def test_the_broker_is_killed_and_started_again_while_the_query_runs(
    job: Job, broker: BrokerProcess
) -> None:
    job.publish(0, 500)
    query = job.start(channel="archive", timeoutMs="60000")
    wait_for(lambda: sum(p["numInputRows"] for p in query.recentProgress) >= 500, query)
    broker.kill()
    starter = threading.Timer(1.5, broker.restart)
    starter.start()
    starter.join()
    job.publish(500, 1200)
    wait_for(lambda: sum(p["numInputRows"] for p in query.recentProgress) >= 1200, query)
    assert query.isActive
    query.stop()
    assert job.values() == bodies(0, 1200)


def test_a_topic_that_appears_later_is_read_from_its_start(job: Job, broker: BrokerProcess) -> None:
    query = job.start(startingOffsets="latest")
    wait_for(lambda: query.status["message"] == "Waiting for data to arrive", query)
    job.publish(0, 10)
    wait_for(lambda: sum(p["numInputRows"] for p in query.recentProgress) >= 10, query)
    query.stop()
    assert job.values() == bodies(0, 10)


def test_deferred_messages_are_rows_like_others(job: Job, broker: BrokerProcess) -> None:
    post(broker.http_address, f"/pub?topic={job.topic}&defer=3600000", b"message 0")
    job.publish(1, 3)
    job.run()
    assert job.values() == bodies(0, 3)


def test_another_broker_at_the_address_is_a_loss(
    job: Job, broker: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    job.publish(0, 10)
    job.run()
    with BrokerProcess(tmp_path / "another") as another:
        publish(another.http_address, job.topic, bodies(10, 20))
        job.broker = another
        query = job.start(once=True)
        with pytest.raises(Exception, match=r"(?s)data loss by missing broker.*none of .* is that"):
            query.awaitTermination(60)
        job.run(failOnDataLoss="false")
    rows = spark.read.parquet(job.out).count()
    assert rows == 20


def test_deleted_and_made_anew_is_a_loss(job: Job, broker: BrokerProcess) -> None:
    """Though the new one has more messages than were read of the old."""
    job.publish(0, 10)
    job.run()
    post(broker.http_address, f"/topic/delete?topic={job.topic}")
    job.publish(10, 40)
    query = job.start(once=True)
    with pytest.raises(Exception, match=r"(?s)data loss by recreation.*offset 10 is wanted"):
        query.awaitTermination(60)
    job.run(failOnDataLoss="false")
    values = [bytes(row.value) for row in job.spark.read.parquet(job.out).collect()]
    assert sorted(values) == sorted(bodies(0, 40))


def test_a_group_makes_the_broker_keep_unread_messages(job: Job) -> None:
    address, topic = job.broker.http_address, job.topic
    publish(address, topic, [b"x"])
    post(address, f"/channel/create?topic={topic}&channel=other")

    def let_go() -> int:
        """Publish more, finish all of it in the other channel, and see what goes."""
        for _ in range(12):
            publish(address, topic, [b"x" * 50_000] * 10)
        post(address, f"/channel/empty?topic={topic}&channel=other")
        job.broker.restart()
        job.broker.restart()
        listing = ask(address, f"/log/topics?names={topic}")
        start: int = listing["topics"][0]["queues"][0]["start_offset"]
        return start

    job.run(group="unread", retain="true")
    assert let_go() <= 1
    assert depth(job, "unread") == 120
    assert sizes(job.run(group="unread", retain="true")) == [120]
    assert depth(job, "unread") == 0
    job.run(group="unread")
    assert let_go() > 121
    query = job.start(once=True, group="unread")
    with pytest.raises(
        Exception, match=r"(?s)data loss by retention.*offset 121 is wanted.*retain"
    ):
        query.awaitTermination(60)
