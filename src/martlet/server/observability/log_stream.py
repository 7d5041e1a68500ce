"""The stream of a server's log lines, which never waits for its reader.

A pipe holds some hundred lines. Where nobody reads it (a stopped supervisor or container runtime, a
terminal with Ctrl-S), an ordinary write blocks, and with it the server's event loop. A `LogStream`
waits a moment for a slow reader, then drops lines until there is space again, and says how many::

    [martlet] ... INFO: 200 GET /ping (127.0.0.1:50124) 65µs
    [martlet] ... WARNING: 431 lines of the log dropped here: nobody read it, or it cannot be
    written
    [martlet] ... INFO: 200 GET /ping (127.0.0.1:50131) 59µs

Lines are dropped and counted, too, where the reader has gone or a file cannot be written.
"""

from __future__ import annotations

import fcntl
import io
import os
import select
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from typing import ClassVar, TextIO, cast

from martlet.text import counted

PATIENCE_S = 0.25
"""The time that lines may wait for space in all, before they are dropped."""
_PATIENCE_SHARE = 0.05
"""The share of the time in which a reader takes lines slowly that lines may wait again."""
CAPACITY_BYTES = 1 << 20
"""The capacity of a pipe, if allowed: Linux's maximum for ordinary users."""


class LogStream(io.TextIOBase):
    """Writes whole lines, or drops them.

    Args:
        descriptor: of the file, which stays open and as it is: others may write to it.
        patience_s: how long lines may wait for space, in all.
    """

    total_dropped_lines: ClassVar[int] = 0
    """The lines that the streams of this process have dropped."""

    def __init__(self, descriptor: int, patience_s: float | None = None) -> None:
        super().__init__()
        self.notice: Callable[[int], str] = lambda count: f"({dropped_lines(count)})\n"
        """Returns the text that says how many lines were dropped."""
        self._descriptor, self._send, self._close = _opened(descriptor)
        self._lock = threading.Lock()
        self._begun = b""
        """The rest of a line that was begun and did not fit."""
        self._dropped_lines = 0
        self._max_patience_s = PATIENCE_S if patience_s is None else patience_s
        self._patience_s = self._max_patience_s
        self._waited_at_s = time.monotonic()

    def fileno(self) -> int:
        """Return a descriptor of the file, which is this stream's alone."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Close this stream's descriptor."""
        if not self.closed:
            self._close()
        super().close()

    def write(self, text: str) -> int:
        """Write lines, or drop them."""
        with self._lock:
            if not self._is_written(text.encode(errors="backslashreplace")):
                count = text.count("\n")
                self._dropped_lines += count
                LogStream.total_dropped_lines += count
        return len(text)

    def _is_written(self, data: bytes) -> bool:
        """Write the rest of the line before, then all of these or none."""
        if self._begun:
            self._begun = self._left(self._begun)
            if self._begun:
                return False
        if self._dropped_lines:
            data = self.notice(self._dropped_lines).encode() + data
        left = self._left(data)
        if data and len(left) == len(data):
            return False
        self._begun, self._dropped_lines = left, 0
        return True

    def _left(self, data: bytes) -> bytes:
        """Write; return the rest that did not fit."""
        view = memoryview(data)
        try:
            while view:
                try:
                    view = view[self._send(view) :]
                except BlockingIOError:
                    if not self._has_space_soon():
                        break
        except OSError:
            pass  # It has no reader, or its disk is full: the caller counts what is left.
        return bytes(view)

    def _has_space_soon(self) -> bool:
        if self._dropped_lines:
            return False
        began_s = time.monotonic()
        earned_s = (began_s - self._waited_at_s) * _PATIENCE_SHARE
        patience_s = min(self._patience_s + earned_s, self._max_patience_s)
        has_space = _has_space(self._descriptor, patience_s)
        self._waited_at_s = time.monotonic()
        self._patience_s = max(0.0, patience_s - (self._waited_at_s - began_s))
        return has_space


def dropped_lines(count: int) -> str:
    """Return a text that says how many lines were dropped."""
    return (
        f"{counted(count, 'line')} of the log dropped here: nobody read it, or it cannot be written"
    )


def log_stream(stream: TextIO) -> TextIO:
    """Return a `LogStream` to the file of a standard stream; the stream itself if it has none."""
    if isinstance(stream, LogStream):
        return stream
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # a test's, in memory
        return stream
    stream.flush()
    return cast(TextIO, LogStream(descriptor))


def replace_standard_streams() -> None:
    """Let nothing that this process writes to standard output and error wait for a reader."""
    sys.stdout, sys.stderr = log_stream(sys.stdout), log_stream(sys.stderr)


_Opened = tuple[int, Callable[[memoryview], int], Callable[[], object]]


def _opened(descriptor: int) -> _Opened:
    """Open the file of a descriptor again, so that it does not block here, while others that have
    it are not surprised.

    Returns the new descriptor, what writes some bytes or raises BlockingIOError, and what closes
    it.
    """
    mode = os.fstat(descriptor).st_mode
    own = os.dup(descriptor)
    if stat.S_ISSOCK(mode):
        sock = socket.socket(fileno=own)
        return own, lambda view: sock.send(view, socket.MSG_DONTWAIT), sock.close
    if stat.S_ISREG(mode):
        return own, lambda view: os.write(own, view), lambda: os.close(own)
    _enlarge(descriptor)
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        unblocked = os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:  # a pipe or a terminal of another user
        return own, lambda view: _write_at_space(own, view), lambda: os.close(own)
    os.close(own)
    return unblocked, lambda view: os.write(unblocked, view), lambda: os.close(unblocked)


def _enlarge(descriptor: int) -> None:
    if not hasattr(fcntl, "F_SETPIPE_SZ"):
        return
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ) < CAPACITY_BYTES:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, CAPACITY_BYTES)
    except OSError:
        return  # A smaller one does, too, and a terminal has none.


def _write_at_space(descriptor: int, view: memoryview) -> int:
    """Write to a file that may block as much as it surely takes."""
    if not _has_space(descriptor, 0):
        raise BlockingIOError
    return os.write(descriptor, view[: select.PIPE_BUF])


def _has_space(descriptor: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(within_s * 1000))
