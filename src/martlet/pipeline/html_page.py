"""A report as one HTML file with texts, tables and plots.

matplotlib draws the plots as SVG, which is embedded in the page, so the file can be mailed,
archived and opened without a network.
"""

from __future__ import annotations

import io
import os
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import jinja2
from markupsafe import Markup

MAX_TABLE_ROWS = 2000
"""Rows of a table that are shown; the page says how many more there are."""
MAX_PLOT_SERIES = 20
"""Series of one plot that are drawn; the legend says how many more there are."""
_INCHES = (9.0, 3.2)
_LONE_TIME_MARGIN = timedelta(minutes=30)
"""The time that is shown on either side of a plot's only time."""
_STYLE: Any = {"svg.fonttype": "none", "font.family": "sans-serif", "text.parse_math": False}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_MAX_NAME_LENGTH = 32
"""Characters of a series' name; longer names would leave no space for the plot."""
_MAX_HEIGHT = 1e300
"""An axis must extend beyond the highest value, which fails near the largest float."""
_DRAWING = threading.Lock()
Tone = Literal["plain", "good", "bad"]


@dataclass(frozen=True)
class Text:
    """A paragraph; `tone` colours it."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class HtmlTable:
    """A table with a header row.

    Attributes:
        bad: the numbers of the rows to highlight.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    bad: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Plot:
    """Series over one axis of times, numbers, or names.

    Attributes:
        title: the heading above the plot.
        x: the position of each value on the axis.
        series: by name, a value for each of `x`; None for a missing value.
        unit: the label of the vertical axis.
        kind: lines or bars.
    """

    title: str
    x: Sequence[datetime] | Sequence[float] | Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    unit: str = ""
    kind: Literal["line", "bar"] = "line"


Section = Text | HtmlTable | Plot


@dataclass(frozen=True)
class Page:
    """An HTML page: a title, a subtitle, and sections."""

    title: str
    subtitle: str = ""
    sections: Sequence[Section] = field(default_factory=tuple)
    reload_s: int = 0
    """How often a browser reloads the page; 0 for never."""

    def html(self) -> str:
        """Render the page."""
        return _TEMPLATE.render(
            page=self,
            sections=[
                (type(section).__name__, section, _svg(section)) for section in self.sections
            ],
            max_rows=MAX_TABLE_ROWS,
        )

    def write(self, path: Path) -> None:
        """Write the page to a file atomically: a reader sees the old or the new page.

        Raises:
            OSError: the file cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, new = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(self.html())
            os.chmod(new, 0o644)
            os.replace(new, path)
        except BaseException:
            Path(new).unlink(missing_ok=True)
            raise


def _svg(section: Section) -> Markup:
    """Draw a plot; return an empty string for any other section."""
    if not isinstance(section, Plot):
        return Markup("")
    import matplotlib
    from matplotlib.figure import Figure

    # Without pyplot a figure is safe in any thread, except for the process-wide settings and
    # warnings.
    with _DRAWING, matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # The browser draws the text, with its own fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.subplots()
        shown = list(section.series.items())[:MAX_PLOT_SERIES]
        for number, (name, values) in enumerate(shown):
            heights = [_height(value) for value in values]
            name = _name(name)
            if section.kind == "line":
                axes.plot(section.x, heights, label=name, marker=".", markersize=4, linewidth=1.2)  # type: ignore[arg-type]
            else:
                width = 0.8 / len(shown)
                centers = [at - 0.4 + (number + 0.5) * width for at in range(len(section.x))]
                axes.bar(centers, heights, width, label=name)
        if section.kind == "bar":
            axes.set_xticks(range(len(section.x)), [_name(str(name)) for name in section.x])
            axes.tick_params(axis="x", labelrotation=30 if len(section.x) > 8 else 0)
        if section.kind == "line" and len(set(section.x)) == 1:
            only = section.x[0]
            if isinstance(only, datetime):  # By default the axis would span four years.
                axes.set_xlim(only - _LONE_TIME_MARGIN, only + _LONE_TIME_MARGIN)  # type: ignore[arg-type]
        axes.set_ylabel(section.unit)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if len(shown) > 1:
            left_out = len(section.series) - len(shown)
            axes.legend(
                loc="upper left",
                bbox_to_anchor=(1, 1),
                fontsize="small",
                frameon=False,
                title=f"and {left_out:,} more, not shown" if left_out else None,
                title_fontsize="small",
            )
        drawing = io.StringIO()
        figure.savefig(drawing, format="svg", metadata=_NO_METADATA)
    text = drawing.getvalue()
    return Markup(text[text.index("<svg") :])


def _height(value: float | None) -> float:
    """Return the height of a point; NaN if the value is missing or too large to draw."""
    number = float("nan") if value is None else float(value)
    return number if abs(number) <= _MAX_HEIGHT else float("nan")


def _name(name: str) -> str:
    """Return the label of a series; matplotlib hides labels that begin with an underscore."""
    text = "".join(c if c.isprintable() else " " for c in name)
    text = text if len(text) <= _MAX_NAME_LENGTH else f"{text[: _MAX_NAME_LENGTH - 1]}…"
    return f" {text}" if text.startswith("_") else text


def _cell(value: object) -> str:
    """Format a value for a table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_ENVIRONMENT = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters["cell"] = _cell
_ENVIRONMENT.tests["a_number"] = _is_number
_TEMPLATE = _ENVIRONMENT.from_string(
    """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{% if page.reload_s %}
<meta http-equiv="refresh" content="{{ page.reload_s }}">
{% endif %}
<title>{{ page.title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 66rem; padding: 0 1rem;
       color: #222; background: #fff }
h1 { margin-bottom: 0 } .sub { color: #666; margin-top: .2rem } h2 { font-size: 1.1rem }
table { border-collapse: collapse; font-size: 14px; display: block; overflow-x: auto }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: left }
td.number { text-align: right; font-variant-numeric: tabular-nums }
.bad { background: #fde8e8; color: #8a1111 } .good { color: #146c2e }
p.bad { padding: .5rem .8rem } svg { max-width: 100%; height: auto }
</style>
<h1>{{ page.title }}</h1>
<p class="sub">{{ page.subtitle }}</p>
{% for kind, section, svg in sections %}
{% if kind == "Text" %}
<p class="{{ section.tone }}">{{ section.text }}</p>
{% elif kind == "Plot" %}
<h2>{{ section.title }}</h2>
{{ svg }}
{% else %}
<h2>{{ section.title }}</h2>
<table>
<tr>{% for name in section.columns %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in section.rows[:max_rows] %}
<tr{% if loop.index0 in section.bad %} class="bad"{% endif %}>
{%- for value in row %}
<td{% if value is a_number %} class="number"{% endif %}>{{ value | cell }}</td>
{%- endfor %}</tr>
{% endfor %}
</table>
{% if section.rows | length > max_rows %}
<p class="sub">{{ section.rows | length - max_rows }} more rows are not shown.</p>
{% endif %}
{% endif %}
{% endfor %}
</html>
"""
)
