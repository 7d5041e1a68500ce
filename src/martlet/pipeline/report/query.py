"""Translate a figure to Spark SQL on the table ``messages``."""

from __future__ import annotations

import re

from martlet.pipeline.report.description import BadDescription, Figure

TABLE = "messages"
START, END = "window_start", "window_end"
_WINDOW = "_window"
"""Not ``window``, which a field of messages may be called."""
_SKETCH_LOG2 = 14
"""The size of the HyperLogLog sketch for distinct values: a standard error of 0.8 %, in 16 KiB for
many values and a few bytes for few. The sketch ignores empty texts, so each value gets a prefix."""
_TOP_TRACKED = 100
"""The minimum number of values that are tracked for a top list."""
_MAX_TRACKED = 1_000_000
_NO_NAME = re.compile(r"\W+")


def sql_of(figure: Figure, time: str) -> str:
    """Return the SQL of a figure."""
    if figure.sql:
        return figure.sql
    window = f"window({quoted(time)}, {_text(figure.window)}"
    window += f", {_text(figure.slide)})" if figure.slide else ")"
    groups = [(expression, name_of(expression)) for expression in figure.by]
    columns = [f"{_WINDOW}.start AS {START}", f"{_WINDOW}.end AS {END}"]
    columns += [f"`_by{number}` AS {quoted(name)}" for number, (_, name) in enumerate(groups)]
    columns += [f"{aggregate} AS {quoted(name)}" for name, aggregate in aggregates(figure)]
    keys = [f"{window} AS {_WINDOW}"]
    keys += [f"({expression}) AS `_by{number}`" for number, (expression, _) in enumerate(groups)]
    where = f" WHERE {figure.where}" if figure.where else ""
    grouped = ", ".join([_WINDOW, *(f"`_by{number}`" for number in range(len(groups)))])
    return (
        f"SELECT {', '.join(columns)} FROM (SELECT *, {', '.join(keys)} FROM {TABLE}{where})"
        f" GROUP BY {grouped}"
    )


def percentile_name(of: str, percentile: float) -> str:
    """Return the name of a percentile's column."""
    return f"{name_of(of)}_p{percentile:g}".replace(".", "_")


def aggregates(figure: Figure) -> list[tuple[str, str]]:
    """Return the columns of a figure with their aggregates."""
    columns = []
    if figure.count:
        columns.append(("count", "count(*)"))
    if figure.rate:
        seconds = f"(unix_micros(first({_WINDOW}.end)) - unix_micros(first({_WINDOW}.start))) / 1e6"
        columns.append(("rate", f"count(*) / ({seconds})"))
    for of, percentiles in figure.percentiles.items():
        for percentile in percentiles:
            name = percentile_name(of, percentile)
            columns.append((name, f"approx_percentile({of}, {percentile / 100!r})"))
    for of in figure.distinct:
        sketch = f"hll_sketch_agg(concat('=', CAST({of} AS STRING)), {_SKETCH_LOG2})"
        columns.append((f"{name_of(of)}_distinct", f"hll_sketch_estimate({sketch})"))
    for of, max_count in figure.top.items():
        tracked = min(_MAX_TRACKED, max(_TOP_TRACKED, 10 * max_count))
        columns.append((f"{name_of(of)}_top", f"approx_top_k({of}, {max_count}, {tracked})"))
    return columns + list(figure.values.items())


def require_columns(figure: Figure) -> None:
    """Check that the columns of a figure have names, which differ. Raises BadDescription."""
    if figure.sql:
        return
    names = [START, END, *map(name_of, figure.by), *(name for name, _ in aggregates(figure))]
    seen: set[str] = set()
    for name in names:
        if not name:
            raise BadDescription(
                f"figures.{figure.name}: a column is called after what it shows, which has no"
                " letter or digit; values = { name = ... } names one, a schema has fields for by"
            )
        if name.lower() in seen:
            raise BadDescription(
                f"figures.{figure.name} has two columns that are called {name}; values = {{ name ="
                " ... } names one otherwise"
            )
        seen.add(name.lower())


def name_of(expression: str) -> str:
    """Return the column name for an expression: the expression, if it is a name."""
    return _NO_NAME.sub("_", expression).strip("_")


def quoted(name: str) -> str:
    """Quote a column name for SQL."""
    return "`" + name.replace("`", "``") + "`"


def _text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
