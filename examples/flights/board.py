"""The progress of the job: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

_TICK_S = 0.1
_LINE_S = 2.0
START_S = 240.0
"""The time until something must move. Spark takes ten seconds to start, but minutes on a machine
that has much else to do."""
STALL_S = 120.0
"""The time without any progress after which the job fails."""


class DemoFailed(Exception):
    """The job cannot go on; the text says why."""


class Mark:
    """A count that one task at a time may wait for.

    Attributes:
        count: its value now.
    """

    def __init__(self) -> None:
        self.count = 0
        self._target = 0
        self._reached = asyncio.Event()

    def rise(self, count: int) -> None:
        """Set the count, which never falls."""
        self.count = count
        if count >= self._target:
            self._reached.set()

    async def reach(self, target: int) -> None:
        """Wait until the count is the target or more."""
        if self.count < target:
            self._target = target
            self._reached.clear()
            await self._reached.wait()


@dataclass(slots=True)
class _Row:
    label: str
    total: int
    mark: Mark
    task: TaskID


class DemoBoard:
    """Shows counts while they grow, and events."""

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

    def __exit__(self, *_error: object) -> None:
        self._show()
        self._progress.stop()

    @property
    def seconds(self) -> float:
        """The time since the job began."""
        return time.monotonic() - self._began_s

    def add(self, label: str, total: int, mark: Mark) -> None:
        """Show this count from now on."""
        task = self._progress.add_task(label, total=total, count="")
        self._rows.append(_Row(label, total, mark, task))

    def say(self, text: str) -> None:
        """Print an event, with the time."""
        self._console.print(f"{self.seconds:6.1f} s  {text}", highlight=False, soft_wrap=True)

    async def run(self) -> None:
        """Keep the board up to date until cancelled.

        Raises:
            DemoFailed: nothing moves any more.
        """
        seen: list[int] = []
        printed: list[int] = []
        moved_s = printed_s = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            counts = self._show()
            now_s = time.monotonic()
            if counts != seen:
                seen, moved_s = counts, now_s
            elif now_s - moved_s > (limit_s := STALL_S if any(counts) else START_S):
                raise DemoFailed(f"nothing has moved for {limit_s:.0f} s")
            is_due = now_s - printed_s > _LINE_S and counts != printed
            if is_due and not self._console.is_terminal:
                printed, printed_s = counts, now_s
                self.say(", ".join(f"{row.label} {row.mark.count:,}" for row in self._rows))

    def _show(self) -> list[int]:
        for row in self._rows:
            count = row.mark.count
            # Messages that were stored twice make more than there are flights.
            row.total = max(row.total, count)
            text = f"{count:>9,} of {row.total:,}"
            self._progress.update(row.task, completed=count, total=row.total, count=text)
        return [row.mark.count for row in self._rows]
