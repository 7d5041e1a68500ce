"""Standard output, which may be a pipe without an active reader.

A write to a full pipe waits for its reader, for ever if that is `less` or a stopped process. So a
thread writes, while the event loop continues, and once output is stopped nothing waits for the
thread. It writes to the descriptor itself: a file object has a lock, and Python crashes at exit if
a thread holds it. The descriptor is not made non-blocking, since it is shared with the shell and
other commands.
"""

from __future__ import annotations

import asyncio
import os
import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from queue import SimpleQueue
from threading import Thread

PIECE_BYTES = 1 << 16
"""The size of one write: a pipe's capacity, so that the progress of its reader is known."""
PATIENCE_S = 1.0
"""The maximum wait for a write once output is stopped."""


class _Job:
    """Bytes to write, and the number written."""

    __slots__ = ("data", "done", "written_bytes")

    def __init__(self, data: bytes, done: asyncio.Future[None]) -> None:
        self.data = data
        self.done = done
        self.written_bytes = 0


class StandardOutput:
    """Write lines."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = sys.stdout.fileno() if descriptor is None else descriptor
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._thread: Thread | None = None
        self._turn = asyncio.Lock()
        self._current: _Job | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_given_up = False

    async def print(self, lines: Iterable[str]) -> None:
        """Write lines of text, each with a newline. Raises OSError."""
        await self.show([f"{line}\n".encode() for line in lines])

    async def show(self, lines: Sequence[bytes]) -> int:
        """Write lines; return the number written, which is all unless output was stopped. Raises
        OSError: they cannot be written, as to a pipe whose reader is gone.
        """
        async with self._turn:
            if self._is_given_up or not lines:
                return 0
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            job = self._current = _Job(b"".join(lines), done)
            self._write_soon(job)
            await done
            if job.written_bytes == len(job.data):
                return len(lines)
            return bisect_right(list(accumulate(map(len, lines))), job.written_bytes)

    def stop(self) -> None:
        """Stop: wait for writes only for a moment from now on."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(PATIENCE_S, self._give_up)

    def _give_up(self) -> None:
        self._is_given_up = True
        if self._current is not None:
            _settle(self._current.done, None)

    def _write_soon(self, job: _Job) -> None:
        self._jobs.put(job)
        if self._thread is None:
            self._thread = Thread(target=self._work, name="martlet output", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            error = None
            try:
                self._write(job)
            except OSError as failure:
                error = failure
            with suppress(RuntimeError):  # the loop has ended
                job.done.get_loop().call_soon_threadsafe(_settle, job.done, error)

    def _write(self, job: _Job) -> None:
        view = memoryview(job.data)
        while job.written_bytes < len(view) and not self._is_given_up:
            piece = view[job.written_bytes : job.written_bytes + PIECE_BYTES]
            job.written_bytes += os.write(self._descriptor, piece)


def _settle(done: asyncio.Future[None], error: OSError | None) -> None:
    if done.done():
        return  # its waiter was cancelled
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
