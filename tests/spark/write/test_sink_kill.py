"""Broker, driver, Java and Python workers killed by turns at every step of a batch's way.

The ledger is what a stream of numbers must have become: number n belongs to batch n // ROWS, and of
each batch either all rows are there, each once, or none is, at every moment that is looked at.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from tests.spark.publish import ask, post
from tests.spark.stored import values_of
from tests.spark.write.gate import Gate, Step

from martlet.reader.options import ReadOptions
from martlet.spark.read.batch import BatchReader
from martlet.spark.read.schema import SCHEMA, arrow_schema
from martlet.testing import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(600)]

ROWS = 300
LONG_S = 240.0
"""A machine that is busy elsewhere starts a Java virtual machine in a minute."""


class Job:
    """A run of the stream. `tests.spark.write.sink_job` is what runs."""

    def __init__(self, address: str, checkpoint: Path, rows: int, row_bytes: int) -> None:
        command = [sys.executable, "-m", "tests.spark.write.sink_job", address, str(checkpoint)]
        self._log = (checkpoint.parent / "job.log").open("ab")
        self.driver = subprocess.Popen(
            [*command, str(rows), str(row_bytes)], stdout=subprocess.PIPE, stderr=self._log
        )
        assert self.driver.stdout is not None
        self.java_id = int(self.driver.stdout.readline())

    def workers(self) -> list[int]:
        """The Python processes in which its tasks run."""
        return [worker for daemon in children(self.java_id) for worker in children(daemon)]

    def end(self) -> None:
        """Have all of it ended, whatever was killed of it."""
        for id in (self.java_id, self.driver.pid):
            kill(id)
        self.driver.wait()
        assert self.driver.stdout is not None
        self.driver.stdout.close()
        self._log.close()
        eventually(lambda: not Path(f"/proc/{self.java_id}/cmdline").exists() or is_dead(self))


def is_dead(job: Job) -> bool:
    """Whether nothing but its entry in the table of processes is left of its Java."""
    with suppress(OSError):
        return Path(f"/proc/{job.java_id}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True


def children(id: int) -> list[int]:
    with suppress(OSError):
        threads = Path(f"/proc/{id}/task").iterdir()
        return [int(n) for thread in threads for n in (thread / "children").read_text().split()]
    return []


def kill(id: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(id, signal.SIGKILL)


def eventually(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@contextmanager
def running(gate: Gate, folder: Path, rows: int = ROWS, row_bytes: int = 1) -> Iterator[Job]:
    job = Job(gate.http_address, folder / "checkpoint", rows, row_bytes)
    try:
        yield job
    finally:
        job.end()


def published(broker: BrokerProcess) -> int:
    """How many batches are there, wholly; that none is there in part, or twice, is seen to."""
    address = broker.http_address
    numbers = Counter(int(n) for topic in "ab" for n in values_of(address, topic))
    assert not [n for n, count in numbers.items() if count > 1], "a row is there twice"
    batches = Counter(n // ROWS for n in numbers)
    assert set(batches.values()) <= {ROWS}, f"a batch is there in part: {batches}"
    assert sorted(batches) == list(range(len(batches))), "a batch is missing"
    return len(batches)


def tags_of(address: str, topic: str) -> npt.NDArray[np.int64]:
    """The numbers of a topic's rows, which are their tags."""
    options = ReadOptions.parse({"addresses": address, "topic": topic}, "batch")
    reader = BatchReader(options, arrow_schema(StructType([SCHEMA["tag"]])))
    batches = [b for partition in reader.partitions() for b in reader.read(partition)]
    return np.concatenate([b.column(0).cast(pa.int64()).to_numpy() for b in batches])


