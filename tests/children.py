"""Ends the processes that tests have started, also where the process of the tests was killed.

Each process that a test starts inherits `MARK` in its environment, whose value is of this process
of tests alone. A process beside it, the guard, waits on a pipe that closes when the process of
tests has ended, however it did, and kills what still has the mark.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

MARK = "MARTLET_TESTS_OF"


def guard() -> Callable[[], None]:
    """Mark what this process starts from now on, and guard it. Returns what ends all of it.

    Where the system has no ``/proc``, nothing is guarded.
    """
    if not Path("/proc/self/environ").exists():
        return lambda: None
    mark = os.environ[MARK] = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", __file__, mark],
        stdin=subprocess.PIPE,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != MARK},
    )

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()

    return end


def marked(mark: str) -> list[int]:
    """Return the ids of all other processes with that mark."""
    wanted = f"{MARK}={mark}".encode()
    process_ids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            # It may have ended, or be another user's.
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    process_ids.append(int(folder.name))
    return process_ids


def kill_marked(mark: str) -> None:
    """Kill all processes with that mark, and what they start meanwhile."""
    while process_ids := marked(mark):
        for process_id in process_ids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    kill_marked(sys.argv[1])
