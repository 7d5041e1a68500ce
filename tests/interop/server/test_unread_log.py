"""Servers whose log nobody reads: they serve, and say later how many lines were dropped."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.interop.asking import until

from martlet.testing.ports import free_port

pytestmark = pytest.mark.interop
CAPACITY_BYTES = 1 << 20
"""To which a server enlarges a pipe."""


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe with no space for a line."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, CAPACITY_BYTES)
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4095 + b"\n")
    os.set_blocking(writing, True)
    os.set_blocking(reading, False)
    yield reading, writing
    os.close(reading)


def fetch(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.URLError:
        return None


@pytest.mark.parametrize("server", ["broker", "lookup", "admin", "up"])
def test_a_server_whose_log_nobody_reads_goes_on(
    server: str, full_pipe: tuple[int, int], tmp_path: Path
) -> None:
    reading, writing = full_pipe
    http = f"127.0.0.1:{free_port()}"
    arguments = {
        "broker": [f"--data-path={tmp_path}", "--tcp-address=127.0.0.1:0"],
        "lookup": ["--tcp-address=127.0.0.1:0"],
        "admin": ["--nsqd-http-address=127.0.0.1:1"],
        "up": [f"--data-path={tmp_path}", "--tcp-address=127.0.0.1:0", "--lookup=false"],
    }[server] + [f"--http-address={http}"]
    if server == "up":
        arguments.append("--admin=false")
    process = subprocess.Popen(
        [sys.executable, "-m", "martlet", server, *arguments], stdout=writing, stderr=writing
    )
    try:
        os.close(writing)
        until(lambda: fetch(f"http://{http}/ping") == "OK")
        if server == "broker":
            # Its own line is dropped, too.
            assert re.search(
                r"^martlet_dropped_log_lines_total [1-9]",
                fetch(f"http://{http}/metrics") or "",
                re.M,
            )
        unread = read(reading)

        def is_counted() -> bool:
            nonlocal unread
            fetch(f"http://{http}/nothing")  # logged by all of them
            unread += read(reading)
            return b" lines of the log dropped here" in unread

        if server in ("broker", "lookup"):
            until(is_counted)
        process.terminate()
        assert process.wait(60) == 0
        unread += read(reading)
        assert b" lines of the log dropped here" in unread
    finally:
        process.kill()
        process.wait()


def read(reading: int) -> bytes:
    data = b""
    with suppress(BlockingIOError):
        while piece := os.read(reading, 1 << 20):
            data += piece
    return data
