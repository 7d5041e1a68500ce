"""How values and texts of strangers are shown."""

from __future__ import annotations

import time
from xml.etree import ElementTree

import pytest

from martlet.console import shown


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0"), (-1, "0"), (0.25, "0.25"), (0.001, "0.001"), (12.34, "12.3"), (99.99, "100.0"),
     (1204.4, "1,204")],
)  # fmt: skip
def test_rates(value: float, expected: str) -> None:
    assert shown.rate(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "-"), (0.0, "0.0 s"), (1.24, "1.2 s"), (59.0, "59 s"), (120.0, "2 min"),
     (7200.0, "2 h"), (200_000.0, "2 d")],
)  # fmt: skip
def test_durations(value: float | None, expected: str) -> None:
    assert shown.duration(value) == expected


def test_sizes_and_numbers_and_times() -> None:
    assert [shown.size(size) for size in (0, 999, 1000, 3_100_000, 5e15)] == [
        *("0 B", "999 B", "1.0 kB", "3.1 MB", "5000.0 TB")
    ]
    assert shown.number(12034) == "12,034"
    assert shown.utc(0) == "1970-01-01 00:00:00 UTC"
    assert shown.ago(0) == "-"
    assert shown.ago(time.time() - 180) == "3 min ago"
    assert shown.ago(time.time() + 60) == "0.0 s ago", "a broker's clock may be ahead"


def lines(*values: float | None) -> list[str]:
    drawn = ElementTree.fromstring(str(shown.sparkline(values, "depth")))
    return [line.attrib["points"] for line in drawn]


def test_a_sparkline_fills_its_height_and_breaks_where_nothing_is_known() -> None:
    assert lines(0, 5, 10) == ["0.0,19.0 48.0,10.0 96.0,1.0"]
    assert lines(0, 5, None, 10, 0) == ["0.0,19.0 24.0,10.0", "72.0,1.0 96.0,19.0"]
    assert lines(0, 0) == ["0.0,19.0 96.0,19.0"]
    assert lines() == lines(None, None) == []


def test_a_value_alone_is_a_dot_of_a_sparkline() -> None:
    assert lines(3.0) == ["0.0,1.0 0.0,1.0"]
    assert lines(0.0, None, 2.0, None) == ["0.0,19.0 0.0,19.0", "64.0,1.0 64.0,1.0"]


def test_the_label_of_a_sparkline_is_text() -> None:
    drawn = ElementTree.fromstring(str(shown.sparkline([1.0], '"><script>alert(1)</script>')))
    assert drawn.attrib["aria-label"] == '"><script>alert(1)</script>'
    assert [line.tag for line in drawn] == ["polyline"]
