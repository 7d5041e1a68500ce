"""The log pipe: what a server writes to standard error where a supervisor is to read it.

A supervisor may be stopped (Ctrl-Z, SIGSTOP), and then nobody reads.  A pipe holds some hundred
lines; after that an ordinary write would wait, and with it the event loop of the server.  Here a
line waits for a moment, in case there is merely much to read; from then on lines are dropped until
there is room again, and then how many were is told::

    [martlet] ... INFO: ...
    (431 lines were dropped here, as nobody read them)
    [martlet] ... INFO: ...
"""

from __future__ import annotations

import fcntl
import io
import os
import select
import stat
import sys
from typing import TextIO, cast

PATIENCE_S = 0.5
"""How long room is waited for, before lines are dropped."""
CAPACITY_BYTES = 1 << 20
"""How much the pipe is to hold, if it may: the most that Linux gives to all users."""


class LogPipe(io.TextIOBase):
    """The writing end of a pipe, which never blocks for long.

    Args:
        descriptor: of the pipe; nobody else may write to it.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._rest = b""
        """What did not fit of a line that was begun."""
        self._dropped_lines = 0
        os.set_blocking(descriptor, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            try:
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, CAPACITY_BYTES)
            except OSError:
                pass  # a smaller one does, too

    def fileno(self) -> int:
        """The pipe's."""
        return self._descriptor

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """Write, or drop what there is no room for."""
        told = ""
        if self._dropped_lines:
            told = f"({self._dropped_lines} lines were dropped here, as nobody read them)\n"
        data = (told + text).encode(errors="backslashreplace")
        if self._written(data):
            self._dropped_lines = 0
        else:
            self._dropped_lines += text.count("\n")
        return len(text)

    def _written(self, data: bytes) -> bool:
        """Write the rest of the line before, and this, or nothing of this."""
        may_wait = not self._dropped_lines
        rest, self._rest = self._rest, b""
        if rest:
            self._rest = self._left(rest, may_wait)
            if self._rest:
                return False
        left = self._left(data, may_wait)
        if left and len(left) == len(data):
            return False
        self._rest = left
        return True

    def _left(self, data: bytes, may_wait: bool) -> bytes:
        """What there was no room for."""
        view = memoryview(data)
        try:
            while view:
                try:
                    view = view[os.write(self._descriptor, view) :]
                except BlockingIOError:
                    if not (may_wait and self._has_room_soon()):
                        break
        except OSError:
            return b""  # nobody will ever read it
        return bytes(view)

    def _has_room_soon(self) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(PATIENCE_S * 1000))


def set_up() -> None:
    """Have standard error, and output with it, never block from now on, where that is a pipe."""
    descriptor = sys.stderr.fileno()
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        sys.stdout = sys.stderr = cast(TextIO, LogPipe(descriptor))
