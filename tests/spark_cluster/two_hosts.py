"""Executors on hosts of their own, which see neither the broker's files nor its loopback address.

    unshare --net python -m tests.spark_cluster.two_hosts FOLDER

Broker, master and driver are in the network namespace of this process.  Each worker has another one
and a view of the disk in which the broker's folder is empty, so it has to ask the broker.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.cluster.hosts import Namespace, Network, until
from tests.spark.publish import publish
from tests.spark_cluster.conftest import Driver
from tests.spark_cluster.test_cluster import numbers_in

from martlet.http_requests import TOKEN_VARIABLE
from martlet.testing import BrokerProcess
from martlet.testing.spark_cluster import START_S, SparkCluster

HERE = "10.77.0.254"
COUNT = 20_000
_HIDDEN = 'mount -t tmpfs none "$0" && exec "$@"'


class Guarded(BrokerProcess):
    """A broker at an address of the bridge, which serves its log for a token alone."""

    def __init__(self, folder: Path, token: Path) -> None:
        super().__init__(folder, f"--operator-token-file={token}", f"--broadcast-address={HERE}")
        self.tcp_address, self.http_address = f"{HERE}:4150", f"{HERE}:4151"


def main() -> None:
    """Read, archive, audit and write, with a host that is lost in the middle."""
    folder = Path(sys.argv[1])
    data, token = folder / "data", folder / "token"
    token.write_text("only-for-operators")
    token.chmod(0o600)
    os.environ |= {"SPARK_LOCAL_IP": HERE, TOKEN_VARIABLE: str(token)}
    network = Network(folder, namespaces=True)
    cluster = SparkCluster(workers=0, host=HERE)
    try:
        with Guarded(data, token) as broker, cluster, tempfile.TemporaryFile() as log:
            for number in range(2):
                host = network.make(f"spark-{number}")
                assert isinstance(host, Namespace)
                hide = ("unshare", "--mount", "sh", "-c", _HIDDEN, str(data))
                cluster.add_worker(host.address, (*host.prefix(), *hide))
            driver = Driver(cluster.url, log)
            try:
                assert driver.result() == "ready"
                until(lambda: cluster.alive_workers == 2, "workers", 3 * START_S)
                work(driver, cluster, broker, folder)
            except BaseException as error:
                error.add_note(cluster.logs())
                raise
            finally:
                driver.close()
    finally:
        network.close()


def work(driver: Driver, cluster: SparkCluster, broker: BrokerProcess, folder: Path) -> None:
    """Run what is to be the same as on one host."""
    address, out = broker.http_address, folder / "out"
    for first in range(0, COUNT, COUNT // 20):
        bodies = (b"%012d" % number for number in range(first, first + COUNT // 20))
        publish(address, "numbers", bodies)
    expected = {"rows": COUNT, "offsets": COUNT, "sum": COUNT * (COUNT - 1) // 2}
    assert driver.do("read", address=address, topic="numbers") == expected
    brokers = {
        "addresses": [address],
        "topics": ["numbers"],
        "operator_token_file": os.environ[TOKEN_VARIABLE],
    }
    assert driver.do("audit", **brokers, out=str(folder)) == 0
    driver.begin("archive", **brokers, out=str(out), max_offsets=COUNT // 5, once=True)
    assert "batch 0" in driver.progress()
    cluster.kill_worker(0)
    assert driver.result() == 0
    assert numbers_in(out) == list(range(COUNT))
    copies = {"topic": "numbers", "to_topic": "copied", "checkpoint": str(folder / "checkpoint")}
    assert driver.do("copy", address=address, **copies, max_offsets=COUNT // 5) == COUNT
    assert driver.do("read", address=address, topic="copied") == expected
    print("each row once")


if __name__ == "__main__":
    main()
