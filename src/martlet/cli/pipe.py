"""The output pipe of a command: its reader may close it early, as ``| head -1`` does."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress

EXIT_CODE = 128 + signal.SIGPIPE
"""A shell's exit code of a command that wrote to such a pipe."""


def is_closed() -> bool:
    """Check whether standard output is a pipe without a reader.

    A BrokenPipeError alone does not say so: another connection may have broken.
    """
    with suppress(OSError, ValueError):  # it may be no file at all
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    return False


def discard() -> None:
    """Discard further output, so that the interpreter's last flush succeeds."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
