"""Filter, order and pages of tables."""

from __future__ import annotations

import pytest

from martlet.console.listing import ROWS, Column, listing

Row = tuple[str, int | None]
COLUMNS: tuple[Column[Row], ...] = (
    Column("name", "Name", lambda row: row[0]),
    Column("depth", "Depth", lambda row: row[1]),
)
FEW: list[Row] = [("b", 2), ("A", 2), ("c", None), ("d", 10)]


def names(rows: list[Row], **query: str) -> list[str]:
    return [row[0] for row in listing(rows, COLUMNS, query, lambda row: row[0], "-depth").rows]


def test_the_greatest_first_equals_by_name_and_missing_ones_last() -> None:
    assert names(FEW) == ["d", "A", "b", "c"]
    assert names(FEW, sort="depth") == ["c", "A", "b", "d"]
    assert names(FEW, sort="name") == ["A", "b", "c", "d"]


@pytest.mark.parametrize("sort", ["", "-", "size", "--depth; drop", "\0"])
def test_an_unknown_order_is_the_usual_one(sort: str) -> None:
    table = listing(FEW, COLUMNS, {"sort": sort}, lambda row: row[0], "-depth")
    assert table.rows[0] == ("d", 10)
    assert table.sort == "-depth"


def test_the_filter_is_part_of_a_name_in_any_case() -> None:
    table = listing(FEW, COLUMNS, {"q": " a "}, lambda row: row[0], "name")
    assert [row[0] for row in table.rows] == ["A"]
    assert (table.found, table.total, table.text) == (1, 4, "a")
    assert names(FEW, q="x") == []


@pytest.mark.parametrize(
    ("text", "page"),
    [("1", 1), ("2", 2), ("3", 3), ("4", 3), ("0", 1), ("-1", 1), ("x", 1), ("9" * 30, 1)],
)
def test_a_page_that_is_not_there_is_the_nearest_or_the_first(text: str, page: int) -> None:
    rows: list[Row] = [(f"{number:03}", 0) for number in range(2 * ROWS + 1)]
    table = listing(rows, COLUMNS, {"page": text}, lambda row: row[0], "name")
    assert (table.page, table.pages) == (page, 3)
    assert table.rows[0][0] == f"{(page - 1) * ROWS:03}"
    assert len(table.rows) == (1 if page == 3 else ROWS)


def test_a_second_click_on_a_heading_turns_the_order() -> None:
    name, depth = COLUMNS
    table = listing(FEW, COLUMNS, {"sort": "name"}, lambda row: row[0], "-depth")
    assert (table.sorted_by(name), table.sorted_by(depth)) == ("-name", "depth")
    assert (table.direction(name), table.direction(depth)) == ("ascending", "none")
    turned = listing(FEW, COLUMNS, {"sort": "-name"}, lambda row: row[0], "-depth")
    assert (turned.sorted_by(name), turned.direction(name)) == ("name", "descending")


def test_an_empty_table_has_one_page() -> None:
    table = listing([], COLUMNS, {"page": "7"}, lambda row: row[0], "name")
    assert (list(table.rows), table.page, table.pages) == ([], 1, 1)
