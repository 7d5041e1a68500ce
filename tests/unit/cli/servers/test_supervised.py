"""The log of a server whose supervisor does not read it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from martlet.cli.servers import supervised as log_pipe
from martlet.cli.servers.supervised import LogPipe


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Where to read, without waiting, and where to write."""
    monkeypatch.setattr(log_pipe, "PATIENCE_S", 0.05)
    monkeypatch.setattr(log_pipe, "CAPACITY_BYTES", 1 << 16)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    for each in (reading, writing):
        with suppress(OSError):  # a test may have closed it
            os.close(each)


def drained(reading: int) -> str:
    """All that is in the pipe."""
    data = b""
    with suppress(BlockingIOError):
        while piece := os.read(reading, 1 << 20):
            data += piece
    return data.decode()


@pytest.mark.parametrize(("length", "count"), [(80, 5000), (5000, 100), (200_000, 5)])
def test_unread_lines_are_dropped_and_counted(
    pipe: tuple[int, int], length: int, count: int
) -> None:
    reading, writing = pipe
    log = LogPipe(writing)
    lines = [f"{number} {'x' * length}" for number in range(count)]
    began_s = time.monotonic()
    for line in lines:
        log.write(line + "\n")
    assert time.monotonic() - began_s < 2, "what did not fit was waited for once"
    shown, tries = drained(reading), 0
    while "lines are read\n" not in shown:
        tries += 1
        log.write("lines are read\n")
        shown += drained(reading)
    log.write("and again\n")
    found = shown.splitlines()
    complete = found[:-2]
    assert 0 < len(complete) < count
    assert complete == lines[: len(complete)], "none is torn"
    dropped = count - len(complete) + tries - 1
    assert found[-2] == f"({dropped} lines were dropped here, since the pipe was full)"
    assert drained(reading) == "and again\n"


def test_a_supervisor_that_has_gone_holds_up_nothing(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    log = LogPipe(writing)
    os.close(reading)
    assert log.write("a line\n") == 7
    log.flush()
