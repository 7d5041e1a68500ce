"""Reports as pages: whole in themselves, and nothing in them is taken for HTML."""

from __future__ import annotations

import html.parser
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from martlet.pipeline.html_page import MAX_PLOT_SERIES, MAX_TABLE_ROWS, HtmlTable, Page, Plot, Text

START = datetime(2026, 1, 31, tzinfo=UTC)
TEN = START.replace(hour=10)


class _Reader(html.parser.HTMLParser):
    """Collects the links that a browser would fetch, and the text that it shows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            is_link = name in ("src", "href", "xlink:href", "data") and value
            if is_link and value and not value.startswith("#"):
                self.fetched.append(value)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_has_its_plots_in_itself_and_fetches_nothing() -> None:
    hours = [START + timedelta(hours=hour) for hour in range(24)]
    page = Page(
        "Orders",
        sections=[
            Plot("a minute", hours, {"published": list(range(24)), "lost": [None] * 24}),
            Plot("by reason", ["timeout", "error"], {"dead": [3.0, 4.0]}, kind="bar"),
        ],
    )
    read = _Reader(page.html())
    assert read.tags.count("svg") == 2
    assert read.fetched == []
    assert "script" not in read.tags
    assert "published" in read.text
    assert "timeout" in read.text


def test_nothing_that_is_shown_is_taken_for_html() -> None:
    evil = "<script>alert(1)</script>"
    page = Page(
        evil,
        evil,
        [
            Text(evil),
            HtmlTable(evil, [evil], [[evil]]),
            Plot(evil, [1.0, 2.0], {evil: [1.0, 2.0], "b": [1, 2]}),
        ],
    )
    assert "script" not in _Reader(page.html()).tags


def test_numbers_times_and_nothing_stand_in_a_table_as_people_write_them() -> None:
    rows = [[1234567, 0.5, None, True, START]]
    text = _Reader(Page("t", sections=[HtmlTable("t", list("abcde"), rows)]).html()).text
    assert "1,234,567" in text
    assert "0.5" in text
    assert "2026-01-31 00:00:00" in text


def test_a_table_that_is_too_long_says_how_many_rows_it_leaves_out() -> None:
    page = Page("t", sections=[HtmlTable("t", ["n"], [[n] for n in range(MAX_TABLE_ROWS + 7)])])
    read = _Reader(page.html())
    assert read.tags.count("td") == MAX_TABLE_ROWS
    assert "7 more rows are not shown" in read.text


def test_a_page_that_cannot_be_made_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "page.html"
    Page("first").write(path)
    with pytest.raises(ValueError, match="s has 1 values for 2 positions"):
        Page("second", sections=[Plot("p", [1.0, 2.0], {"s": [1.0]})]).write(path)
    assert "first" in path.read_text()
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    Page("third", reload_s=5).write(path)
    assert 'http-equiv="refresh" content="5"' in path.read_text()


def test_odd_names_and_numbers_are_drawn_all_the_same() -> None:
    hours = [START + timedelta(hours=hour) for hour in range(3)]
    odd: dict[str, list[float | None]] = {
        "_hidden": [1e308, None, float("inf")],
        "$x^2$": [float("nan"), -1e299, 1e299],
        "日本\x00\n": [0, 0, 0],
        "x" * 300: [0, 0, 0],
    }
    odd |= {f"series {number}": [number] * 3 for number in range(MAX_PLOT_SERIES)}
    bars = Plot("bars", ["_a", "", "y" * 300], {"count": [1, 2, 1e308]}, kind="bar")
    read = _Reader(Page("t", sections=[Plot("lines", hours, odd), bars]).html())
    assert read.tags.count("svg") == 2
    assert "_hidden" in read.text
    assert "日本" in read.text
    assert "and 4 more, not shown" in read.text
    assert "x" * 300 not in read.text


def test_values_of_a_single_time_are_figures_and_no_dots() -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    series = {f"<{n}>": [1000.0 * n] for n in range(MAX_PLOT_SERIES + 2)}
    read = _Reader(Page("t", "", [Plot("p", [at], series, "messages", open_from=0)]).html())
    assert "svg" not in read.tags
    assert "At 2026-01-31 12:00:00 UTC" in read.text
    assert "19,000" in read.text
    assert "<19>" in read.text
    assert "and 2 more, not shown" in read.text
    assert "may still change" in read.text


def test_ticks_are_times_of_day_and_the_axis_names_the_day() -> None:
    minutes = [START.replace(hour=7) + timedelta(minutes=10 * n) for n in range(12)]
    text = _Reader(Page("t", "", [Plot("p", minutes, {"a": [1.0] * 12})]).html()).text
    assert re.search(r"\s07:[1-5]\d\s", text)
    assert not re.search(r"\d \d\d:\d\d", text)
    assert "2026-01-31, UTC" in text
    days = [START + timedelta(hours=6 * n) for n in range(12)]
    text = _Reader(Page("t", "", [Plot("p", days, {"a": [1.0] * 12})]).html()).text
    assert "Feb 1" in text
    assert "2026-01-31 to 2026-02-02, UTC" in text


@pytest.mark.parametrize(
    ("plot", "ticks"),
    [
        (Plot("t", [TEN, TEN + timedelta(minutes=1)], {"n": [3, 4]}), ["10:00", "10:01"]),
        (Plot("t", [TEN, TEN + timedelta(hours=1)], {"n": [None, 4]}), ["10:00", "11:00"]),
        (Plot("t", [0, 1, 2], {"n": [None, 1, None]}), ["0", "1", "2"]),
        (Plot("t", [1, 3], {"n": [1, 1]}), ["1", "3"]),
    ],
    ids=["two windows", "one value", "one number", "two numbers"],
)
def test_few_places_have_a_tick_each_and_there_is_none_between(
    plot: Plot, ticks: list[str]
) -> None:
    labels = labels_of(plot)
    assert labels[: len(ticks)] == ticks
    assert "0.5" not in labels


@pytest.mark.parametrize("kind", ["line", "bar"])
@pytest.mark.parametrize(
    ("values", "ticks"),
    [([0, 0], ["0", "1"]), ([0, 1], ["0", "1"]), ([0, 3], ["0", "1", "2", "3"])],
)
def test_counts_have_no_fractions_on_their_axis(
    kind: Any, values: list[float], ticks: list[str]
) -> None:
    assert labels_of(Plot("t", ["a", "b"], {"n": values}, kind=kind))[2:] == ticks


def test_other_values_have() -> None:
    assert "0.5" in labels_of(Plot("t", [0, 1], {"n": [0.25, 0.75]}))


def test_the_values_of_open_windows_are_no_part_of_the_line() -> None:
    minutes = [START + timedelta(minutes=n) for n in range(5)]
    values: list[float | None] = [9, 9, 9, 9, 1]
    closed = Page("t", "", [Plot("p", minutes, {"a": values})]).html()
    opened = Page("t", "", [Plot("p", minutes, {"a": values}, open_from=4)]).html()
    assert _line_points(closed) == 5
    assert _line_points(opened) == 4
    assert "hollow" in opened
    assert "hollow" not in closed


def labels_of(plot: Plot) -> list[str]:
    """Return the texts of a plot, those of its horizontal axis first."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", Page("t", "", [plot]).html())


def _line_points(html: str) -> int:
    """Return the number of points of the plotted line, the first 1.2 points wide."""
    (path,) = re.findall(r'<path d="([^"]*)"[^>]*stroke-width="1.2"', html)
    return len(re.findall("[ML]", path))


def test_a_page_needs_no_styles_but_its_stylesheet() -> None:
    hours = [START + timedelta(hours=hour) for hour in range(24)]
    html = Page("t", "", [Plot("p", hours, {"a": [1.0] * 24, "b": [2.0] * 24}, "unit")]).html()
    assert " style=" not in html
    assert html.count("<style") == 1
    assert 'fill="currentColor"' in html


def test_columns_are_explained_below_their_table() -> None:
    table = HtmlTable("t", ["n", "p50_ms"], [], notes={"p50_ms": "half & half", "other": "?"})
    read = _Reader(Page("t", sections=[table]).html())
    assert "half & half" in read.text
    assert read.tags.count("dt") == 1
    assert "Nothing yet" in read.text
