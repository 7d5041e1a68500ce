"""One cluster and one driver on it for all tests of this folder, as they cost half a minute."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import pytest
from tests import brokers

from martlet.testing.spark_cluster import SparkCluster


class Driver:
    """The driver's process, from outside."""

    def __init__(self, url: str, log: IO[bytes]) -> None:
        self._log = log
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark_cluster.driver", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            bufsize=1,
        )

    def begin(self, step: str, **fields: Any) -> None:
        """Have it do something."""
        assert self._process.stdin is not None
        print(json.dumps({"step": step, **fields}), file=self._process.stdin, flush=True)

    def progress(self) -> str:
        """Return the next progress message of the step."""
        answer = self._answer()
        assert "progress" in answer, answer
        return str(answer["progress"])

    def result(self) -> Any:
        """Return the result; pass over progress messages."""
        while "progress" in (answer := self._answer()):
            pass
        assert "failed" not in answer, answer["failed"]
        return answer["result"]

    def do(self, step: str, **fields: Any) -> Any:
        """Begin, and the result."""
        self.begin(step, **fields)
        return self.result()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            pytest.fail(f"the driver has ended: {self._log.read()[-5000:].decode()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@pytest.fixture(scope="session")
def cluster() -> Iterator[SparkCluster]:
    """A master and two workers."""
    with SparkCluster(workers=2) as workers:
        yield workers


@pytest.fixture(scope="session")
def driver(cluster: SparkCluster) -> Iterator[Driver]:
    """A driver on the cluster."""
    with tempfile.TemporaryFile() as log:
        process = Driver(cluster.url, log)
        try:
            assert process.result() == "ready"
            yield process
        finally:
            process.close()


broker = brokers.process(scope="session")
"""A broker that the executors can reach."""
