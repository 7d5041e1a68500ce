"""The history of the last hour, and rates of counters."""

from __future__ import annotations

import numpy as np
import pytest

from martlet.console import history as module
from martlet.console.history import STEP_S, STEPS, CountHistory, Rates

KEY = ("orders", "work")


def step(history: CountHistory, at_s: float, depth: float = 1.0) -> None:
    assert history.begin_step(at_s)
    history.add(KEY, depth, depth * 2, depth * 3)


def test_a_step_is_ten_seconds() -> None:
    history = CountHistory()
    step(history, 1000.0)
    assert not history.begin_step(1000.0 + STEP_S - 0.1)
    step(history, 1000.0 + STEP_S, 2.0)
    assert history.times_s() == [1000.0, 1010.0]
    assert history.series(KEY, "depth") == [1.0, 2.0]
    assert history.series(KEY, "in") == [2.0, 4.0]
    assert history.series(KEY, "out") == [3.0, 6.0]
    step(history, 900.0)
    assert history.times_s()[-1] == 900.0, "a clock that was put back does not end it"


def test_it_keeps_an_hour() -> None:
    history = CountHistory()
    for number in range(STEPS + 3):
        step(history, number * STEP_S, number)
    assert len(history.times_s()) == STEPS
    assert history.times_s()[0] == 3 * STEP_S
    assert history.series(KEY, "depth", 2) == [STEPS + 1.0, STEPS + 2.0]
    assert history.growth(KEY, 30) == 29


def test_a_step_without_a_value_is_a_gap() -> None:
    history = CountHistory()
    step(history, 0.0, 5.0)
    assert history.begin_step(STEP_S)
    step(history, 2 * STEP_S, 7.0)
    assert history.series(KEY, "depth") == [5.0, None, 7.0]
    assert history.growth(KEY) == 2.0
    assert history.series("unknown", "depth") == [None, None, None]
    assert history.growth("unknown") == 0.0


def test_what_is_forgotten_leaves_nothing_to_the_next() -> None:
    history = CountHistory()
    step(history, 0.0, 5.0)
    history.keep(set())
    assert history.begin_step(STEP_S)
    history.add("other", 1.0, 0.0, 0.0)
    assert history.series("other", "depth") == [None, 1.0]
    assert history.series(KEY, "depth") == [None, None]


def test_the_number_of_series_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 100)
    history = CountHistory()
    assert history.begin_step(0.0)
    for number in range(150):
        history.add(number, number, 0.0, 0.0)
    assert history.series(99, "depth") == [99.0]
    assert history.series(100, "depth") == [None]
    history.keep(set(range(99)))
    history.add(100, 7.0, 0.0, 0.0)
    assert history.series(100, "depth") == [7.0]
    assert history.series(98, "depth") == [98.0]


def test_more_series_leave_earlier_steps_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is not cleared: what it held before must not show."""
    empty = np.empty
    monkeypatch.setattr(np, "empty", lambda *given: np.full_like(empty(*given), 42.0))
    history = CountHistory()
    step(history, 0.0, 5.0)
    step(history, STEP_S, 6.0)
    for number in range(300):
        history.add(number, 7.0, 0.0, 0.0)
    assert history.begin_step(2 * STEP_S)
    assert history.series(KEY, "depth") == [5.0, 6.0, None]
    assert {tuple(history.series(number, "depth")) for number in range(300)} == {(None, 7.0, None)}


@pytest.mark.parametrize(
    ("looks", "rates_per_s"),
    [
        ([("a", 100, 1.0, 10.0), ("a", 150, 1.0, 15.0), ("a", 150, 1.0, 15.0)], [0.0, 10.0, 0.0]),
        ([("a", 100, 1.0, 10.0), ("b", 150, 1.0, 15.0)], [0.0, 0.0]),
        ([("a", 100, 1.0, 10.0), ("a", 500, 11.0, 15.0), ("a", 510, 11.0, 20.0)], [0.0, 0.0, 2.0]),
        ([("a", 100, 1.0, 10.0), ("a", 200, 1.0, 110.0)], [0.0, 1.0]),
    ],
    ids=["no time has passed", "a broker's own counters", "started again", "away for a time"],
)
def test_a_rate_is_what_a_counter_grew_by(
    looks: list[tuple[str, int, float, float]], rates_per_s: list[float]
) -> None:
    rates = Rates()
    assert [rates.rate(broker, KEY, *look) for broker, *look in looks] == rates_per_s


def test_forgotten_counters_begin_anew() -> None:
    rates = Rates()
    for broker in ("a", "b"):
        rates.rate(broker, KEY, 100, 1.0, 10.0)
    rates.keep({"a"}, {KEY})
    assert rates.rate("a", KEY, 110, 1.0, 20.0) == 1.0
    assert rates.rate("b", KEY, 110, 1.0, 20.0) == 0.0
