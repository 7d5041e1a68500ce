"""One stream over all brokers that lookup daemons know, while brokers, topics and queues come and
go: each message comes once, and an absent broker delays no other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.interop.lookup_process import LookupProcess
from tests.spark import publish as kit
from tests.spark.publish import ask, post, publish

from martlet.testing import BrokerProcess

wait_for = partial(kit.wait_for, timeout_s=120)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Town:
    """A lookup daemon, brokers that it knows, and what was published to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lookup = LookupProcess(folder / "lookup")
        self.brokers: list[BrokerProcess] = []
        self.published: list[tuple[str, bytes]] = []

    def new_broker(self) -> BrokerProcess:
        broker = BrokerProcess(
            self.folder / f"broker-{len(self.brokers)}",
            f"--lookupd-tcp-address={self.lookup.tcp_address}",
            "--broadcast-address=127.0.0.1",
            "--max-bytes-per-file=1048576",
            "--journal-interval=10ms",
        )
        self.brokers.append(broker)
        broker.start()
        return broker

    def publish(self, broker: BrokerProcess, topic: str, count: int) -> None:
        first = len(self.published)
        bodies = [b"message %d" % number for number in range(first, first + count)]
        publish(broker.http_address, topic, bodies)
        self.published += [(topic, body) for body in bodies]

    def wait_until_known(self, count: int) -> None:
        wait_for(lambda: len(self._nodes()) == count)

    def _nodes(self) -> Any:
        return ask(self.lookup.http_address, "/nodes")["producers"]


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    town = Town(tmp_path)
    try:
        town.lookup.start()
        yield town
    finally:
        for process in (*town.brokers, town.lookup):
            process.close()


def groups(broker: BrokerProcess) -> dict[str, int]:
    """The lag of the group at each topic of a broker."""
    listed = json.loads(post(broker.http_address, "/call/group.list"))["groups"]
    assert all(group["group"] == "spark" and group["kind"] == "follower" for group in listed)
    return {group["topic"]: group["lag"] for group in listed}


def test_a_stream_follows_brokers_and_topics_that_come_and_go(
    spark: SparkSession, town: Town
) -> None:
    one, two = town.new_broker(), town.new_broker()
    town.publish(one, "ev.a", 100)
    town.publish(two, "ev.a", 50)
    publish(one.http_address, "other", [b"of no interest"])
    town.wait_until_known(2)
    seen: list[tuple[str, bytes]] = []

    def keep(rows: DataFrame, _: int) -> None:
        seen.extend((row.topic, bytes(row.value)) for row in rows.collect())

    def all_here() -> bool:
        return len(seen) >= len(town.published)

    query = (
        spark.readStream.format("martlet")
        .schema("topic STRING, value BINARY")
        .option("lookup", town.lookup.http_address)
        .option("topicPattern", "ev[.].*")
        .option("startingOffsets", "earliest")
        .option("group", "spark")
        .option("retain", "true")
        .option("maxOffsetsPerTrigger", 100)
        .load()
        .writeStream.option("checkpointLocation", str(town.folder / "checkpoint"))
        .foreachBatch(keep)
        .start()
    )
    try:
        wait_for(all_here, query)
        # A topic that matches, and queues, that are new.
        town.publish(two, "ev.b", 10)
        post(one.http_address, "/topic/create?topic=ev.a&queues=3")
        for _ in range(3):
            town.publish(one, "ev.a", 20)
        wait_for(all_here, query)
        # One broker is away: the other is read. When it is back, so is what it has.
        two.kill()
        town.publish(one, "ev.a", 30)
        wait_for(all_here, query)
        two.start()
        town.publish(two, "ev.a", 10)
        town.publish(two, "ev.c", 5)
        three = town.new_broker()
        town.publish(three, "ev.a", 25)
        wait_for(all_here, query)
        # The position is reported, though no more comes.
        wait_for(lambda: groups(one) == {"ev.a": 0}, query)
        wait_for(lambda: groups(two) == {"ev.a": 0, "ev.b": 0, "ev.c": 0}, query)
        wait_for(lambda: groups(three) == {"ev.a": 0}, query)
        progress = query.lastProgress
        assert progress is not None
        assert len(json.loads(progress["sources"][0]["latestOffset"])) == 3
    finally:
        query.stop()
    assert Counter(seen) == Counter(town.published)
    # Of what comes now the group shows the lag, in /stats and in /metrics too.
    town.publish(three, "ev.a", 7)
    assert groups(three) == {"ev.a": 7}
    (topic,) = ask(three.http_address, "/stats?format=json&topic=ev.a")["topics"]
    assert [(c["channel_name"], c["depth"]) for c in topic["channels"]] == [("spark", 7)]
    # A lookup daemon does not list such a channel.
    assert ask(town.lookup.http_address, "/channels?topic=ev.a")["channels"] == []
