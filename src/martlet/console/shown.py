"""How values are shown: numbers, rates, ages, times, texts of strangers, and sparklines."""

from __future__ import annotations

import time
from collections.abc import Sequence

from markupsafe import Markup

_WIDTH, _HEIGHT = 96, 20
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))
_BYTES = ("B", "kB", "MB", "GB", "TB")


def number(value: float) -> str:
    """Return a count with thousands apart: ``12,034``."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """Return a rate a second: ``0``, ``0.25``, ``12.3``, ``1,204``."""
    if value <= 0:
        return "0"
    if value < 1:
        return f"{value:.2g}"
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def size(value: float) -> str:
    """Return a number of bytes: ``3.1 MB``."""
    for unit in _BYTES:
        if value < 1000 or unit == _BYTES[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """Return a time span: ``1.2 s``, ``3 min``, ``2 d``; a dash for none."""
    if seconds is None:
        return "-"
    for length, unit in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def ago(at_s: float) -> str:
    """Return how long ago a time was: ``3 min ago``; a dash for 0."""
    return f"{duration(max(0.0, time.time() - at_s))} ago" if at_s else "-"


def utc(at_s: float) -> str:
    """Return a time as ``2026-11-23 17:15:32 UTC``."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))


def sparkline(values: Sequence[float | None], label: str) -> Markup:
    """Return a small plot as SVG.

    Args:
        values: oldest first; None breaks the line.
        label: what it shows, for screen readers.
    """
    numbers = [value for value in values if value is not None]
    top = max(numbers, default=0) or 1
    lines: list[list[str]] = [[]]
    for at, value in enumerate(values):
        if value is None:
            lines.append([])
            continue
        x = at * _WIDTH / max(1, len(values) - 1)
        y = _HEIGHT - 1 - (_HEIGHT - 2) * value / top
        lines[-1].append(f"{x:.1f},{y:.1f}")
    drawn = Markup("").join(_line(points) for points in lines if points)
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img"'
        ' aria-label="{}">{}</svg>'
    ).format(_WIDTH, _HEIGHT, _WIDTH, _HEIGHT, label, drawn)


def _line(points: Sequence[str]) -> Markup:
    if len(points) == 1:  # Its line's round ends make it a dot.
        return Markup('<polyline class="dot" points="{} {}"/>').format(points[0], points[0])
    return Markup('<polyline points="{}"/>').format(" ".join(points))
