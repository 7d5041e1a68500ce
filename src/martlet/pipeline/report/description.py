"""The description of a live report, a TOML file.

``docs/pipelines/report.md`` has an example and the meaning of each key.  All expressions are Spark
SQL, on the columns of the source and the fields of JSON messages.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from martlet.names import is_valid_name

Mode = Literal["append", "update", "complete"]
MAX_FIGURES = 50


class BadDescription(ValueError):
    """A description is invalid; the text says why, and what is valid."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure: aggregates by window, or any SQL query."""

    name: str
    """Its name, also of its column, file or folder."""
    window: str = ""
    """The length of a window in Spark's notation: ``1 minute``."""
    slide: str = ""
    """The interval at which windows begin; empty for windows that do not overlap."""
    by: tuple[str, ...] = ()
    where: str = ""
    """The condition for messages that count; empty for all."""
    count: bool = False
    rate: bool = False
    percentiles: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By expression, the percentiles from 0 to 100."""
    distinct: tuple[str, ...] = ()
    """Expressions whose different values are counted, with a standard error of 0.8 %."""
    top: Mapping[str, int] = field(default_factory=dict)
    """By expression, the number of most frequent values; exact for windows with at most as many
    different values as are tracked, at least a hundred."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Other aggregates by name."""
    sql: str = ""
    """Instead of all of these, a query on the table ``messages``."""
    mode: Mode = "update"


@dataclass(frozen=True, kw_only=True)
class Description:
    """A report."""

    figures: tuple[Figure, ...]
    title: str = "Report"
    topics: tuple[str, ...] = ()
    schema: str = ""
    """The fields of JSON messages, as DDL."""
    time: str = "timestamp"
    watermark: str = "1 minute"
    """The maximum delay of messages that still count."""


def parse(text: str) -> Description:
    """Parse a description.

    Raises:
        BadDescription: the text is not valid TOML, or not a valid description.
    """
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadDescription(f"the description is not valid TOML: {error}") from None
    figures = fields.pop("figures", {})
    values = _parsed("the description", "", fields, _KEYS)
    if not isinstance(figures, dict) or not figures:
        raise BadDescription("the description has no figures; [figures.sales] begins one")
    if len(figures) > MAX_FIGURES:
        raise BadDescription(f"{len(figures)} figures are more than {MAX_FIGURES}")
    return Description(
        figures=tuple(_figure(name, entry) for name, entry in figures.items()), **values
    )


def of_sql(sql: str, *, topics: tuple[str, ...], mode: Mode = "update") -> Description:
    """Create the description of a report with one query."""
    return Description(figures=(Figure(name="report", sql=sql, mode=mode),), topics=topics)


def _figure(name: str, fields: object) -> Figure:
    at = f"figures.{name}"
    if not isinstance(fields, dict):
        raise BadDescription(f"{at} is no table")
    if not name.replace("-", "_").isidentifier():
        raise BadDescription(f"{at}: a figure's name has letters, digits, - and _ alone")
    figure = Figure(name=name, **_parsed(at, f"{at}.", fields, _FIGURE_KEYS))
    if figure.sql:
        others = sorted(fields.keys() - {"sql", "mode"})
        if others:
            raise BadDescription(f"{at} has sql, and so cannot have {', '.join(others)}")
        return figure
    if not figure.window:
        raise BadDescription(f'{at} needs a window, as window = "1 minute", or sql')
    if "mode" in fields:
        raise BadDescription(f"{at}.mode is for a figure that has sql")
    if not any(getattr(figure, name) for name in _AGGREGATES):
        raise BadDescription(f"{at} shows nothing: say count = true, or name other aggregates")
    return figure


_Keys = Mapping[str, Callable[[str, object], Any]]


def _parsed(what: str, prefix: str, table: Mapping[str, Any], keys: _Keys) -> dict[str, Any]:
    """Parse the keys of a table, each as its function in `keys` does."""
    unknown = [name for name in table if name not in keys]
    if unknown:
        raise BadDescription(f"{what} has no {', '.join(unknown)}; it has {', '.join(keys)}")
    return {
        name: parse(prefix + name, table[name]) for name, parse in keys.items() if name in table
    }


def _text(at: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadDescription(f"{at} is {value!r} and no text")
    return value.strip()


def _texts(at: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise BadDescription(f'{at} is {value!r} and no list of texts, as ["a", "b"]')
    return tuple(value)


def _topics(at: str, value: object) -> tuple[str, ...]:
    names = _texts(at, value)
    for name in names:
        if not is_valid_name(name):
            raise BadDescription(f"{at} has {name!r}: a topic's name is 1 to 64 of .a-zA-Z0-9_-")
    return names


def _boolean(at: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadDescription(f"{at} is {value!r}, neither true nor false")
    return value


def _table(at: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadDescription(f"{at} is {value!r} and no table")
    return value


def _percentiles(at: str, value: object) -> dict[str, tuple[float, ...]]:
    percentiles = {}
    for of, entry in _table(at, value).items():
        numbers = entry if isinstance(entry, list) else [entry]
        if not numbers or not all(
            isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n <= 100
            for n in numbers
        ):
            raise BadDescription(f"{at}.{of} is {entry!r} and no list of 0 to 100, as [50, 99.9]")
        percentiles[of] = tuple(float(number) for number in numbers)
    return percentiles


def _top(at: str, value: object) -> dict[str, int]:
    counts = _table(at, value)
    for of, max_count in counts.items():
        if type(max_count) is not int or not 1 <= max_count <= 1000:
            raise BadDescription(f"{at}.{of} is {max_count!r} and not from 1 to 1000")
    return counts


def _values(at: str, value: object) -> dict[str, str]:
    expressions = _table(at, value)
    for name, expression in expressions.items():
        _text(f"{at}.{name}", expression)
    return expressions


def _mode(at: str, value: object) -> Mode:
    modes: dict[object, Mode] = {"append": "append", "update": "update", "complete": "complete"}
    if isinstance(value, str) and value in modes:
        return modes[value]
    raise BadDescription(f"{at} is {value!r} and none of append, update, complete")


_KEYS: _Keys = {
    "title": _text,
    "topics": _topics,
    **dict.fromkeys(("schema", "time", "watermark"), _text),
}
_AGGREGATES: _Keys = {
    **dict.fromkeys(("count", "rate"), _boolean),
    "percentiles": _percentiles,
    "distinct": _texts,
    "top": _top,
    "values": _values,
}
_FIGURE_KEYS: _Keys = {
    **dict.fromkeys(("window", "slide"), _text),
    "by": _texts,
    "where": _text,
    **_AGGREGATES,
    "sql": _text,
    "mode": _mode,
}
