"""The benchmark of the broker's hot path runs; its figures are for a person to compare."""

import pytest

from bench.hot_path import ROWS, main


def test_each_row_has_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--seconds", "0.005", "--repeat", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines] == [name for name, _ in ROWS.values()]
    assert all(line.endswith(" us a command") for line in lines)
