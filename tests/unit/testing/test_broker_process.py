"""A broker as a process, and its fixture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from martlet.cli.servers.broker import arguments
from martlet.testing import Broker, BrokerProcess

SILENT = "import time; print('still recovering', flush=True); time.sleep(600)"


class SilentBroker(BrokerProcess):
    """A process that never listens."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", SILENT]


def test_a_start_that_takes_too_long_names_the_setting_and_shows_the_log(tmp_path: Path) -> None:
    broker = SilentBroker(tmp_path, start_timeout_s=2)
    with pytest.raises(RuntimeError, match=r"start_timeout_s=2:\nstill recovering"):
        broker.start()
    assert not broker.is_running
    broker.close()


def test_the_fixture_takes_its_time_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmartlet_start_timeout_s = 77\n")
    (tmp_path / "test_it.py").write_text(
        "def test_it(martlet_broker_process):\n"
        "    assert martlet_broker_process._start_timeout_s == 77\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:schemathesis"],
        check=False,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
    )
    assert "1 passed" in run.stdout, run.stdout + run.stderr


def test_history_stays_however_full_the_disk_of_the_machine_is(tmp_path: Path) -> None:
    def force_percent_of(*flags: str) -> object:
        command = BrokerProcess(tmp_path, *flags).command
        return arguments().read(command[4:])[0]["disk_force_percent"]

    assert force_percent_of() == Broker().options.disk_force_percent == 0
    assert force_percent_of("--disk-force-percent=90") == 90
    assert Broker(disk_force_percent=90).options.disk_force_percent == 90
