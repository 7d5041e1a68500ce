"""Run a command of ``martlet`` that ends with the process that started it, even if that is killed.

::

    python -m martlet.cli.servers.supervised PARENT_ID COMMAND [ARGUMENTS]

The kernel sends the command a SIGTERM when its parent ends (``PR_SET_PDEATHSIG``, only Linux), so
that a broker whose supervisor was killed stops cleanly, and releases its ports and its folder for
the next one.

A stopped supervisor (Ctrl-Z, SIGSTOP) does not read the command's log lines. A pipe holds some
hundred lines; after that an ordinary write would block, and with it the server's event loop.
`LogPipe` waits a moment for a slow reader, then drops lines until the pipe has space again, and
reports their number::

    [martlet] ... INFO: ... (431 lines were dropped here, since the pipe was full) [martlet] ...
    INFO: ...
"""

from __future__ import annotations

import ctypes
import fcntl
import io
import os
import select
import signal
import stat
import sys
from collections.abc import Sequence
from typing import TextIO, cast

from martlet.cli import main as martlet

PATIENCE_S = 0.5
"""The time that a line waits for space before it is dropped."""
CAPACITY_BYTES = 1 << 20
"""The capacity of the pipe, if allowed: Linux's maximum for ordinary users."""


class LogPipe(io.TextIOBase):
    """The writing end of a pipe, which never blocks for long.

    Args:
        descriptor: of the pipe, which has no other writer.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._rest = b""
        """The rest of a line that was begun and did not fit."""
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
        """Write, or drop a line that does not fit."""
        notice = ""
        if self._dropped_lines:
            notice = f"({self._dropped_lines} lines were dropped here, since the pipe was full)\n"
        data = (notice + text).encode(errors="backslashreplace")
        if self._written(data):
            self._dropped_lines = 0
        else:
            self._dropped_lines += text.count("\n")
        return len(text)

    def _written(self, data: bytes) -> bool:
        """Write the rest of the previous line, then all of this one or none."""
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
        """Write; return the rest that did not fit."""
        view = memoryview(data)
        try:
            while view:
                try:
                    view = view[os.write(self._descriptor, view) :]
                except BlockingIOError:
                    if not (may_wait and self._has_room_soon()):
                        break
        except OSError:
            return b""  # it has no reader
        return bytes(view)

    def _has_room_soon(self) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(PATIENCE_S * 1000))


def set_up() -> None:
    """Keep standard error and output from blocking, if they are pipes."""
    descriptor = sys.stderr.fileno()
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        sys.stdout = sys.stderr = cast(TextIO, LogPipe(descriptor))


_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> int:
    """Run a command as the child of that process; return its exit code."""
    parent_id = int(argv[0])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_id:  # it ended before the kernel was asked to signal its end
        return 1
    set_up()
    return martlet.main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
