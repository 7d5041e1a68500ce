"""Processes that are killed at a moment of their own progress: what tests of kills share.

The moment is some micro-batches after the first one that a start has committed, and a part of the
time that one has just taken.  So a kill meets a micro-batch on a fast machine and on a slow one.
"""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from tests.spark.publish import publish

BATCH = 500
_PAUSE_S = 0.5
LONG_S = 300
"""A machine that is busy elsewhere starts a Java virtual machine in a minute."""


class Feed:
    """Publishes numbers, one batch after the other, until it is left.

    Args:
        addresses: HTTP addresses of the replicas of a broker, or its own.

    Attributes:
        count: how many were answered OK.
    """

    def __init__(self, addresses: Sequence[str], topic: str) -> None:
        self.count = 0
        self._addresses = addresses
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        turn = 0
        while not self._stop.wait(_PAUSE_S):
            bodies = [b"%d" % number for number in range(self.count, self.count + BATCH)]
            try:
                publish(self._addresses[turn % len(self._addresses)], self._topic, bodies)
            except OSError:
                turn += 1  # Killed just now; what it stored twice has offsets of its own.
            else:
                self.count += BATCH

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Started:
    """A process that prints a line with ``batch`` for each micro-batch that it has committed, with
    its Java and the Python workers of that.

    Args:
        folder: gets a log of what it prints on stderr.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._log = folder / "started.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        rest = self._family()
        self.process.kill()
        end(rest)
        self.process.communicate()
        if error is not None:
            error.add_note(self._log.read_text(errors="replace")[-5000:])

    def committed(self) -> str:
        """Wait for one more micro-batch, and return the line about it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "batch" in line, f"it has ended: {line!r}"
        return line

    def strike(self, victim: str, chance: random.Random, others: Collection[str] = ("",)) -> None:
        """Kill a part of it at a moment after its first commits, or stop it.

        Args:
            victim: driver, java, worker; or term or interrupt, which are signals that stop it.
            others: parts of lines, of each of which one has to come first.
        """
        self.await_moment(chance, others)
        family = self._family()
        java = [process for process in family if is_called("java", process)]
        if victim == "driver":
            # With its workers, as a machine that fails takes them all.
            self.process.kill()
            end(family)
        elif victim == "java":
            end(java)
        elif victim == "worker":
            with suppress(psutil.NoSuchProcess):
                workers = java[0].children(recursive=True)
                end([worker for worker in workers if is_called("python", worker)])
        else:
            self._stop(signal.SIGTERM if victim == "term" else signal.SIGINT)

    def await_moment(self, chance: random.Random, others: Collection[str] = ("",)) -> None:
        """Wait for the first commit of each, and then for a part of what one takes."""
        left = set(others)
        while left:
            line = self.committed()
            left = {part for part in left if part not in line}
        began_s = time.monotonic()
        self.committed()
        took_s = time.monotonic() - began_s
        for _ in range(chance.randrange(3)):
            self.committed()
        threading.Event().wait(chance.random() * took_s)

    def _stop(self, number: signal.Signals) -> None:
        """Stop it after its current step; at once where it is told twice, as by Ctrl-C."""
        self.process.send_signal(number)
        if number == signal.SIGINT:
            self.process.send_signal(number)
        self.process.communicate(timeout=LONG_S)
        assert self.process.returncode == 0

    def _family(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []


def end(processes: Sequence[psutil.Process]) -> None:
    """Kill those of them that have not ended by themselves meanwhile."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def is_called(part: str, process: psutil.Process) -> bool:
    """Whether a process's name has that part."""
    with suppress(psutil.NoSuchProcess):
        return part in process.name()
    return False


def finished(command: Sequence[str]) -> str:
    """Run a command to its end, and return what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LONG_S, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout
