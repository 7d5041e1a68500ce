"""Topics of several queues: each is read by itself, and none is left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from tests.spark.publish import ask, post, publish

from martlet.reader.offsets import Offsets
from martlet.reader.options import ReadOptions
from martlet.spark.read.schema import arrow_schema
from martlet.spark.read.stream import StreamReader
from martlet.testing import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
TURNS = 12


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", "--max-bytes-per-file=1048576") as process:
        post(process.http_address, "/topic/create?topic=t&queues=3")
        yield process


def fill(broker: BrokerProcess, first: int) -> set[bytes]:
    """Publish in some turns, so that each queue gets a part."""
    bodies = [[b"%d %d" % (first + turn, n) for n in range(20)] for turn in range(TURNS)]
    for some in bodies:
        publish(broker.http_address, "t", some)
    return {body for some in bodies for body in some}


@pytest.mark.parametrize("from_files", [True, False])
def test_a_stream_reads_all_queues_and_those_that_come(
    broker: BrokerProcess, from_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not from_files:
        monkeypatch.setattr("martlet.reader.segments.SegmentFiles.find", lambda *_: None)
    texts = {"addresses": broker.http_address, "topic": "t", "channel": "spark"}
    schema = arrow_schema(StructType().add("value", "binary").add("partition", "integer"))
    options = ReadOptions.parse(texts | {"startingOffsets": "earliest"}, "stream")
    stream = StreamReader(options, schema)
    seen: dict[int, list[bytes]] = {}

    def step(start: Offsets) -> Offsets:
        monkeypatch.setattr(stream, "_seen_at_s", -time.monotonic())
        end = stream.latestOffset(start, ReadAllAvailable())
        for split in stream.partitions(start, end):
            for batch in stream.read(split):
                for row in batch.to_pylist():
                    seen.setdefault(row["partition"], []).append(row["value"])
        stream.commit(end)
        return end

    published = fill(broker, 0)
    position = step(stream.initialOffset())
    assert sorted(seen) == [0, 1, 2]
    post(broker.http_address, "/topic/create?topic=t&queues=5")
    published |= fill(broker, 100)
    for _ in range(2):  # New queues are taken in by the first one, and read by the second.
        position = step(position)
    assert sorted(seen) == [0, 1, 2, 3, 4]
    got = [body for bodies in seen.values() for body in bodies]
    assert (len(got), set(got)) == (2 * TURNS * 20, published)
    (channel,) = ask(broker.http_address, "/stats?format=json&topic=t")["topics"][0]["channels"]
    assert (channel["channel_name"], channel["depth"]) == ("spark", 0)
    stream.stop()


def test_spark_sees_the_queue_as_the_partition(spark: SparkSession, broker: BrokerProcess) -> None:
    published = fill(broker, 0)
    reader = spark.read.format("martlet").options(addresses=broker.http_address, topic="t")
    rows: Any = reader.load().collect()
    assert {bytes(row.value) for row in rows} == published
    places = sorted((row.partition, row.offset) for row in rows)
    counts = [
        queue["end_offset"]
        for queue in ask(broker.http_address, "/log/topics")["topics"][0]["queues"]
    ]
    assert places == [(n, offset) for n, end in enumerate(counts) for offset in range(end)]
    assert len({row.message_id for row in rows}) == len(rows)
