"""The demonstration as a user runs it: its output, its exit code, what it leaves behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from examples.flights.flights import Flights

pytestmark = [pytest.mark.spark, pytest.mark.crash]

FLIGHTS = 20_000
LIMIT_S = 400


@contextmanager
def demo(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "martlet", "demo", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def processes_of(folder: Path) -> list[str]:
    """The command lines of all processes that have to do with the folder."""
    commands = []
    for process in psutil.process_iter():
        try:
            arguments = process.cmdline()
            named = [*arguments, process.environ().get("TMPDIR", "")]
        except psutil.Error:
            continue  # It has just ended, or is another user's.
        if any(str(folder) in text for text in named):
            commands.append(" ".join(arguments))
    return commands


def all_end(folder: Path) -> bool:
    """Whether they all end; Spark's Python workers do a moment after its Java."""
    deadline_s = time.monotonic() + 15
    while (left := processes_of(folder)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return not left


def number(output: str, label: str) -> int:
    cell = re.search(rf"│ {re.escape(label)} +│ +([\d,]+) │", output)
    assert cell, f"no {label!r} in:\n{output}"
    return int(cell[1].replace(",", ""))


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
def test_nothing_is_lost_and_all_adds_up(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with demo("--flights", str(FLIGHTS), "--out", str(out)) as process:
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output

    # Killed in the middle of publishing, consuming and archiving, by its own counts.
    counts = r"SIGKILL, with ([\d,]+) flights acknowledged .* ([\d,]+) finished, ([\d,]+) archived"
    killed = re.search(counts, output)
    assert killed, output
    acknowledged, finished, archived = (int(text.replace(",", "")) for text in killed.groups())
    assert FLIGHTS / 2 <= acknowledged < FLIGHTS * 0.75
    assert FLIGHTS * 0.35 <= finished < FLIGHTS * 0.75
    assert 0 < archived < FLIGHTS

    # The account, and what the folder says of it.
    for label in ("flights", "published", "acknowledged", "finished", "archived"):
        assert number(output, label) == FLIGHTS
    assert number(output, "lost") == number(output, "left on the channel") == 0
    assert number(output, "redelivered") >= FLIGHTS // 100
    assert "martlet log verify: OK" in output
    table = ds.dataset(
        out / "flights.parquet", partitioning="hive", exclude_invalid_files=True
    ).to_table(columns=["row", "origin", "month", "_offset"])
    assert len(table) == FLIGHTS + number(output, "stored twice")
    assert pc.count_distinct(table["_offset"]).as_py() == len(table)
    assert set(table["row"].to_pylist()) == set(range(FLIGHTS))
    assert {path.name for path in (out / "flights.parquet").glob("origin=*/month=*")} == {
        f"month={month}" for month in range(1, 13)
    }

    # The report.
    for carrier, line in Flights.load(FLIGHTS).report.items():
        delay = "none" if line.mean_delay_min is None else f"{line.mean_delay_min:.2f}"
        both = rf"{line.flights:,} +│ +{re.escape(delay)} +│ +"
        assert re.search(rf"│ {carrier} +│ +{both}{both}{both}yes", output), (carrier, output)
    assert all_end(out), processes_of(out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
def test_interrupted_it_ends_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    with demo("--flights", "300000", "--out", str(out)) as process:
        assert process.stdout is not None
        # As soon as all of them are at work.
        for line in process.stdout:
            if "publishing begins" in line:
                break
        assert len(processes_of(out)) >= 4, "demo, broker, archive and Java"
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, output
    assert "Traceback" not in output
    assert all_end(out), processes_of(out)


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with demo("--out", str(tmp_path)) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "is not empty" in output
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
