"""The board: how far everybody is. Bars that move on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from examples.flights.failure import DemoFailed

_TICK_S = 0.1
_LINE_S = 2.0
START_S = 240.0
"""How long it may take until something moves. Spark takes ten seconds to start, but on a machine
that has much else to do it takes minutes."""
STALL_S = 120.0
"""When nothing at all has moved for so long the job is given up."""


@dataclass(slots=True)
class _Row:
    label: str
    total: int
    count: Callable[[], int]
    task: TaskID


class DemoBoard:
    """Shows counts while they grow, and tells what happens."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._rows: list[_Row] = []
        self._progress = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[count]}"),
            console=console,
            refresh_per_second=10,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> DemoBoard:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._show()
        self._progress.stop()

    @property
    def seconds(self) -> float:
        """How long the job has been running."""
        return time.monotonic() - self._began_s

    def add(self, label: str, total: int, count: Callable[[], int]) -> None:
        """Show this count from now on."""
        task = self._progress.add_task(label, total=total, count="")
        self._rows.append(_Row(label, total, count, task))

    def say(self, text: str) -> None:
        """Tell that something has happened."""
        self._console.print(f"{self.seconds:6.1f} s  {text}", highlight=False, soft_wrap=True)

    async def run(self) -> None:
        """Keep the board up to date until cancelled.

        Raises:
            DemoFailed: nothing moves any more.
        """
        seen: list[int] = []
        told: list[int] = []
        moved_s = told_s = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            counts = self._show()
            now_s = time.monotonic()
            if counts != seen:
                seen, moved_s = counts, now_s
            elif now_s - moved_s > (limit_s := STALL_S if any(counts) else START_S):
                raise DemoFailed(f"nothing has moved for {limit_s:.0f} s")
            if not self._console.is_terminal and now_s - told_s > _LINE_S and counts != told:
                told, told_s = counts, now_s
                self.say(", ".join(f"{row.label} {row.count():,}" for row in self._rows))

    def _show(self) -> list[int]:
        counts = []
        for row in self._rows:
            count = row.count()
            # What was stored twice makes more than there are flights.
            row.total = max(row.total, count)
            text = f"{count:>9,} of {row.total:,}"
            self._progress.update(row.task, completed=count, total=row.total, count=text)
            counts.append(count)
        return counts
