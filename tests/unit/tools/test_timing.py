"""How long requests take, in log lines."""

from __future__ import annotations

import logging

import pytest

from martlet.tools.timing import Timings


def test_a_line_after_so_many(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    timings = Timings(10, ("a", "b"))
    for number in range(20):
        timings.note(number / 1000)
        timings.note_host("a", 0.001)
    timings.note(0.002, 25)
    assert [record.getMessage() for record in caplog.records] == [
        "[aggregate]: finished 10 requests - 99th: 9.00ms - 95th: 9.00ms - avg: 4.50ms",
        "[a]: finished 10 requests - 99th: 1.00ms - 95th: 1.00ms - avg: 1.00ms",
        "[aggregate]: finished 10 requests - 99th: 19.00ms - 95th: 19.00ms - avg: 14.50ms",
        "[a]: finished 10 requests - 99th: 1.00ms - 95th: 1.00ms - avg: 1.00ms",
        *["[aggregate]: finished 10 requests - 99th: 2.00ms - 95th: 2.00ms - avg: 2.00ms"] * 2,
    ]


def test_one_host_is_told_once_and_0_never(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    timings = Timings(1, ("a",))
    timings.note_host("a", 0.001)
    assert caplog.records == []
    Timings(0, ("a",)).note(0.001, 1000)
    assert caplog.records == []
