"""Source, sink and jobs on a real standalone cluster: a master, two workers, a driver."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.spark.publish import publish
from tests.spark_cluster.conftest import Driver

from martlet.testing import BrokerProcess
from martlet.testing.spark_cluster import SparkCluster

# A machine that is busy elsewhere starts a Java virtual machine in a minute, and here are five.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
COUNT = 20_000


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
    assert int(driver.told().partition(" ")[0]) > 2
    found = driver.result()
    assert found == {"rows": COUNT, "offsets": COUNT, "sum": COUNT * (COUNT - 1) // 2}


def test_a_worker_that_is_killed_in_the_middle_of_an_archive_changes_nothing(
    driver: Driver, cluster: SparkCluster, broker: BrokerProcess, numbers: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    driver.begin(
        "archive",
        addresses=[broker.http_address],
        topics=[numbers],
        out=str(out),
        max_offsets=COUNT // 10,
    )
    assert "batch 0" in driver.told()
    cluster.kill_worker(0)
    assert driver.result() == 0
    rows = pq.read_table(out, columns=["offset"])["offset"].to_pylist()
    assert sorted(rows) == list(range(COUNT))
    cluster.add_worker()
