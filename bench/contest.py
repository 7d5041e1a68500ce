"""Contestants in turns, and the table of what they did."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True)
class Run:
    """What one client did in one run, once the broker has been asked whether it did."""

    messages: int
    seconds: float
    processor_s: float

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def processor_us(self) -> float:
        """The microseconds of the client's processor for each message."""
        return self.processor_s / self.messages * 1e6


@dataclass(frozen=True)
class Contest:
    """One kind of work, done by several.

    Attributes:
        title: what the work is.
        contestants: by name what does the run of a number, from 0, or raises SystemExit.
        first: the one that the others are set beside.
        beside: the heading of that column.
    """

    title: str
    contestants: Mapping[str, Callable[[int], Run]]
    first: str = "martlet"
    beside: str = "martlet is"

    def take_turns(self, repeat: int) -> dict[str, list[Run]]:
        """Let each do its run, so many times."""
        runs: dict[str, list[Run]] = {name: [] for name in self.contestants}
        for number in range(repeat):
            for name, contestant in self.contestants.items():
                run = contestant(number)
                runs[name].append(run)
                print(f"{self.title}, {name}: {run.rate:,.0f} msg/s", file=sys.stderr)
        return runs

    def table(self, runs: Mapping[str, list[Run]]) -> Table:
        """The medians."""
        table = Table(title=self.title)
        for heading in ("client", "msg/s, median", "processor us a message", self.beside):
            is_name = heading == "client"
            table.add_column(heading, justify="left" if is_name else "right", no_wrap=is_name)
        rates = {name: statistics.median(run.rate for run in done) for name, done in runs.items()}
        for name, rate in sorted(rates.items(), key=lambda item: -item[1]):
            processor_us = statistics.median(run.processor_us for run in runs[name])
            ratio = f"{rates[self.first] / rate:.2f} x" if self.first in rates else ""
            table.add_row(name, f"{rate:,.0f}", f"{processor_us:.2f}", ratio)
        return table
