"""The description of a live report, a TOML file.

::

    title = "Orders"
    topics = ["orders"]
    schema = "customer STRING, country STRING, amount DOUBLE, at TIMESTAMP"
    time = "at"
    watermark = "1 minute"

    [figures.sales]
    window = "1 minute"
    by = ["country"]
    where = "amount > 0"
    count = true
    rate = true
    percentiles = { amount = [50, 99] }
    distinct = ["customer"]
    top = { customer = 3 }
    values = { revenue = "sum(amount)" }

    [figures.large]
    sql = "SELECT customer, amount, at FROM messages WHERE amount > 10000"

`schema` has the fields of JSON messages; a field that a message lacks is null, and all fields are
null if a message is not JSON.  The columns of the source, ``value``, ``topic``, ``timestamp`` and
the rest, are always available.  All expressions are Spark SQL.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from martlet.names import is_valid_name

Mode = Literal["append", "update", "complete"]
MAX_FIGURES = 50
_DEFAULT_WATERMARK = "1 minute"
_DEFAULT_TIME = "timestamp"


class BadDescription(ValueError):
    """A description is invalid; the text says why, and what is valid."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure: aggregates by window, or any SQL query.

    Attributes:
        name: its name, also of its column, file or folder.
        window: the length of a window in Spark's notation: ``1 minute``.
        slide: the interval at which windows begin; empty for windows that do not overlap.
        by: expressions to group by.
        where: the condition for messages that count; empty for all.
        count: whether to count messages.
        rate: whether to show messages per second.
        percentiles: by expression, the percentiles from 0 to 100.
        distinct: expressions whose different values are counted, with a standard error of 0.8 %.
        top: by expression, the number of most frequent values; exact for windows with at most as
            many different values as are tracked, at least a hundred.
        values: other aggregates by name.
        sql: instead of all of these, a query on the table ``messages``.
        mode: the output mode of the query.
    """

    name: str
    window: str = ""
    slide: str = ""
    by: tuple[str, ...] = ()
    where: str = ""
    count: bool = False
    rate: bool = False
    percentiles: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    distinct: tuple[str, ...] = ()
    top: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    sql: str = ""
    mode: Mode = "update"


@dataclass(frozen=True, kw_only=True)
class Description:
    """A report.

    Attributes:
        title: the title of the page.
        topics: the topics to read; the options may name more.
        schema: the fields of JSON messages, as DDL.
        time: the event time column.
        watermark: the maximum delay of messages that still count.
        figures: the figures to show.
    """

    figures: tuple[Figure, ...]
    title: str = "Report"
    topics: tuple[str, ...] = ()
    schema: str = ""
    time: str = _DEFAULT_TIME
    watermark: str = _DEFAULT_WATERMARK


def parse(text: str) -> Description:
    """Parse a description.

    Raises:
        BadDescription: the text is not valid TOML, or not a valid description.
    """
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadDescription(f"the description is not valid TOML: {error}") from None
    figures = given.pop("figures", {})
    _refuse_unknown("the description", given, Description, but="figures")
    if not isinstance(figures, dict) or not figures:
        raise BadDescription("the description has no figures; [figures.sales] begins one")
    if len(figures) > MAX_FIGURES:
        raise BadDescription(f"{len(figures)} figures are more than {MAX_FIGURES}")
    return Description(
        figures=tuple(_figure(name, entry) for name, entry in figures.items()),
        title=_text("title", given.get("title", "Report")),
        topics=_topics(given.get("topics", [])),
        schema=_text("schema", given.get("schema", "")),
        time=_text("time", given.get("time", _DEFAULT_TIME)),
        watermark=_text("watermark", given.get("watermark", _DEFAULT_WATERMARK)),
    )


def of_sql(sql: str, *, topics: tuple[str, ...], mode: Mode = "update") -> Description:
    """Create the description of a report with one query."""
    return Description(figures=(Figure(name="report", sql=sql, mode=mode),), topics=topics)


def _figure(name: str, given: object) -> Figure:
    at = f"figures.{name}"
    if not isinstance(given, dict):
        raise BadDescription(f"{at} is no table")
    if not name.replace("-", "_").isidentifier():
        raise BadDescription(f"{at}: a figure's name has letters, digits, - and _ alone")
    _refuse_unknown(at, given, Figure, but="name")
    figure = Figure(
        name=name,
        window=_text(f"{at}.window", given.get("window", "")),
        slide=_text(f"{at}.slide", given.get("slide", "")),
        by=_texts(f"{at}.by", given.get("by", [])),
        where=_text(f"{at}.where", given.get("where", "")),
        count=_boolean(f"{at}.count", given.get("count", False)),
        rate=_boolean(f"{at}.rate", given.get("rate", False)),
        percentiles=_percentiles(f"{at}.percentiles", given.get("percentiles", {})),
        distinct=_texts(f"{at}.distinct", given.get("distinct", [])),
        top=_top(f"{at}.top", given.get("top", {})),
        values=_values(f"{at}.values", given.get("values", {})),
        sql=_text(f"{at}.sql", given.get("sql", "")),
        mode=_mode(f"{at}.mode", given.get("mode", "update")),
    )
    if figure.sql:
        others = sorted(given.keys() - {"sql", "mode"})
        if others:
            raise BadDescription(f"{at} has sql, and so cannot have {', '.join(others)}")
        return figure
    if not figure.window:
        raise BadDescription(f'{at} needs a window, as window = "1 minute", or sql')
    if "mode" in given:
        raise BadDescription(f"{at}.mode is for a figure that has sql")
    if not (
        figure.count
        or figure.rate
        or figure.percentiles
        or figure.distinct
        or figure.top
        or figure.values
    ):
        raise BadDescription(f"{at} shows nothing: say count = true, or name other aggregates")
    return figure


def _refuse_unknown(at: str, given: Mapping[str, Any], kind: type, *, but: str) -> None:
    known = [entry.name for entry in fields(kind) if entry.name != but]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise BadDescription(f"{at} has no {', '.join(unknown)}; it has {', '.join(known)}")


def _text(at: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadDescription(f"{at} is {value!r} and no text")
    return value.strip()


def _texts(at: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise BadDescription(f'{at} is {value!r} and no list of texts, as ["a", "b"]')
    return tuple(value)


def _topics(value: object) -> tuple[str, ...]:
    names = _texts("topics", value)
    for name in names:
        if not is_valid_name(name):
            raise BadDescription(f"topics has {name!r}: a topic's name is 1 to 64 of .a-zA-Z0-9_-")
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
    found = {}
    for of, wanted in _table(at, value).items():
        numbers = wanted if isinstance(wanted, list) else [wanted]
        if not numbers or not all(
            isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n <= 100
            for n in numbers
        ):
            raise BadDescription(f"{at}.{of} is {wanted!r} and no list of 0 to 100, as [50, 99.9]")
        found[of] = tuple(float(number) for number in numbers)
    return found


def _top(at: str, value: object) -> dict[str, int]:
    found = _table(at, value)
    for of, max_count in found.items():
        if type(max_count) is not int or not 1 <= max_count <= 1000:
            raise BadDescription(f"{at}.{of} is {max_count!r} and not from 1 to 1000")
    return found


def _values(at: str, value: object) -> dict[str, str]:
    found = _table(at, value)
    for name, expression in found.items():
        _text(f"{at}.{name}", expression)
    return found


def _mode(at: str, value: object) -> Mode:
    modes: dict[object, Mode] = {"append": "append", "update": "update", "complete": "complete"}
    if isinstance(value, str) and value in modes:
        return modes[value]
    raise BadDescription(f"{at} is {value!r} and none of append, update, complete")
