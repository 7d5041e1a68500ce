"""A test that hangs fails alone, and what it has started ends with it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from tests import children
from tests.time_limit import TICK_S, TestClock

ROOT = Path(__file__).parents[2]
CRASH = """
import os, subprocess, sys

def test_first(): pass

def test_crashes():
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(command, start_new_session=True)
    with open("started", "a") as file:
        file.write(f"{process.pid}\\n")
    os._exit(70)

def test_last(): pass
"""


def ticks_until_it_fails(monkeypatch: pytest.MonkeyPatch, load: float, limit_s: float) -> int:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    clock = TestClock("a test", limit_s)
    clock.in_phase = True
    for count in range(1, 10_000):
        try:
            clock.tick(0, None)
        except pytest.fail.Exception:
            return count
    raise AssertionError("it never fails")


def test_a_limit_counts_the_share_of_a_processor(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    limit_s = 10 * TICK_S
    alone = ticks_until_it_fails(monkeypatch, 0.5, limit_s)
    assert (alone, ticks_until_it_fails(monkeypatch, 16, limit_s)) == (10, 80)
    assert "a test: over its limit of 20 s" in capfd.readouterr().err


def test_no_failure_is_raised_between_the_phases_of_a_test() -> None:
    clock = TestClock("a test", limit_s=TICK_S / 1e6)
    for _ in range(100):
        clock.tick(0, None)


def test_a_process_of_tests_that_ends_fails_one_test_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "test_crash.py").write_text(CRASH)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-n", "1", f"--rootdir={tmp_path}"]
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *options,
            "-c",
            str(ROOT / "pyproject.toml"),
            "test_crash.py",
        ],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "1 failed, 2 passed" in run.stdout, run.stdout + run.stderr
    (process_id,) = (tmp_path / "started").read_text().split()
    with contextlib.suppress(ProcessLookupError):  # It has ended already.
        descriptor = os.pidfd_open(int(process_id))
        select.select([descriptor], [], [])
        os.close(descriptor)


def test_marked_processes_are_killed_whoever_their_parent_is() -> None:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "import sys; print('here', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={children.MARK: "a mark of this test"},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        assert children.marked("a mark of this test") == [process.pid]
        children.kill_marked("a mark of this test")
        assert process.wait() == -9
