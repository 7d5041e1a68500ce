"""Rows on servers, in turns.

The load of the machine changes from minute to minute, so a rate alone says little. Each run on one
server is followed at once by the same on the other; the order changes from pair to pair, and the
pairs are compared.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.servers import nsqload
from bench.servers.load import CHANNEL, TOPIC
from bench.servers.load_processes import LoadProcesses
from bench.servers.row import BACKLOG, Row
from bench.servers.target import Target


@dataclass
class Measurement:
    """A measure of a row.

    Attributes:
        row: the row.
        measure: which of its measures; empty where it has one.
        ours, theirs: a value a run; theirs is empty where there was nothing to compare with.
        pure: of ours without the compiled hot path, if that was measured.
    """

    row: Row
    measure: str
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    pure: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Ours."""
        return statistics.median(self.ours)

    @property
    def their_median(self) -> float | None:
        """Theirs."""
        return statistics.median(self.theirs) if self.theirs else None

    @property
    def ratio(self) -> float | None:
        """How much better our median is than theirs: above 1 is better."""
        return self._better(self.median, self.their_median) if self.their_median else None

    @property
    def pure_ratio(self) -> float | None:
        """The same of ours without the compiled hot path."""
        if not self.pure or not self.their_median:
            return None
        return self._better(statistics.median(self.pure), self.their_median)

    @property
    def pair_ratios(self) -> list[float]:
        """The same of each pair of runs."""
        return [self._better(a, b) for a, b in zip(self.ours, self.theirs, strict=False) if a and b]

    def _better(self, ours: float, theirs: float) -> float:
        return ours / theirs if self.row.more_is_better else theirs / ours


@dataclass(frozen=True)
class Side:
    """A server under measurement, or two: one of them flushes before it answers.

    Attributes:
        plain: for all rows but those.
        sync: for the rows that are about it, None where there is none.
    """

    plain: Target | None
    sync: Target | None

    def target(self, row: Row) -> Target | None:
        """The server for a row."""
        return self.sync if row.sync else self.plain


@dataclass(frozen=True)
class Comparison:
    """How to measure.

    Attributes:
        ours, theirs: the servers.
        pure: ours without the compiled hot path.
        seconds: of each run.
        repeat: runs of each row on each server.
        nsqload_path: a binary in place of our load generator.
    """

    ours: Side
    theirs: Side
    seconds: float
    repeat: int
    nsqload_path: str | None = None
    pure: Side = Side(None, None)

    def run(
        self, rows: Sequence[Row], on_run: Callable[[Row, Target], None] = lambda row, target: None
    ) -> list[Measurement]:
        """Measure the rows for which there is a server of ours.

        Raises:
            LoadFailed: a server did not do what was asked of it.
            TargetFailed: a server cannot be measured.
        """
        lines: list[Measurement] = []
        with LoadProcesses() as processes:
            for row in rows:
                ours, theirs, pure = (side.target(row) for side in self._sides)
                if ours is None:
                    continue
                added = [Measurement(row, measure) for measure in row.measures]
                lines += added
                for number in range(self.repeat):
                    turns = [target for target in (ours, theirs, pure) if target is not None]
                    for target in turns[:: -1 if number % 2 else 1]:
                        on_run(row, target)
                        values = self._measure(processes, row, target)
                        for line, value in zip(added, values, strict=True):
                            into = line.ours if target is ours else line.theirs
                            (line.pure if target is pure else into).append(value)
        return lines

    @property
    def _sides(self) -> tuple[Side, Side, Side]:
        return self.ours, self.theirs, self.pure

    def run_count(self, rows: Sequence[Row]) -> int:
        """How many runs the rows take."""
        sides = self._sides
        served = [row for row in rows if self.ours.target(row) is not None]
        return self.repeat * sum(side.target(row) is not None for row in served for side in sides)

    def _measure(self, processes: LoadProcesses, row: Row, target: Target) -> list[float]:
        target.fresh(TOPIC, CHANNEL)
        try:
            if row.backlog:
                self._load(processes, BACKLOG, target)
                target.wait_for_channels(TOPIC)
            os.sync()  # What the last run left to be written is not this one's to pay.
            return self._load(processes, row, target)
        finally:
            target.delete(TOPIC)

    def _load(self, processes: LoadProcesses, row: Row, target: Target) -> list[float]:
        if self.nsqload_path:
            return nsqload.measure(self.nsqload_path, target, row, self.seconds)
        host, port = target.host, target.port
        if row.http:
            host, port = target.http_host, target.http_port
        return row.evaluate(processes.run(host, port, row.loads(self.seconds)))
