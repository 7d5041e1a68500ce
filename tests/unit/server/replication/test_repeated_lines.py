"""Lines of connections that are refused again and again."""

from __future__ import annotations

import logging

import pytest

from martlet.server.replication import repeated_lines
from martlet.server.replication.repeated_lines import RepeatedLines

LINE = "closing the connection to %s: %s"


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_wrong_secret_is_a_line_a_minute_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each attempt was a line, ten a second."""
    caplog.set_level(logging.INFO, "martlet")
    clock = Clock()
    log = RepeatedLines.above(logging.getLogger("martlet"), clock)
    for port in range(1000):
        clock.now_s = port / 10  # 100 s.
        log.info(LINE, ("10.0.0.2", port), OSError("another secret"))
    log.info(LINE, ("10.0.0.3", 1), OSError("another secret"))
    log.info(LINE, ("10.0.0.2", 1), OSError("no frame"))
    assert [record.getMessage() for record in caplog.records] == [
        "closing the connection to 10.0.0.2:0: another secret",
        "closing the connection to 10.0.0.2:600: another secret (and 599 more times in the"
        " last 60 s)",
        "closing the connection to 10.0.0.3:1: another secret",
        "closing the connection to 10.0.0.2:1: no frame",
    ]


def test_lines_that_differ_are_limited(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_lines, "MAX_LINES", 3)
    caplog.set_level(logging.INFO, "martlet")
    log = RepeatedLines.above(logging.getLogger("martlet"))
    (limited,) = log.filters
    assert isinstance(limited, RepeatedLines)
    for host in range(100):
        for _ in range(2):
            log.info(LINE, (f"10.0.0.{host}", 1), "no frame")
        assert max(len(limited._logged_s), len(limited._dropped)) <= 3
    assert len(caplog.records) == 100
    log.info(LINE, ("10.0.0.0", 1), "no frame")
    assert len(caplog.records) == 101
