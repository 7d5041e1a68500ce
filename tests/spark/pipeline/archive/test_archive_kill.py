"""The archive with its processes killed by turns: every message once, and never a reader misled."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb
import psutil
import pyarrow.dataset as ds
import pytest
from tests.spark.publish import publish

from martlet.testing import BrokerProcess

pytestmark = [
    pytest.mark.spark,
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]
VICTIMS = ("driver", "java", "worker", "broker")
BATCH = 500


class Feed:
    """Publish messages until stopped.

    Attributes:
        count: how many were answered OK.
    """

    def __init__(self, broker: BrokerProcess) -> None:
        self.count = 0
        self._broker = broker
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            bodies = [b"%d" % number for number in range(self.count, self.count + BATCH)]
            try:
                publish(self._broker.http_address, "t", bodies)
            except OSError:
                continue  # killed just now; what it stored twice has offsets of its own
            self.count += BATCH

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def command(broker: BrokerProcess, out: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "martlet", "pipeline", "archive", "--master=local[2]"),
        *(f"--addresses={broker.http_address}", "--topic=t", f"--out={out}"),
        *("--interval=0s", f"--max-offsets={3 * BATCH}", "--compact-files=8", *more),
    ]


@contextmanager
def running(argv: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        left = []
        with suppress(psutil.NoSuchProcess):
            left = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        end(left)
        process.communicate()


def end(processes: list[psutil.Process]) -> None:
    """Kill those of them that have not ended by themselves meanwhile."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def named(part: str, processes: list[psutil.Process]) -> list[psutil.Process]:
    matching = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if part in process.name():
                matching.append(process)
    return matching


def kill(victim: str, process: subprocess.Popen[str], broker: BrokerProcess) -> None:
    if victim == "broker":
        broker.kill()
        broker.restart()
        return
    children = psutil.Process(process.pid).children(recursive=True)
    (java,) = named("java", children)
    if victim == "driver":
        # With its workers, as a machine that fails takes them all.
        process.send_signal(signal.SIGKILL)
        end(children)
    elif victim == "java":
        java.kill()
    else:
        end(named("python", java.children(recursive=True)))


def visible(out: Path) -> list[int]:
    table = ds.dataset(out, partitioning="hive").to_table(columns=["offset"])
    offsets: list[int] = table["offset"].to_pylist()
    assert len(set(offsets)) == len(offsets), "a reader sees messages twice"
    return sorted(offsets)


def test_each_message_is_archived_once_whichever_process_is_killed(tmp_path: Path) -> None:
    chance = random.Random(6)
    out = tmp_path / "out"
    with BrokerProcess(tmp_path / "data") as broker:
        with Feed(broker) as feed:
            for victim in VICTIMS:
                with running(command(broker, out)) as process:
                    assert process.stdout is not None
                    for _ in range(chance.randrange(2, 6)):
                        line = process.stdout.readline()
                        assert "archived" in line, (victim, line, process.communicate())
                    threading.Event().wait(chance.random())
                    before = visible(out)
                    kill(victim, process, broker)
                    if victim == "broker":
                        assert "archived" in process.stdout.readline()
                assert set(before) <= set(visible(out))
        done = subprocess.run(
            command(broker, out, "--once"), capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        assert feed.count > 0
    offsets = visible(out)
    assert len(offsets) >= feed.count
    assert offsets == list(range(len(offsets)))
    everything = f"read_parquet('{out}/**/*.parquet', hive_partitioning = true)"
    counted = duckdb.sql(f"SELECT count(*), count(DISTINCT value) FROM {everything}")
    assert counted is not None
    assert counted.fetchall() == [(len(offsets), feed.count)]
    assert not list((out / "_martlet").glob("staged/*/*"))
