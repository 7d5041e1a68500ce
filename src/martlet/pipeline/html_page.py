"""A report as one HTML file with texts, tables and plots.

matplotlib draws the plots as SVG. The page has them and the admin page's stylesheet in itself, so
it opens without a network. It needs no script and no ``style`` attribute: the admin page shows it
under a content security policy that allows neither.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jinja2
from markupsafe import Markup

from martlet.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_TABLE_ROWS = 2000
"""Rows of a table that are shown; the page says how many more there are."""
MAX_PLOT_SERIES = 20
"""Series of one plot that are drawn; the legend says how many more there are."""
_HTML = Path(__file__).with_suffix(".html")
_STYLESHEET = Path(__file__).parents[1] / "console" / "static" / "admin.css"
_INCHES = (9.0, 3.2)
_INK = "#010203"
"""The colour of texts and axes while matplotlib draws; in the page it is that of the text."""
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "martlet",
    "font.family": "sans-serif",
    "text.parse_math": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK
    ),
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_STYLE_ATTRIBUTE = re.compile(r' style="([^"]*)"')
_STYLE_ELEMENT = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)
_MIN_BARS = 4
"""The bars that a plot has space for, at least; fewer would be as wide as a wall."""
_MAX_LABELS = 9
_MAX_NAME_LENGTH = 32
"""Characters of a series' name; longer names would leave no space for the plot."""
_MAX_HEIGHT = 1e300
"""An axis must extend beyond the highest value, which fails near the largest float."""
_DRAWING = threading.Lock()
Tone = Literal["plain", "good", "warn", "bad"]


