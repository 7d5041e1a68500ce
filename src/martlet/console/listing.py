"""Filter, sort and pages of a table, as its address says: ``?q=orders&sort=-depth&page=2``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
ROWS = 50
"""The rows of one page."""


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column."""

    name: str
    """In the address."""
    title: str
    value: Callable[[T], Any]
    """By which it is sorted."""
    help: str = ""
    """What it means, shown over its heading."""


@dataclass(frozen=True)
class TablePage(Generic[T]):
    """The rows of one page of a table."""

    rows: Sequence[T]
    columns: Sequence[Column[T]]
    sort: str
    """The name of the column, with ``-`` before it for the greatest first."""
    page: int
    """The number of the page, from 1."""
    pages: int
    """How many there are."""
    total: int
    found: int
    """How many rows there are, and how many the filter leaves."""
    text: str
    all_found: Sequence[T]
    """The rows of all pages."""

    def sorted_by(self, column: Column[T]) -> str:
        """Return the ``sort`` that a click on a heading asks for."""
        return f"-{column.name}" if self.sort == column.name else column.name

    def direction(self, column: Column[T]) -> str:
        """Return ``ascending``, ``descending`` or ``none``, for ``aria-sort``."""
        if self.sort.lstrip("-") != column.name:
            return "none"
        return "descending" if self.sort.startswith("-") else "ascending"


def listing(
    rows: Sequence[T],
    columns: Sequence[Column[T]],
    query: Mapping[str, str],
    name: Callable[[T], str],
    sort: str,
    *,
    is_ordered: bool = False,
) -> TablePage[T]:
    """Return the page of a table that an address asks for.

    Args:
        rows: all of them.
        columns: those by which it can be sorted.
        query: of the address; wrong values count as none.
        name: the text of a row that the filter ``q`` searches, without regard to case.
        sort: the order where the address says none.
        is_ordered: whether equal rows stay in the order given; else they are ordered by name.
    """
    text = query.get("q", "").strip()
    matches = [row for row in rows if text.lower() in name(row).lower()] if text else list(rows)
    order = query.get("sort", sort)
    by = {column.name: column for column in columns}
    if order.lstrip("-") not in by:
        order = sort
    value = by[order.lstrip("-")].value
    if not is_ordered:
        matches.sort(key=name)
    matches.sort(key=lambda row: _order(value(row)), reverse=order.startswith("-"))
    pages = max(1, -(-len(matches) // ROWS))
    number = query.get("page", "1")
    page = min(pages, max(1, int(number))) if number.isdecimal() and len(number) < 9 else 1
    shown = matches[(page - 1) * ROWS : page * ROWS]
    return TablePage(shown, columns, order, page, pages, len(rows), len(matches), text, matches)


def _order(value: Any) -> tuple[bool, Any]:
    """What is missing comes last where the greatest come first."""
    return (value is not None, value if value is not None else 0)
