"""The handler of the demonstration: what fails, what counts, and what counts once."""

from __future__ import annotations

import json

import pytest

from examples.flights.handling import ONE_IN, DemoHandlerFailed, DemoHandling
from examples.flights.report import CarrierLine
from martlet.client import Message


def message(row: int, carrier: str = "UA", delay_min: int | None = 5) -> Message:
    body = json.dumps({"row": row, "carrier": carrier, "dep_delay": delay_min}).encode()
    return Message(None, 0, 1, b"0" * 16, body)


async def test_one_in_a_hundred_fails_the_first_time_only() -> None:
    handling = DemoHandling("127.0.0.1:4150", 3 * ONE_IN)
    failed = []
    for row in range(3 * ONE_IN):
        try:
            handling.handle(message(row))
        except DemoHandlerFailed:
            failed.append(row)
    assert failed == [0, ONE_IN, 2 * ONE_IN]
    assert [row for row, done in enumerate(handling.done) if not done] == failed
    for row in failed:
        handling.handle(message(row))
    assert handling.finished.count == handling.count == handling.done.count(1)
    assert (handling.deliveries, handling.failures) == (3 * ONE_IN + 3, 3)


async def test_a_repeated_message_counts_once() -> None:
    handling = DemoHandling("127.0.0.1:4150", 3)
    for row, carrier, delay_min in [(1, "UA", 5), (1, "UA", 5), (2, "UA", None)]:
        handling.handle(message(row, carrier, delay_min))
    assert (handling.deliveries, handling.finished.count) == (3, 2)
    assert handling.report() == {"UA": CarrierLine(2, 5.0)}


async def test_a_message_that_is_no_flight_is_an_error() -> None:
    handling = DemoHandling("127.0.0.1:4150", 3)
    with pytest.raises(json.JSONDecodeError):
        handling.handle(Message(None, 0, 1, b"0" * 16, b"{"))
    with pytest.raises(IndexError):
        handling.handle(message(3))
