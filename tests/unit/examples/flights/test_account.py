"""The account finds whatever is wrong: a demonstration that cannot fail would show nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from examples.flights.account import DemoTotals
from examples.flights.archiving import ArchiveContents
from examples.flights.report import CarrierLine, Report, differing, table

REPORT = {"AA": CarrierLine.of(2, 2, 7), "UA": CarrierLine.of(2, 0, 0)}
OTHER = REPORT | {"UA": CarrierLine.of(2, 1, 3)}
FOUND = ArchiveContents(rows=5, offsets=5, corrupt=0, flights=4, missing=frozenset(), report=REPORT)
GOOD = DemoTotals(
    answered=b"\1\1\1\1",
    done=b"\1\1\1\1",
    published=4,
    stored=5,
    deliveries=9,
    failures=1,
    left=0,
    found=FOUND,
    source=REPORT,
    handled=REPORT,
    log=(True, "OK"),
    kills=1,
)


def shown(account: DemoTotals) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(account.table())
    return " ".join(capture.get().replace("│", " ").split())


def test_nothing_is_wrong_where_all_adds_up() -> None:
    assert GOOD.faults() == []
    assert GOOD.lost == frozenset()
    text = shown(GOOD)
    assert "stored twice 1 " in text
    assert "redelivered 4 1 failed on purpose, 3 after the kill" in text
    assert "archived 4 in 5 rows" in text
    assert "lost 0" in text


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"answered": b"\1\1\1\0"}, "only 3 of 4 flights were answered OK"),
        ({"done": b"\1\0\1\1"}, "not finished: 1 flights (rows 1)"),
        ({"kills": 0}, "the broker was not killed"),
        ({"left": 3}, "still on the consumers' channel: 3 messages"),
        ({"handled": OTHER}, "what the consumers add up to differs for UA"),
        ({"log": (False, "DAMAGED: 2 errors")}, "martlet log verify: DAMAGED: 2 errors"),
        ({"stored": 6}, "5 rows are archived, and 6 messages were stored"),
        ({"found": replace(FOUND, offsets=4)}, "archived twice: 1 message"),
        ({"found": replace(FOUND, corrupt=1)}, "1 archived messages are not what was published"),
        (
            {"found": replace(FOUND, missing=frozenset({2, 3}))},
            "not archived: 2 flights (rows 2, 3)",
        ),
        ({"found": replace(FOUND, report=OTHER)}, "Spark adds up from the archive differs for UA"),
        ({"found": None}, "there is no archive"),
        ({"troubles": ("the broker is gone",), "found": None}, "the broker is gone"),
    ],
)
def test_each_fault_is_found_alone(change: dict[str, Any], fault: str) -> None:
    (only,) = replace(GOOD, **change).faults()
    assert fault in only


def test_answered_messages_missing_anywhere_are_lost() -> None:
    account = replace(
        GOOD,
        answered=b"\1\1\1\0",
        done=b"\1\0\1\0",
        found=replace(FOUND, missing=frozenset({2, 3})),
    )
    assert account.lost == frozenset({1, 2})
    assert "lost 2" in shown(account)


def test_nothing_is_called_lost_where_the_job_was_broken_off() -> None:
    account = replace(GOOD, done=b"\0\0\0\0", stored=None, left=None, troubles=("stopped",))
    assert account.lost is None
    assert account.faults() == ["stopped", "not finished by then: 4 flights (rows 0, 1, 2, 3)"]
    assert "lost unknown" in shown(account)


def test_means_of_the_same_sums_are_the_same() -> None:
    assert CarrierLine.of(3, 3, 10) == CarrierLine(3, 10 / 3)
    assert CarrierLine.of(3, 0, 0).mean_delay_min is None


@pytest.mark.parametrize(
    ("other", "wrong"),
    [
        (REPORT, []),
        (OTHER, ["UA"]),
        ({"AA": REPORT["AA"]}, ["UA"]),
        (REPORT | {"DL": CarrierLine.of(1, 1, 1)}, ["DL"]),
        (REPORT | {"AA": CarrierLine(2, 3.5000000000000004)}, ["AA"]),
    ],
)
def test_reports_that_differ(other: Report, wrong: list[str]) -> None:
    assert differing(REPORT, other) == wrong
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table({"source": REPORT, "archive": other}))
    said = {
        line.split("│")[1].strip(): line.split("│")[-2].strip()
        for line in capture.get().splitlines()
        if line.startswith("│")
    }
    assert [name for name, equal in said.items() if equal == "NO" and name != "all"] == wrong
    assert said["all"] == ("NO" if wrong else "yes")
