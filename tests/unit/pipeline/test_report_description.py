"""Descriptions of reports: their meaning, and the errors of wrong ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from martlet.options.flag import OptionError
from martlet.pipeline.archive.store import Store
from martlet.pipeline.html_page import HtmlTable, Plot, Text
from martlet.pipeline.job import JobFailed, Run, carry_out
from martlet.pipeline.report import JOB, LiveReportOptions
from martlet.pipeline.report.board import MAX_BOARD_ROWS, FigureBoard
from martlet.pipeline.report.description import BadDescription, Description, Figure, Mode, parse
from martlet.pipeline.report.query import aggregates, name_of, require_columns, sql_of
from martlet.pipeline.report.render import page_of, print_board
from martlet.pipeline.report.report import LiveReport

START = datetime(2026, 1, 31, tzinfo=UTC)
GOOD = '[figures.sales]\nwindow = "1 minute"\ncount = true\n'


def test_a_short_description_has_the_defaults() -> None:
    description = parse(GOOD)
    assert (description.time, description.watermark) == ("timestamp", "1 minute")
    assert sql_of(description.figures[0], "timestamp") == (
        "SELECT _window.start AS window_start, _window.end AS window_end, count(*) AS `count`"
        " FROM (SELECT *, window(`timestamp`, '1 minute') AS _window FROM messages)"
        " GROUP BY _window"
    )


def test_each_expression_has_a_column_of_its_own() -> None:
    figure = parse(
        GOOD + 'percentiles = { "a.b" = [50, 99.9], c = 1 }\ntop = { d = 5 }\ndistinct = ["e"]'
    ).figures[0]
    assert [name for name, _ in aggregates(figure)] == [
        *("count", "a_b_p50", "a_b_p99_9", "c_p1", "e_distinct", "d_top"),
    ]
    assert name_of("lower(country)") == "lower_country"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title =", "not valid TOML"),
        ('title = "t"', "no figures"),
        ("figures = 3", "no figures"),
        (GOOD + "cuont = true", "has no cuont; it has window, "),
        ("windows = 1\n" + GOOD, "the description has no windows; it has title, "),
        ('[figures."a b"]\nwindow = "1 minute"', "letters, digits"),
        ("[figures.a]\ncount = true", "needs a window"),
        ('[figures.a]\nwindow = "1 minute"', "shows nothing"),
        (GOOD + "rate = 1", "neither true nor false"),
        (GOOD + "by = 'country'", "no list of texts"),
        (GOOD + "percentiles = { a = [101] }", "no list of 0 to 100"),
        (GOOD + "percentiles = [50]", "and no table"),
        (GOOD + "top = { a = 0 }", "not from 1 to 1000"),
        (GOOD + "values = { a = 1 }", "is 1 and no text"),
        (GOOD + "sql = 'SELECT 1'", "cannot have count, window"),
        (GOOD + "mode = 'append'", "for a figure that has sql"),
        ("[figures.a]\nsql = 'SELECT 1'\nmode = 'all'", "none of append, update, complete"),
        ("topics = ['a b']\n" + GOOD, "topics has 'a b': a topic's name is 1 to 64 of"),
    ],
)
def test_impossible_descriptions_are_named(text: str, said: str) -> None:
    with pytest.raises(BadDescription, match=said):
        parse(text)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("by = ['Count']", "two columns that are called count"),
        ("by = ['a + 1', 'a - 1']", "two columns that are called a_1"),
        ("percentiles = { a = 50 }\nvalues = { a_p50 = 'max(a)' }", "are called a_p50"),
        ("by = ['window_start']", "are called window_start"),
        ("distinct = ['*']\ntop = { '' = 1 }\nby = ['-']", "has no letter or digit"),
    ],
)
def test_columns_of_one_name_are_refused(more: str, said: str) -> None:
    with pytest.raises(BadDescription, match=said):
        require_columns(parse(GOOD + more).figures[0])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "no brokers"),
        ({"addresses": ("a:1",), "sql": "S", "description": "d"}, "exclude each other"),
        ({"addresses": ("a:1",), "sql": "S", "start": "now"}, "neither earliest nor latest"),
        ({"addresses": ("a:1",), "sql": "S", "to_topic": "t"}, "need --checkpoint"),
        ({"addresses": ("a:1",), "sql": "S", "topics": ("a b",)}, "--topic=a b is not valid"),
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        LiveReportOptions(**wrong)  # type: ignore[arg-type]


def test_a_board_keeps_the_newest_rows_alone() -> None:
    board = FigureBoard(["n"])
    board.update({"n": n, "value": 1} for n in range(MAX_BOARD_ROWS + 3))
    board.update([{"n": MAX_BOARD_ROWS, "value": 2}])
    assert len(board.rows) == MAX_BOARD_ROWS
    assert [row["value"] for row in board.rows if row["n"] == MAX_BOARD_ROWS] == [2]
    board.update([{"n": 1, "value": 3}], complete=True)
    assert board.rows == [{"n": 1, "value": 3}]


def test_new_rows_are_all_kept_and_a_repeated_batch_counts_once(
    tmp_path: Path,
) -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    rows = [{"n": 1, "at": at, "of": {"time": at}, "sum": Decimal("1.50")}] * 2
    board = FigureBoard(None, Store.at(str(tmp_path)))
    board.update(rows, batch=0)
    again = FigureBoard(None, Store.at(str(tmp_path)))
    again.update(rows, batch=0)
    assert again.rows == rows
    again.update(rows[:1], batch=1)
    assert again.rows == rows + rows[:1]


def test_a_board_that_cannot_be_read_begins_empty(tmp_path: Path) -> None:
    damaged = ('{"$datetime": "x"}', '{"$decimal": "x"}', '{"n": {"$decimal": "1-"}}', "1")
    rows = [f'{{"rows": [{{"n": 1}}, {row}], "batch": 1}}' for row in damaged]
    for text in ("", "[]", "[" * 100_000, '{"rows": null, "batch": 1}', *rows):
        (tmp_path / "board.json").write_text(text)
        assert FigureBoard(["n"], Store.at(str(tmp_path))).rows == []


@pytest.mark.parametrize("note", ["", "{", "[1]", "null"])
def test_a_checkpoint_whose_figure_cannot_be_read_is_named(tmp_path: Path, note: str) -> None:
    report: Any = SimpleNamespace(description=Description(figures=()))
    figure = Figure(name="f", sql="S", mode="complete")
    LiveReport._require_same(report, figure, str(tmp_path))
    (tmp_path / "f" / "figure.json").write_text(note)
    with pytest.raises(JobFailed, match=r"cannot read figure.json of .*bring it back, or remove"):
        LiveReport._require_same(report, figure, str(tmp_path))


def test_rows_of_a_query_stay_in_its_order() -> None:
    board = FigureBoard([])
    rows = [{"n": n} for n in range(12, 0, -1)]
    board.update(rows, complete=True)
    assert board.rows == rows
    sections = page_of(
        Description(figures=(Figure(name="f", sql="S", mode="complete"),)), {"f": rows}, reload_s=0
    ).sections
    assert isinstance(sections[0], HtmlTable)
    assert sections[0].rows == [[n] for n in range(12, 0, -1)]


def test_groups_without_a_value_have_lines_of_their_own() -> None:
    figure = parse(GOOD + "by = ['country']").figures[0]
    rows = [
        {
            "window_start": START,
            "window_end": START + timedelta(minutes=1),
            "country": country,
            "count": count,
        }
        for count, country in enumerate([None, "", "NL"], 1)
    ]
    plot = page_of(Description(figures=(figure,)), {"sales": rows}, reload_s=0).sections[0]
    assert isinstance(plot, Plot)
    assert plot.series == {"null": [1.0], "''": [2.0], "NL": [3.0]}


def test_a_window_in_which_no_value_stands_out_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    figure = parse(GOOD + "top = { customer = 2 }\nvalues = { all = 'collect_list(n)' }").figures[0]
    window = {"window_start": START, "window_end": START + timedelta(minutes=1), "count": 900}
    rows: list[dict[str, Any]] = [{**window, "customer_top": [], "all": [1]}]
    sections = page_of(Description(figures=(figure,)), {"sales": rows}, reload_s=0).sections
    texts = [section.text for section in sections if isinstance(section, Text)]
    assert texts == ["sales: customer_top, 00:00:00 UTC: no value stands out"]
    (table,) = [section for section in sections if isinstance(section, HtmlTable)]
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["customer_top"], row["all"]) == ("no value stands out", "1")
    assert "with their counts" in table.notes["customer_top"]
    print_board(Run(None).console, figure, rows)  # type: ignore[arg-type]
    assert "no value stands out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mode", "slide_min", "states"),
    [
        ("update", 10, ["open", "", "", ""]),
        ("update", 5, ["open", "open", "", ""]),
        ("append", 10, None),
    ],
)
def test_windows_that_may_still_get_messages_are_open(
    mode: Mode, slide_min: int, states: list[str] | None
) -> None:
    figure = replace(parse(GOOD).figures[0], mode=mode)
    starts = [START + timedelta(minutes=slide_min * n) for n in range(4)]
    rows = [
        {"window_start": start, "window_end": start + timedelta(minutes=10), "count": 1}
        for start in starts
    ]
    plot, table = page_of(Description(figures=(figure,)), {"sales": rows}, reload_s=0).sections
    assert isinstance(plot, Plot)
    assert isinstance(table, HtmlTable)
    if states is None:
        assert plot.open_from is None
        assert "state" not in table.columns
    else:
        assert plot.open_from == 4 - states.count("open")
        assert [row[-1] for row in table.rows] == states
        assert "state" in table.notes


def test_an_impossible_command_is_refused_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("figures = 1")
    options = LiveReportOptions(addresses=("a:1",), description=str(wrong))
    assert carry_out(JOB, options) == 2
    assert f"--description={wrong}: the description has no figures" in capsys.readouterr().err
    assert carry_out(JOB, LiveReportOptions(addresses=("a:1",))) == 2
    assert "say what to report" in capsys.readouterr().err
    wrong.write_text(GOOD)
    assert carry_out(JOB, options) == 2
    assert "which topics?" in capsys.readouterr().err
