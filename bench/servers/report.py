"""The measurements, as a table for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bench.servers.comparison import Comparison, Measurement

if TYPE_CHECKING:
    from rich.table import Table

_BUSY = 0.5
"""A load average above which a note says that the machine was not quiet."""


def machine() -> dict[str, Any]:
    """The machine, and the time."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # Not Linux.
    return platform.processor() or platform.machine()


def table(lines: Sequence[Measurement], ours: str, theirs: str | None) -> Table:
    """The table for a terminal."""
    from rich.table import Table

    result = Table()
    result.add_column("work", no_wrap=True)
    result.add_column(ours, justify="right")
    if theirs is not None:
        result.add_column(theirs, justify="right")
        result.add_column("ratio", justify="right")
        result.add_column("pairs", justify="right")
        result.add_column("pure Python", justify="right")
    for line in lines:
        cells = [f"{line.row.work} {line.measure}".strip(), _value(line, line.median)]
        if theirs is not None:
            cells += _compared(line)
        result.add_row(*cells)
    return result


def _compared(line: Measurement) -> list[str]:
    ratio, median, pairs = line.ratio, line.their_median, line.pair_ratios
    if ratio is None or median is None:
        return ["", "", "", ""]
    return [
        _value(line, median),
        times(ratio),
        f"{min(pairs):.3g} to {max(pairs):.3g}" if pairs else "",
        "" if line.pure_ratio is None else times(line.pure_ratio),
    ]


def times(ratio: float) -> str:
    """A ratio for people."""
    return f"{ratio:.3g} x" if ratio < 100 else f"{ratio:,.0f} x"


def _value(line: Measurement, value: float) -> str:
    return f"{value:,.0f}/s" if line.row.more_is_better else f"{value:,.0f} {line.row.unit}"


def notes(comparison: Comparison, about: dict[str, Any]) -> list[str]:
    """The notes above the table: the machine, and how it was measured."""
    tool = comparison.nsqload_path or "martlet's load generator"
    lines = [
        f"{about['time']}, {about['processor']}, {about['cores']} cores, {about['system']},"
        f" Python {about['python']}",
        f"messages a second, medians of {comparison.repeat} runs of {comparison.seconds:g} s;"
        f" bodies of 200 bytes and 2 connections unless said otherwise; by {tool}",
    ]
    if about["load_average"] > _BUSY:
        lines.append(
            f"the machine was not quiet (load average {about['load_average']:.1f} at the start):"
            " only the ratios count"
        )
    return lines


def document(
    lines: Sequence[Measurement],
    comparison: Comparison,
    about: dict[str, Any],
    versions: dict[str, str],
) -> dict[str, Any]:
    """The same for programs, with every run."""
    return {
        "machine": about,
        "servers": versions,
        "load_generator": comparison.nsqload_path or "martlet",
        "seconds": comparison.seconds,
        "repeat": comparison.repeat,
        "rows": [
            {
                "row": line.row.name,
                "work": line.row.work,
                "measure": line.measure,
                "unit": line.row.unit,
                "martlet": line.median,
                "other": line.their_median,
                "ratio": line.ratio,
                "martlet_runs": line.ours,
                "other_runs": line.theirs,
                "pair_ratios": line.pair_ratios,
                "pure_runs": line.pure,
                "pure_ratio": line.pure_ratio,
            }
            for line in lines
        ],
    }
