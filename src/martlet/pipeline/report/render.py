"""Show figures as tables on a terminal, and as a page with plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table as ConsoleTable

from martlet.pipeline import html_page
from martlet.pipeline.html_page import HtmlTable, Page, Plot, Section, Text
from martlet.pipeline.report.board import MAX_BOARD_ROWS, Row
from martlet.pipeline.report.description import Description, Figure
from martlet.pipeline.report.query import END, START, aggregates, name_of, percentile_name
from martlet.text import visible

_CONSOLE_ROWS = 10
_PAGE_ROWS = 50
_NONE_STANDS_OUT = "no value stands out"
"""In place of an empty list of the most frequent values."""
_STATE = "state"
"""The column that tells open windows."""


def print_board(console: Console, figure: Figure, rows: Sequence[Row]) -> None:
    """Print the newest rows of a figure, the newest last; the first rows in mode complete."""
    if not rows:
        return
    shown = rows[:_CONSOLE_ROWS] if figure.mode == "complete" else rows[-_CONSOLE_ROWS:]
    title = figure.name
    if len(rows) > len(shown):
        title += f", {len(shown)} of {_many(rows)} rows"
    table = ConsoleTable(title=title, title_justify="left", title_style="bold", box=None)
    columns = [column for column in shown[-1] if column != END]
    for column in columns:
        number = isinstance(shown[-1][column], int | float)
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in shown:
        table.add_row(*(cell(_value(figure, row, column)) for column in columns))
    console.print(table)


def page_of(
    description: Description, boards: Mapping[str, Sequence[Row]], *, reload_s: int
) -> Page:
    """Create the page of a report."""
    sections: list[Section] = []
    for figure in description.figures:
        rows = boards.get(figure.name, ())
        open_from = _open_from(figure, rows)
        sections += _plots(figure, rows, open_from) if not figure.sql else ()
        columns = list(rows[-1]) if rows else []
        is_complete = figure.mode == "complete"
        shown = rows[:_PAGE_ROWS] if is_complete else rows[-_PAGE_ROWS:][::-1]
        title = figure.name if is_complete else f"{figure.name}, newest first"
        if len(rows) > len(shown):
            title += f", {len(shown)} of {_many(rows)} rows"
        cells = [[_plain(_value(figure, row, column)) for column in columns] for row in shown]
        if open_from is not None:
            columns.append(_STATE)
            for row, values in zip(shown, cells, strict=True):
                values.append("open" if row[START] >= open_from else "")
        sections.append(HtmlTable(title, columns, cells, notes=_notes(figure, columns)))
    now = datetime.now(UTC)
    subtitle = f"of {now:%Y-%m-%d %H:%M:%S} UTC, from {', '.join(description.topics)}"
    return Page(description.title, subtitle, sections, reload_s)


def _open_from(figure: Figure, rows: Sequence[Row]) -> datetime | None:
    """Return the start of the first window that may still change, as it ends after the newest
    window's start; None if none may.
    """
    if figure.sql or figure.mode == "append" or not rows:
        return None
    newest: datetime = max(row[START] for row in rows)
    open_starts: list[datetime] = [row[START] for row in rows if row[END] > newest]
    return min(open_starts)


def _notes(figure: Figure, columns: Sequence[str]) -> dict[str, str]:
    if figure.sql:
        return {}
    notes = {
        START: "the first moment of the window, UTC",
        END: "the end of the window, which is the first moment behind it",
        "count": "messages in the window",
        "rate": "messages a second, over the length of the window",
        _STATE: "an open window may still get messages, and its figures may change",
    }
    for of, percentiles in figure.percentiles.items():
        for percentile in percentiles:
            text = f"{percentile:g} % of the values of {of} are not above this"
            notes[percentile_name(of, percentile)] = text
    for of in figure.distinct:
        notes[f"{name_of(of)}_distinct"] = f"different values of {of}"
    for column, of in _tops(figure).items():
        notes[column] = f"the most frequent values of {of}, with their counts"
    notes |= figure.values
    return {name: text for name, text in notes.items() if name in columns}


def _plots(figure: Figure, rows: Sequence[Row], open_from: datetime | None) -> list[Section]:
    """Create a plot over the windows for each numeric aggregate, and one for each top list."""
    starts = sorted({row[START] for row in rows})
    if not starts:
        return []
    groups = [name_of(expression) for expression in figure.by]
    first_open = None if open_from is None else starts.index(open_from)
    plots: list[Section] = []
    for name, _ in aggregates(figure):
        if name in _tops(figure):
            newest = [row for row in rows if row[START] == starts[-1]]
            plots += [_top(figure, name, row, groups) for row in newest[:3]]
            continue
        if any(isinstance(row.get(name), list) for row in rows):
            continue
        series: dict[str, dict[datetime, Any]] = {}
        for row in rows:
            group = ", ".join(_label(row.get(column)) for column in groups) or name
            series.setdefault(group, {})[row[START]] = row.get(name)
        numbers = {
            group: [_number(values.get(start)) for start in starts]
            for group, values in series.items()
        }
        title = f"{figure.name}: {name}"
        plots.append(Plot(title, starts, numbers, unit=name, open_from=first_open))
    return plots


def _tops(figure: Figure) -> dict[str, str]:
    """Return the expression of each column with most frequent values."""
    return {f"{name_of(of)}_top": of for of in figure.top}


def _value(figure: Figure, row: Row, column: str) -> object:
    is_none = row.get(column) == [] and column in _tops(figure)
    return _NONE_STANDS_OUT if is_none else row.get(column)


def _top(figure: Figure, name: str, row: Row, groups: Sequence[str]) -> Section:
    entries = row.get(name) or []
    group = ", ".join(_label(row.get(column)) for column in groups)
    title = f"{figure.name}: {name}{f' of {group}' if group else ''}, {row[START]:%H:%M:%S} UTC"
    if not entries:
        return Text(f"{title}: {_NONE_STANDS_OUT}")
    return Plot(
        title,
        [_label(entry["item"]) for entry in entries],
        {"count": [_number(entry["count"]) for entry in entries]},
        kind="bar",
    )


def _label(value: object) -> str:
    """Format a value as a label of a plot, where null and an empty text must be visible."""
    return "null" if value is None else cell(value) or "''"


def _many(rows: Sequence[Row]) -> str:
    return f"more than {MAX_BOARD_ROWS:,}" if len(rows) >= MAX_BOARD_ROWS else f"{len(rows):,}"


def _number(value: object) -> float | None:
    try:
        return None if value is None else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | datetime) or value is None else cell(value)


def cell(value: object) -> str:
    """Format a value for a table."""
    if isinstance(value, bytes):
        return visible(value.decode(errors="replace"))
    if isinstance(value, list):
        return ", ".join(cell(entry) for entry in value)
    if isinstance(value, dict) and value.keys() == {"item", "count"}:
        return f"{cell(value['item'])} ({cell(value['count'])})"
    return str(value) if isinstance(value, bool) else html_page.cell(value)
