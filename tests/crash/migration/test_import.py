"""Imports from nsqd that are killed, or lose the power, and are begun again."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from pathlib import Path
from random import Random

import pytest
from tests.interop.migration.nsqd_files import (
    Message,
    command,
    import_now,
    left_of,
    message,
    write_metadata,
    write_queue,
)

from martlet.broker.broker import BrokerCore
from martlet.broker.recovery.restore import restore
from martlet.cli.main import main
from martlet.log.commit_log import CommitLog
from martlet.migration.diskqueue import Findings
from martlet.migration.importing import Importing
from martlet.migration.nsqd_folder import NsqdFolder
from martlet.server.data_folder import broker_identity
from martlet.testing import SimulatedClock, SimulatedStorage

pytestmark = pytest.mark.crash

Expected = dict[str, list[bytes]]


def write_folder(folder: Path, chance: random.Random, count: int) -> Expected:
    """An nsqd's folder with three topics. Returns what each channel has to have in the end."""
    folder.mkdir()
    expected: Expected = {}
    topics: dict[str, list[str]] = {"deep": ["a", "b", "c"], "plain": ["only"], "paused": ["p"]}
    for topic, channels in topics.items():
        everything = [message(n, chance.randrange(10, 200)) for n in range(count)]
        backlog = [message(n) for n in range(count, count + count // 10)]
        for channel in channels:
            own = [m for m in everything if chance.random() < 0.7]
            tried = [m.tried(2) if chance.random() < 0.02 else m for m in own]
            chance.shuffle(tried)
            write_queue(folder, f"{topic}:{channel}", tried, per_file=count // 4)
            expected[f"{topic}:{channel}"] = bodies([*own, *backlog])
        write_queue(folder, topic, backlog)
    write_metadata(folder, topics)
    return expected


def bodies(messages: list[Message]) -> list[bytes]:
    return sorted(m.body for m in messages)


def kill_at(source: Path, data: Path, segments: int, delay_s: float) -> int | None:
    """Run an import, and kill it a moment after the log has a number of segments.

    Returns its exit code, None where it was killed.
    """
    arguments = command(source, data, "--max-bytes-per-file=16384")
    with subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline_s = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline_s:
            if len(list((data / "log").glob("*.log"))) >= segments:
                time.sleep(delay_s)
                process.kill()
                process.wait()
                return None
            time.sleep(0.001)
        return process.returncode


@pytest.mark.parametrize("seed", [1, 2])
def test_an_import_that_is_killed_ends_with_the_same_result(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    source, data = tmp_path / "nsqd", tmp_path / "martlet"
    expected = write_folder(source, chance, 2000)
    for target in sorted(chance.sample(range(1, 70), 7)):
        assert kill_at(source, data, target, chance.uniform(0, 0.02)) is None
        assert main(["log", "verify", str(data)]) == 0
    code, output, error = import_now(source, data, "--max-bytes-per-file=16384")
    assert (code, error) == (0, "")
    # The last kill may have come when all was done but the process's end.
    assert "3 topics" in output or "nothing is left to be done" in output
    assert main(["log", "verify", str(data)]) == 0
    assert left_of(data, *expected) == expected
    code, output, _ = import_now(source, data)
    assert (code, "nothing is left to be done" in output) == (0, True)
    assert left_of(data, *expected) == expected


class PowerCut(Exception):
    """The power goes in the middle of an import."""


def import_until(
    source: Path, storage: SimulatedStorage, clock: SimulatedClock, writes: int | None
) -> BrokerCore:
    broker_identity(storage, "fresh", to_finish=True)
    broker, _ = restore(storage, clock, Random(3), segment_bytes=1 << 14)
    left = writes

    class FailingLog(CommitLog):
        def _write(self, record: memoryview | bytearray) -> None:
            nonlocal left
            if left is not None:
                left -= 1
                if left < 0:
                    raise PowerCut
            super()._write(record)

    broker.log.__class__ = FailingLog
    Importing(broker, storage, NsqdFolder(source, Findings()), batch_bytes=1 << 11).run()
    return broker


@pytest.mark.parametrize("power", [False, True])
def test_an_import_goes_on_after_any_write(tmp_path: Path, power: bool) -> None:
    chance = random.Random(5)
    source = tmp_path / "nsqd"
    expected = write_folder(source, chance, 100)
    for step in (1, 2, 7, 13, 23, 40):
        storage, clock = SimulatedStorage(Random(step)), SimulatedClock()
        broker = None
        cuts, writes = 0, step
        while broker is None:
            try:
                broker = import_until(source, storage, clock, writes)
            except PowerCut:
                storage = storage.crash(power=power)
                cuts += 1
                writes += step  # or what a power cut takes each time would be all there is
        assert cuts > 0
        for name, bodies in expected.items():
            topic, channel = name.split(":")
            assert broker.topics[topic].channels[channel].depth == len(bodies), (step, name)


def test_a_copy_of_the_folder_is_the_same_folder(tmp_path: Path) -> None:
    expected = write_folder(tmp_path / "nsqd", random.Random(1), 500)
    data = tmp_path / "martlet"
    assert kill_at(tmp_path / "nsqd", data, 3, 0) is None
    shutil.copytree(tmp_path / "nsqd", tmp_path / "copy")
    shutil.rmtree(tmp_path / "nsqd")
    assert import_now(tmp_path / "copy", data)[0] == 0
    assert left_of(data, *expected) == expected
