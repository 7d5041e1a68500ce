"""The page of benchmarks gets its tables, and shows where Martlet is behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.page import PAGE, write

ABOUT = {
    "time": "2026-11-24T10:00:00+00:00",
    "cores": 2,
    "processor": "a processor",
    "system": "Linux",
    "python": "3.11.2",
    "load_average": 0.1,
}


def measured() -> dict[str, Any]:
    row = {
        "row": "pub",
        "work": "PUB, one at a time",
        "measure": "",
        "unit": "msg/s",
        "martlet": 20_000.0,
        "other": 10_000.0,
        "ratio": 2.0,
        "pair_ratios": [1.9, 2.1],
        "pure_ratio": 0.9,
    }
    runs = [{"publish": [rate]} for rate in (30.0, 50.0, 40.0)]
    return {
        "nsqd": {
            "machine": ABOUT,
            "repeat": 5,
            "seconds": 3.0,
            "servers": {"nsqd": "1.3.0"},
            "rows": [row],
        },
        "peers": {
            "machine": ABOUT,
            "repeat": 5,
            "seconds": 3.0,
            "skipped": {"a broker": "there is none"},
            "tables": {
                "page cache": [
                    {"name": f"broker {number}", "version": "1", "runs": each}
                    for number, each in enumerate(runs)
                ]
            },
        },
    }


def test_tables_are_written_and_written_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    write(page, measured())
    once = page.read_text(encoding="utf-8")
    nsqd = "| PUB, one at a time | `pub` | 20,000/s | 10,000/s | 2 x | 1.9 to 2.1 | **0.9 x** |"
    assert nsqd in once
    assert "| publish one at a time | 30/s | 50/s | 40/s | **0.75 x** | 1.25 x |" in once
    assert "Not measured: a broker, as there is none." in once
    assert "Measured 2026-11-24 on 2 cores of a processor" in once
    write(page, measured())
    assert page.read_text(encoding="utf-8") == once


def test_a_page_without_a_place_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Benchmarks\n", encoding="utf-8")
    with pytest.raises(ValueError, match="have to be there once"):
        write(page, measured())
