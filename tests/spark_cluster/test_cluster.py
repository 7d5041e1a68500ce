"""Source, sink and jobs on a real standalone cluster: a master, two workers, a driver."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.spark.pipeline.dead_letters.test_dead_letters import die, waiting
from tests.spark.publish import publish
from tests.spark_cluster.conftest import Driver

from martlet.testing import BrokerProcess
from martlet.testing.spark_cluster import SparkCluster

# A machine that is busy elsewhere starts a Java virtual machine in a minute, and here are five.
pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(400)]
COUNT = 20_000


def numbers_in(out: Path) -> list[int]:
    """The numbers that an archive holds."""
    values = pq.read_table(out, columns=["value"])["value"].to_pylist()
    return sorted(map(int, values))


@pytest.fixture(scope="session")
def numbers(broker: BrokerProcess) -> str:
    """A topic that holds the numbers below COUNT."""
    for first in range(0, COUNT, COUNT // 20):
        bodies = (b"%012d" % number for number in range(first, first + COUNT // 20))
        publish(broker.http_address, "numbers", bodies)
    return "numbers"


def test_executors_read_a_topic_in_splits(
    driver: Driver, broker: BrokerProcess, numbers: str
) -> None:
    driver.begin("read", address=broker.http_address, topic=numbers)
    assert int(driver.progress().partition(" ")[0]) > 2
    answer = driver.result()
    assert answer == {"rows": COUNT, "offsets": COUNT, "sum": COUNT * (COUNT - 1) // 2}


def test_a_worker_that_is_killed_in_the_middle_of_an_archive_changes_nothing(
    driver: Driver, cluster: SparkCluster, broker: BrokerProcess, numbers: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    driver.begin(
        "archive",
        addresses=[broker.http_address],
        topics=[numbers],
        out=str(out),
        max_offsets=COUNT // 5,
        once=True,
    )
    assert "batch 0" in driver.progress()
    cluster.kill_worker(0)
    assert driver.result() == 0
    cluster.add_worker()
    assert numbers_in(out) == list(range(COUNT))


def test_a_worker_that_is_killed_in_the_middle_of_writing_changes_nothing(
    driver: Driver, cluster: SparkCluster, broker: BrokerProcess, numbers: str, tmp_path: Path
) -> None:
    driver.begin(
        "copy",
        address=broker.http_address,
        topic=numbers,
        to_topic="copied",
        checkpoint=str(tmp_path / "checkpoint"),
        max_offsets=COUNT // 5,
    )
    assert "batch 0" in driver.progress()
    cluster.kill_worker(1)
    assert driver.result() == COUNT
    cluster.add_worker()
    answer = driver.do("read", address=broker.http_address, topic="copied")
    assert answer == {"rows": COUNT, "offsets": COUNT, "sum": COUNT * (COUNT - 1) // 2}


def test_a_replay_from_a_topic(
    driver: Driver, broker: BrokerProcess, numbers: str, tmp_path: Path
) -> None:
    done = driver.do(
        "replay",
        addresses=[broker.http_address],
        from_topics=[numbers],
        where="CAST(CAST(value AS STRING) AS INT) % 2 = 0",
        to_topic="even",
        checkpoint=str(tmp_path / "replay"),
        max_offsets=COUNT // 2,
    )
    assert done == 0
    answer = driver.do("read", address=broker.http_address, topic="even")
    half = COUNT // 2
    assert answer == {"rows": half, "offsets": half, "sum": half * (half - 1)}


def test_a_report(driver: Driver, broker: BrokerProcess, numbers: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    sql = "SELECT window.start AS window_start, count(*) AS messages FROM messages"
    done = driver.do(
        "report",
        addresses=[broker.http_address],
        topics=[numbers],
        sql=f"{sql} GROUP BY window(timestamp, '1 day')",
        page=str(page),
        once=True,
    )
    assert done == 0
    assert f"{COUNT:,}" in page.read_text()


def test_an_audit(driver: Driver, broker: BrokerProcess, numbers: str, tmp_path: Path) -> None:
    addresses = [broker.http_address]
    assert driver.do("audit", addresses=addresses, topics=[numbers], out=str(tmp_path)) == 0
    audit = json.loads((tmp_path / "audit.json").read_text())
    assert (audit["lost"], COUNT in [row["published"] for row in audit["totals"]]) == (0, True), (
        audit
    )


def test_dead_letters_are_brought_back(driver: Driver, broker: BrokerProcess) -> None:
    die(broker, 20)
    addresses = [broker.http_address]
    where = "error LIKE 'KeyError%'"
    assert driver.do("dead-letters", addresses=addresses, action="redrive", where=where) == 0
    assert waiting(broker) == 10
