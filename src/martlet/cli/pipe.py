"""The pipe behind a command: it may be closed before all is written, as by ``| head -1``."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress

EXIT_CODE = 128 + signal.SIGPIPE
"""What a shell tells of a command that wrote to such a pipe."""


def is_closed() -> bool:
    """Whether nobody reads standard output any more.

    A BrokenPipeError alone does not tell: it may as well be some other connection that broke.
    """
    with suppress(OSError, ValueError):  # it may be no file at all
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    return False


def discard() -> None:
    """Write no more, or the interpreter tells of what could not be written when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
