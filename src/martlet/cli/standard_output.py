"""Standard output, behind which there may be a pipe that nobody reads.

A write to a full pipe waits for whoever reads it, for ever if that is `less` or a stopped process.
So a thread of its own writes, which nobody waits for once it is told to stop, and the event loop
goes on meanwhile.  It writes to the descriptor itself: a file object has a lock, and Python ends
badly where a thread holds that.  The descriptor is not made non-blocking, since it is shared with
the shell and other commands.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from queue import SimpleQueue
from threading import Thread

PIECE_BYTES = 1 << 16
"""How much is written at once: what a pipe holds, so that it is known how far a reader has come."""
PATIENCE_S = 1.0
"""How long what is being written is waited for, once told to stop."""


class _Job:
    """Bytes to be written, and how many are."""

    __slots__ = ("data", "done", "written_bytes")

    def __init__(self, data: bytes, done: asyncio.Future[None]) -> None:
        self.data = data
        self.done = done
        self.written_bytes = 0


class StandardOutput:
    """Shows lines.

    Args:
        descriptor: where.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._thread: Thread | None = None
        self._turn = asyncio.Lock()
        self._current: _Job | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_given_up = False

    async def show(self, lines: Sequence[bytes]) -> int:
        """Write lines; how many of them are written, which are all unless it was told to stop.

        Raises:
            OSError: they cannot be written, as where nobody reads them any more.
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
        """Let no write be waited for, but for a moment."""
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
        return  # nobody waits for it any longer
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
