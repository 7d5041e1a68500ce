"""A figure as a query of Spark: its SQL, on the table ``messages``."""

from __future__ import annotations

import re

from martlet.pipeline.report.description import Figure

TABLE = "messages"
START, END = "window_start", "window_end"
_TOP_TRACKED = 100
"""How many more values than asked for a top list keeps an eye on, at least."""
_MOST_TRACKED = 1_000_000
_NO_NAME = re.compile(r"\W+")


def sql_of(figure: Figure, time: str) -> str:
    """The SQL of a figure."""
    if figure.sql:
        return figure.sql
    window = f"window({_quoted(time)}, {_text(figure.window)}"
    window += f", {_text(figure.slide)})" if figure.slide else ")"
    groups = [(expression, name_of(expression)) for expression in figure.by]
    columns = [f"window.start AS {START}", f"window.end AS {END}"]
    columns += [f"`_by{number}` AS {_quoted(name)}" for number, (_, name) in enumerate(groups)]
    columns += [f"{aggregate} AS {_quoted(name)}" for name, aggregate in aggregates(figure)]
    keys = [f"{window} AS window"]
    keys += [f"({expression}) AS `_by{number}`" for number, (expression, _) in enumerate(groups)]
    where = f" WHERE {figure.where}" if figure.where else ""
    grouped = ", ".join(["window", *(f"`_by{number}`" for number in range(len(groups)))])
    return (
        f"SELECT {', '.join(columns)} FROM (SELECT *, {', '.join(keys)} FROM {TABLE}{where})"
        f" GROUP BY {grouped}"
    )


def aggregates(figure: Figure) -> list[tuple[str, str]]:
    """The columns of a figure with their aggregates."""
    found = []
    if figure.count:
        found.append(("count", "count(*)"))
    if figure.rate:
        seconds = "(unix_micros(first(window.end)) - unix_micros(first(window.start))) / 1e6"
        found.append(("rate", f"count(*) / ({seconds})"))
    for of, wanted in figure.percentiles.items():
        for percentile in wanted:
            name = f"{name_of(of)}_p{percentile:g}".replace(".", "_")
            found.append((name, f"approx_percentile({of}, {percentile / 100!r})"))
    found += [(f"{name_of(of)}_distinct", f"approx_count_distinct({of})") for of in figure.distinct]
    for of, most in figure.top.items():
        tracked = min(_MOST_TRACKED, max(_TOP_TRACKED, 10 * most))
        found.append((f"{name_of(of)}_top", f"approx_top_k({of}, {most}, {tracked})"))
    return found + list(figure.values.items())


def name_of(expression: str) -> str:
    """What the column of an expression is called: itself, if it is a name."""
    return _NO_NAME.sub("_", expression).strip("_")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
