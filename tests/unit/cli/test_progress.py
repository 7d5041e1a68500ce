"""The progress of a long command, without a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from martlet.cli.progress import Lines, shown


def test_a_line_every_ten_seconds() -> None:
    stream = io.StringIO()
    now_s = 100.0
    lines = Lines("importing", 1000, stream, lambda: now_s)
    lines.advance(100)
    assert stream.getvalue() == ""
    now_s += 10
    lines.advance(150)
    lines.advance(10)
    assert stream.getvalue() == "importing: 25%, about 30 s left\n"
    now_s += 10
    lines.advance(240)
    assert stream.getvalue().splitlines()[1:] == ["importing: 50%, about 20 s left"]
    now_s += 10
    lines.advance(500)  # all is done: the result is logged elsewhere
    assert len(stream.getvalue().splitlines()) == 2


def test_a_terminal_without_rich_gets_lines_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with shown("importing", 0) as advance:
        advance(0)
    assert capsys.readouterr().err == ""
