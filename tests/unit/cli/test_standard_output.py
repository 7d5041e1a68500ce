"""Standard output that is not read, or not any more."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import termios
from collections.abc import Iterator
from typing import IO

import pytest

from martlet.cli import standard_output
from martlet.cli.standard_output import StandardOutput

LINES = [b"%06d\n" % number for number in range(200_000)]


def waiting_bytes(pipe: int | IO[bytes]) -> int:
    """How much is in a pipe, and not read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), "little")


def is_full(pipe: int | IO[bytes] | None) -> bool:
    """Whether no more than a page fits into a pipe."""
    assert pipe is not None
    return waiting_bytes(pipe) > fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) - select.PIPE_BUF


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Where to read, and where to write."""
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            assert descriptor == reading, "a test may close it"


async def filled(output: StandardOutput, reading: int) -> asyncio.Task[int]:
    """Lines are being written, until the pipe is full."""
    showing = asyncio.create_task(output.show(LINES))
    async with asyncio.timeout(50):
        while not is_full(reading):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert not showing.done()
    return showing


async def test_lines_that_a_full_pipe_did_not_take_do_not_count_as_shown(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standard_output, "PATIENCE_S", 0.02)
    monkeypatch.setattr(standard_output, "PIECE_BYTES", 100)
    reading, writing = pipe
    output = StandardOutput(writing)
    showing = await filled(output, reading)
    output.stop()
    shown = await asyncio.wait_for(showing, 50)
    held = os.read(reading, 1 << 20)
    assert held == b"".join(LINES)[: len(held)]
    assert 0 <= held.count(b"\n") - shown <= 100 // 7 + 1
    assert await output.show(LINES) == 0


async def test_a_reader_gets_everything_after_stop(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    output = StandardOutput(writing)
    showing = await filled(output, reading)
    output.stop()
    left = sum(map(len, LINES))
    while left:
        left -= len(await asyncio.to_thread(os.read, reading, 1 << 20))
    assert await asyncio.wait_for(showing, 50) == len(LINES)


async def test_a_reader_that_goes_is_reported(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    showing = await filled(StandardOutput(writing), reading)
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(showing, 50)
