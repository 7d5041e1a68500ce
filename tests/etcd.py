"""A real etcd, of Debian's etcd-server or any other, as a process of a test."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from martlet.testing.ports import free_port


@contextmanager
def running_etcd(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a cluster of one member; its address and its process. It answers within seconds.

    Skips the test where there is no etcd.
    """
    program = os.environ.get("MARTLET_ETCD") or shutil.which("etcd")
    if program is None:
        pytest.skip("no etcd on PATH, and MARTLET_ETCD names none")
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    with (folder / "etcd.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--data-dir={folder / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield client.removeprefix("http://"), process
    finally:
        process.kill()
        process.wait()
