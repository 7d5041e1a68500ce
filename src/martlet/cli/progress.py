"""The progress of a long command, on standard error: a bar at a terminal, else occasional lines.

The bar needs the package rich, from the extra ``cli``; without it a terminal gets lines too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TextIO

Advance = Callable[[int], None]
"""Called with the number of further steps done."""

_LINE_EACH_S = 10.0


@contextmanager
def shown(what: str, total: int) -> Iterator[Advance]:
    """Show the progress of a command."""
    if sys.stderr.isatty() and find_spec("rich") is not None:
        with _bar(what, total) as advance:
            yield advance
    else:
        yield Lines(what, total, sys.stderr).advance


class Lines:
    """A line every ten seconds, none for a shorter command."""

    def __init__(
        self, what: str, total: int, stream: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._total = total
        self._stream = stream
        self._clock = clock
        self._done = 0
        self._began_s = clock()
        self._due_s = self._began_s + _LINE_EACH_S

    def advance(self, count: int) -> None:
        """Count steps as done."""
        self._done += count
        now_s = self._clock()
        if now_s < self._due_s or not 0 < self._done < self._total:
            return
        self._due_s = now_s + _LINE_EACH_S
        left_s = (now_s - self._began_s) * (self._total - self._done) / self._done
        print(
            f"{self._what}: {self._done / self._total:.0%}, about {left_s:.0f} s left",
            file=self._stream,
            flush=True,
        )


@contextmanager
def _bar(what: str, total: int) -> Iterator[Advance]:
    # Imported here: it may be missing, and takes a while.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeLeft())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
