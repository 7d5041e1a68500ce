"""The log of a server that nobody reads."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import pytest

from martlet.cli import start
from martlet.options import LogLevel
from martlet.server.observability import log_stream as module
from martlet.server.observability.log_stream import LogStream, log_stream, replace_standard_streams


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Where to read, without waiting, and where to write."""
    monkeypatch.setattr(module, "CAPACITY_BYTES", 1 << 16)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    for end in (reading, writing):
        with suppress(OSError):  # a test may have closed it
            os.close(end)


@pytest.fixture(params=["pipe", "pipe of another user", "socket"])
def ends(
    request: pytest.FixtureRequest, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[int, int]]:
    """Two ends of each kind that standard error may be."""
    if request.param == "socket":
        reading, writing = socket.socketpair()
        reading.setblocking(False)
        with reading, writing:
            yield reading.fileno(), writing.fileno()
        return
    if request.param == "pipe of another user":
        real = os.open

        def refuse(path: str, *arguments: int) -> int:
            if path.startswith("/proc/self/fd/"):
                raise PermissionError
            return real(path, *arguments)

        monkeypatch.setattr(os, "open", refuse)
    yield pipe


def drained(reading: int) -> str:
    """All that is in the pipe."""
    data = b""
    with suppress(BlockingIOError):
        while piece := os.read(reading, 1 << 20):
            data += piece
    return data.decode()


@pytest.mark.parametrize(("length", "count"), [(80, 8000), (5000, 200), (700_000, 5)])
def test_unread_lines_are_dropped_and_counted(
    ends: tuple[int, int], length: int, count: int
) -> None:
    reading, writing = ends
    before = LogStream.total_dropped_lines
    log = LogStream(writing, patience_s=0)
    lines = [f"{number} {'x' * length}" for number in range(count)]
    for line in lines:
        log.write(line + "\n")
    shown, tries = drained(reading), 0
    while "lines are read\n" not in shown:
        tries += 1
        log.write("lines are read\n")
        shown += drained(reading)
    log.write("and again\n")
    shown_lines = shown.splitlines()
    complete = shown_lines[:-2]
    assert 0 < len(complete) < count
    assert complete == lines[: len(complete)], "none is torn"
    dropped = count - len(complete) + tries - 1
    assert shown_lines[-2].startswith(f"({dropped} lines of the log dropped here")
    assert LogStream.total_dropped_lines - before == dropped
    assert drained(reading) == "and again\n"


def test_a_line_waits_a_moment_for_a_slow_reader(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.set_blocking(reading, True)
    log = LogStream(writing, patience_s=60)
    lines = [f"{number} {'x' * 1000}\n" for number in range(1000)]
    pieces: list[bytes] = []

    def read() -> None:
        while piece := os.read(reading, 100):
            pieces.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    for line in lines:
        log.write(line)
    log.close()
    os.close(writing)
    reader.join(60)
    assert b"".join(pieces).decode() == "".join(lines)


def test_lines_for_a_reader_that_has_gone_are_counted(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    before = LogStream.total_dropped_lines
    log = LogStream(writing)
    os.close(reading)
    assert log.write("a line\n") == 7
    log.flush()
    assert LogStream.total_dropped_lines - before == 1


def test_lines_for_a_full_disk_are_counted() -> None:
    before = LogStream.total_dropped_lines
    with open("/dev/full", "wb") as full:
        log = LogStream(full.fileno())
        log.write("a line\n")
        log.close()
    assert LogStream.total_dropped_lines - before == 1


def test_others_that_write_to_the_pipe_still_wait_for_its_reader(pipe: tuple[int, int]) -> None:
    log = LogStream(pipe[1])
    assert os.get_blocking(pipe[1])
    assert fcntl.fcntl(log.fileno(), fcntl.F_GETFL) & os.O_NONBLOCK


def test_the_count_is_a_line_of_the_log(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = pipe
    with os.fdopen(os.dup(writing), "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setattr(sys, "stdout", stderr)
        monkeypatch.setattr(module, "PATIENCE_S", 0)
        replace_standard_streams()
        assert log_stream(sys.stderr) is sys.stderr
        logger = logging.getLogger(start.ROOT)
        monkeypatch.setattr(logger, "handlers", [])
        monkeypatch.setattr(logger, "propagate", True)
        monkeypatch.setattr(logger, "level", logging.INFO)
        start.set_up_logging(LogLevel.INFO, "[me] ")
        for number in range(2000):
            logger.info("%d %s", number, "x" * 100)
        lines = drained(reading).splitlines()
        logger.info("read again")
        counted, last = drained(reading).splitlines()[-2:]
        cast(LogStream, sys.stderr).close()
        cast(LogStream, sys.stdout).close()
    assert counted.startswith("[me] 20")
    assert f" WARNING: {2000 - len(lines)} lines of the log dropped here" in counted
    assert last.endswith(" INFO: read again")