def anonymous_kib(broker: BrokerProcess) -> int:
    """The memory that a broker has for itself."""
    status = Path(f"/proc/{broker.process_id}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0])


def count_of(broker: BrokerProcess) -> int:
    """How many messages there are, quickly."""
    topics = ask(broker.http_address, "/log/topics")["topics"]
    return sum(queue["end_offset"] for t in topics if t["topic"] in "ab" for queue in t["queues"])


def grown(broker: BrokerProcess, batches: int) -> None:
    """Wait until as many more batches were published."""
    target = count_of(broker) + batches * ROWS
    eventually(lambda: count_of(broker) >= target)


def goes_on(broker: BrokerProcess, job: Job) -> bool:
    """Wait until one more batch was published, or the query has failed.

    A commit is made by one of the workers too, and Spark does not try it again where that dies: so
    a query that loses it there ends with an error, and is to be started again.
    """
    target = count_of(broker) + ROWS
    eventually(lambda: count_of(broker) >= target or job.driver.poll() is not None)
    return job.driver.poll() is None


def strike(
    target: str, step: Step, passes: int, gate: Gate, broker: BrokerProcess, job: Job
) -> None:
    """Kill a process when a batch comes to a step, and check the published batches then."""
    gate.stop_at(step, passes)
    assert gate.wait(LONG_S), f"{step} was not reached"
    if target == "broker":
        broker.kill()
        broker.start()
    elif target == "worker":
        for worker in job.workers():
            kill(worker)
    elif target == "java":
        job.end()
    else:
        kill(job.driver.pid)
        # Its Java ends by itself.
        eventually(lambda: is_dead(job))
    published(broker)
    gate.let_go()


@pytest.mark.slow
def test_each_row_is_published_once_whichever_process_is_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, Gate(broker.tcp_address) as gate:
        with running(gate, tmp_path) as job:
            grown(broker, 1)
            strike("broker", Step.STAGING, 3, gate, broker, job)
            strike("broker", Step.COMMITTED, 0, gate, broker, job)
            strike("worker", Step.STAGING, 2, gate, broker, job)
            grown(broker, 1)
            strike("java", Step.COMMITTED, 0, gate, broker, job)
            before = published(broker)
        with running(gate, tmp_path) as job:
            grown(broker, 2)
            strike("driver", Step.DECIDED, 0, gate, broker, job)
        assert published(broker) >= before + 2


def is_committing(broker: BrokerProcess) -> bool:
    """Whether a large commit is under way."""
    asked = b'{"state": "committing"}'
    return bool(json.loads(post(broker.http_address, "/call/transaction.list", asked))["count"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_batch_of_10_gb_is_published_once_whichever_process_is_killed(tmp_path: Path) -> None:
    rows, row_bytes = 1_000_000, 10_000
    with BrokerProcess(tmp_path / "data") as broker, Gate(broker.tcp_address) as gate:
        memory_kib = 0
        with running(gate, tmp_path, rows, row_bytes) as job:
            strike("broker", Step.STAGING, 700, gate, broker, job)
            strike("worker", Step.STAGING, 500, gate, broker, job)
            strike("broker", Step.DECIDED, 0, gate, broker, job)
            eventually(lambda: is_committing(broker))
            broker.kill()
            broker.start()
            assert count_of(broker) == 0
            job.end()
            while is_committing(broker):
                assert count_of(broker) in (0, rows)
                memory_kib = max(memory_kib, anonymous_kib(broker))
        assert count_of(broker) == rows
        with running(gate, tmp_path, rows, row_bytes) as job:
            gate.stop_at(Step.STAGING, 100)  # of the next batch: the first was not staged again
            assert gate.wait(LONG_S)
        assert memory_kib < 1 << 20
        numbers = np.concatenate([tags_of(broker.http_address, topic) for topic in "ab"])
        assert np.array_equal(np.sort(numbers), np.arange(rows))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_many_kills(tmp_path: Path, flush: str) -> None:
    chance = random.Random(5)
    strikes = [(target, step) for target in ("broker", "worker", "java", "driver") for step in Step]
    chance.shuffle(strikes)
    with (
        BrokerProcess(tmp_path / "data", f"--flush={flush}") as broker,
        Gate(broker.tcp_address) as gate,
    ):
        while strikes:
            with running(gate, tmp_path) as job:
                grown(broker, 1)
                while strikes:
                    target, step = strikes.pop()
                    passes = chance.randint(0, 4) if step is Step.STAGING else 0
                    strike(target, step, passes, gate, broker, job)
                    if target in ("java", "driver") or not goes_on(broker, job):
                        break
        with running(gate, tmp_path):
            grown(broker, 2)
        published(broker)