@dataclass(frozen=True)
class Text:
    """A paragraph; `tone` colours it."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class HtmlTable:
    """A table with a header row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    bad: Set[int] = frozenset()
    """The numbers of the rows to highlight."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """The meaning of columns, by their names, shown below the table."""


@dataclass(frozen=True)
class Plot:
    """Series over one axis of times, numbers, or names.

    Lines over a single position would be dots: the page shows their values as figures instead.
    """

    title: str
    x: Sequence[datetime] | Sequence[float] | Sequence[str]
    """The position of each value on the axis; times are UTC."""
    series: Mapping[str, Sequence[float | None]]
    """By name, a value for each of `x`; None for a missing value."""
    unit: str = ""
    kind: Literal["line", "bar"] = "line"
    open_from: int | None = None
    """The first position whose values may still change: lines end before it, and dots follow."""

    @property
    def is_single(self) -> bool:
        """Whether there is nothing to draw a line through."""
        return self.kind == "line" and len(set(self.x)) <= 1

    @property
    def figures(self) -> list[tuple[str, float | None]]:
        """The first value of each series that is shown."""
        shown = list(self.series.items())[:MAX_PLOT_SERIES]
        return [(_name(name), values[0] if values else None) for name, values in shown]


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
            style=Markup(_stylesheet()),
            sections=[
                (type(section).__name__, section, _svg(section)) for section in self.sections
            ],
            max_rows=MAX_TABLE_ROWS,
        )

    def write(self, path: Path) -> None:
        """Write the page atomically: a reader sees the old or the new page. Raises OSError."""
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


@cache
def _stylesheet() -> str:
    return _STYLESHEET.read_text(encoding="utf-8")


def _svg(section: Section) -> Markup:
    """Draw a plot; return an empty string for any other section."""
    if not isinstance(section, Plot) or section.is_single:
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
        if section.kind == "bar":
            _draw_bars(axes, section, shown)
        else:
            _draw_lines(axes, section, shown)
        axes.set_ylabel(section.unit)
        _limit_heights(axes, shown)
        axes.grid(visible=True, alpha=0.3)
        axes.set_axisbelow(True)
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
    return _without_styles(drawing.getvalue())


_Shown = Sequence[tuple[str, Sequence[float | None]]]


def _limit_heights(axes: Axes, shown: _Shown) -> None:
    """Begin the vertical axis at 0, and label it as its values are."""
    from matplotlib.ticker import MaxNLocator

    heights = [value for _, values in shown for value in values if value is not None]
    if not any(heights):
        axes.set_ylim(0, 1)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    if all(float(value).is_integer() for value in heights):
        axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))


def _draw_bars(axes: Axes, plot: Plot, shown: _Shown) -> None:
    width = 0.8 / len(shown)
    for number, (name, values) in enumerate(shown):
        centers = [at - 0.4 + (number + 0.5) * width for at in range(len(plot.x))]
        axes.bar(centers, [_height(value) for value in values], width, label=_name(name))
    axes.set_xticks(range(len(plot.x)), [_name(str(name)) for name in plot.x])
    axes.tick_params(axis="x", labelrotation=30 if len(plot.x) > 8 else 0)
    margin = 0.5 + max(0, _MIN_BARS - len(plot.x)) / 2
    axes.set_xlim(-margin, len(plot.x) - 1 + margin)


def _draw_lines(axes: Axes, plot: Plot, shown: _Shown) -> None:
    end = len(plot.x) if plot.open_from is None else plot.open_from
    x: Any = plot.x
    for name, values in shown:
        heights = [_height(value) for value in values]
        if len(heights) != len(x):
            raise ValueError(
                f"{plot.title}: {name} has {len(heights)} values for {len(x)} positions"
            )
        (line,) = axes.plot(
            x[:end], heights[:end], label=_name(name), marker=".", markersize=4, linewidth=1.2
        )
        axes.plot(
            x[end:], heights[end:], linestyle="none", marker="o", markersize=5,
            markerfacecolor="none", color=line.get_color(),
        )  # fmt: skip
    if isinstance(x[0], str):
        return
    positions = sorted(set(x))
    # Values that are missing must not move the ends.
    margin = (positions[-1] - positions[0]) * 0.05
    axes.set_xlim(positions[0] - margin, positions[-1] + margin)
    if isinstance(x[0], datetime):
        _label_times(axes, positions)
    elif _are_few(positions):
        axes.set_xticks(positions)


def _are_few(positions: Sequence[Any]) -> bool:
    """Whether each position has space for a label; one between two would look like one more."""
    steps = [later - earlier for earlier, later in pairwise(positions)]
    return bool(min(steps) * (_MAX_LABELS - 1) >= positions[-1] - positions[0])


def _label_times(axes: Axes, times: Sequence[datetime]) -> None:
    """Label a time axis with times of day, and with days where these change."""
    from matplotlib import dates

    typed: Any = dates  # Its constructors have no types.
    first, last = times[0], times[-1]
    locator = typed.AutoDateLocator(tz=first.tzinfo, minticks=3, maxticks=9)
    formatter = typed.ConciseDateFormatter(
        locator,
        tz=first.tzinfo,
        formats=["%Y", "%b %Y", "%b %-d", "%H:%M", "%H:%M", "%H:%M:%S"],
        zero_formats=["", "%Y", "%b %-d", "%b %-d", "%H:%M", "%H:%M:%S"],
        show_offset=False,
    )
    if _are_few(times):
        axes.set_xticks(typed.date2num(times))
    else:
        axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(formatter)
    days = f"{first:%Y-%m-%d}"
    if last.date() != first.date():
        days += f" to {last:%Y-%m-%d}"
    axes.set_xlabel(f"{days}, UTC")


def _without_styles(drawing: str) -> Markup:
    """Return the SVG element of a drawing; attributes replace styles, which a policy may forbid."""
    text = _STYLE_ELEMENT.sub("", drawing[drawing.index("<svg") :])
    text = _STYLE_ATTRIBUTE.sub(lambda match: _attributes(match[1]), text)
    text = text.replace("<svg ", '<svg stroke-linejoin="round" stroke-linecap="butt" ', 1)
    return Markup(text.replace(_INK, "currentColor"))


def _attributes(style: str) -> str:
    """Convert ``fill: #fff; font: 10px sans-serif`` to attributes."""
    attributes = []
    for entry in filter(None, map(str.strip, style.split(";"))):
        name, _, value = entry.partition(":")
        name, value = name.strip(), value.strip()
        if name == "font":  # has no attribute of its own
            size, _, family = value.partition(" ")
            attributes += [f' font-size="{size}"', f' font-family="{family.strip()}"']
        else:
            attributes.append(f' {name}="{value}"')
    return "".join(attributes)


def _height(value: float | None) -> float:
    """Return the height of a point; NaN if the value is missing or too large to draw."""
    number = float("nan") if value is None else float(value)
    return number if abs(number) <= _MAX_HEIGHT else float("nan")


def _name(name: str) -> str:
    """Return the label of a series; matplotlib hides labels that begin with an underscore."""
    text = visible(name).replace("\n", " ")
    text = text if len(text) <= _MAX_NAME_LENGTH else f"{text[: _MAX_NAME_LENGTH - 1]}…"
    return f" {text}" if text.startswith("_") else text


def cell(value: object) -> str:
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
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return visible(str(value))


_ENVIRONMENT = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters["cell"] = cell
_ENVIRONMENT.filters["visible"] = visible
_ENVIRONMENT.tests["a_number"] = lambda value: (
    isinstance(value, int | float) and not isinstance(value, bool)
)
_ENVIRONMENT.tests["a_time"] = lambda value: isinstance(value, datetime)
_ENVIRONMENT.globals["tones"] = {
    "plain": "", "good": "good", "warn": "notice", "bad": "alarm",
}  # fmt: skip
_TEMPLATE = _ENVIRONMENT.from_string(_HTML.read_text(encoding="utf-8"))
