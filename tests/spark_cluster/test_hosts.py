"""A cluster whose executors are on other hosts than the broker, without its files."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest
from tests.cluster.hosts import unshare

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]


def test_executors_on_other_hosts_ask_the_broker() -> None:
    command = unshare()
    if command is None:
        pytest.skip("this machine lets nobody make network namespaces")
    with tempfile.TemporaryDirectory(prefix="martlet-hosts-") as folder:
        done = subprocess.run(
            [*command, sys.executable, "-m", "tests.spark_cluster.two_hosts", folder],
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    assert done.stdout.endswith("each row once\n"), done.stdout[-2000:] + done.stderr[-5000:]
