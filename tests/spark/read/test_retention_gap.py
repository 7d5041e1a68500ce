"""A running stream whose next messages are deleted at the broker, as it is too slow and retains
nothing: it reports them, and each message that is there is read once.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.publish import ask, post, publish, wait_for

from martlet.testing import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
BATCH = 300
COUNT = 6000
FLAGS = ("--max-bytes-per-file=64KiB", "--checkpoint-interval=100ms")


class SlowRows:
    """The offsets that a stream has read, whose second micro-batch waits to be let go."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.waits = threading.Event()
        self.let_go = threading.Event()

    def add(self, rows: DataFrame, number: int) -> None:
        if number == 1:
            self.waits.set()
            assert self.let_go.wait(200)
        self.offsets += [row.offset for row in rows.collect()]


@pytest.mark.parametrize("fails", [True, False])
def test_a_gap_under_a_running_stream_is_reported_and_skipped(
    spark: SparkSession, tmp_path: Path, fails: bool
) -> None:
    rows = SlowRows()
    with BrokerProcess(tmp_path / "data", *FLAGS) as broker:
        address = broker.http_address

        def listed() -> dict[str, int]:
            (queue,) = ask(address, "/log/topics?names=t")["topics"][0]["queues"]
            return dict(queue)

        def start(*, fail: bool) -> StreamingQuery:
            return (
                spark.readStream.format("martlet")
                .schema("offset BIGINT")
                .options(addresses=address, topic="t", startingOffsets="earliest")
                .options(maxOffsetsPerTrigger=BATCH, failOnDataLoss=fail)
                .load()
                .writeStream.foreachBatch(rows.add)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .start()
            )

        def fill() -> None:
            for _ in range(0, COUNT, BATCH // 3):
                publish(address, "t", [b"x" * 100] * (BATCH // 3))

        fill()
        post(address, "/channel/create?topic=t&channel=other")
        query = start(fail=fails)
        wait_for(rows.waits.is_set, query)
        post(address, f"/channel/advance?topic=t&channel=other&offset={COUNT}")
        wait_for(lambda: listed()["start_offset"] > 2 * BATCH)
        fill()
        rows.let_go.set()
        if fails:
            with pytest.raises(Exception, match=r"(?s)data loss by retention: topic t, queue 0"):
                query.awaitTermination(200)
            query = start(fail=False)
        wait_for(lambda: rows.offsets[-1:] == [2 * COUNT - 1], query)
        query.stop()
        first = listed()["start_offset"]
    gap = next(n for n in range(2 * COUNT) if rows.offsets[n] != n)
    behind = rows.offsets[gap]
    assert rows.offsets == [*range(gap), *range(behind, 2 * COUNT)]
    assert gap <= 2 * BATCH < behind <= first
