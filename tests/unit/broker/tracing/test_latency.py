"""Latencies beside exact percentiles, and the window that forgets them."""

import numpy as np
import pytest
from numpy.random import default_rng
from tests.unit.broker.filled_index import filled

from martlet.broker.tracing.finish_ages import (
    FinishAges,
    Latency,
    Together,
    _code,
    _codes,
    quantiles,
)
from martlet.log.index import Index
from martlet.testing import SimulatedClock
from martlet.text import MILLISECOND_NS, SECOND_NS

LEVELS = (0.5, 0.95, 0.99, 1.0)
WITHIN = 0.016


def measured(index: Index, clock: SimulatedClock, window_ns: int) -> tuple[FinishAges, Latency]:
    finishes = FinishAges(index, clock)
    finishes.latency = latency = Latency(clock, window_ns)
    return finishes, latency


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.mark.parametrize("in_runs", [False, True], ids=["one by one", "in runs"])
def test_percentiles_are_those_of_all_messages(clock: SimulatedClock, in_runs: bool) -> None:
    random = default_rng(7)
    counts = random.integers(1, 40, 300).tolist()
    ages_ns = np.sort(np.exp(random.uniform(8, 25, 300)).astype(np.int64))[::-1]
    index = filled(counts, (clock() - ages_ns).tolist())
    finishes, latency = measured(index, clock, 600 * SECOND_NS)
    offsets = np.flatnonzero(random.random(sum(counts)) < 0.7)
    if in_runs:
        for run in np.array_split(offsets, 23):
            finishes.note_run(run)
    else:
        for offset in offsets.tolist():
            finishes.note(offset)
    exact = np.repeat(ages_ns, counts)[offsets]
    count, results = quantiles([latency], LEVELS)
    assert count == len(offsets)
    expected = np.quantile(np.maximum(exact, 1024), LEVELS, method="inverted_cdf")
    assert results == pytest.approx(expected, rel=WITHIN)


def test_a_topic_s_percentiles_are_those_of_all_its_channels(clock: SimulatedClock) -> None:
    index = filled([3, 1], [clock() - 10 * MILLISECOND_NS, clock() - 90 * MILLISECOND_NS])
    one, other, silent = (measured(index, clock, SECOND_NS) for _ in range(3))
    one[0].note_run(np.array([0, 1, 2]))
    other[0].note(3)
    latencies = [latency for _, latency in (one, other, silent)]
    count, results = quantiles(latencies, (0.75, 1.0))
    together = Together()
    for latency in latencies:
        together.add(latency)
    assert quantiles([together], (0.75, 1.0)) == (count, results)
    assert count == 4
    assert results == pytest.approx([10 * MILLISECOND_NS, 90 * MILLISECOND_NS], rel=WITHIN)


def test_quantiles_without_messages_are_zero(clock: SimulatedClock) -> None:
    assert quantiles([], LEVELS) == (0, [0, 0, 0, 0])
    assert quantiles([Latency(clock, SECOND_NS)], (0.5,)) == (0, [0])


def test_finishes_older_than_the_window_are_forgotten(clock: SimulatedClock) -> None:
    index = filled([1] * 4, [clock()] * 4)
    finishes, latency = measured(index, clock, 10 * SECOND_NS)

    def count() -> int:
        return quantiles([latency], (0.5,))[0]

    finishes.note(0)
    clock.advance(4 * SECOND_NS)
    finishes.note(1)
    assert count() == 2
    clock.advance(2 * SECOND_NS)  # the other half begins
    finishes.note(2)
    assert count() == 3
    clock.advance(5 * SECOND_NS)
    assert count() == 1
    finishes.note(3)
    assert count() == 2
    clock.advance(60 * SECOND_NS)
    assert count() == 0


def test_times_beyond_all_buckets_count_at_the_edge(clock: SimulatedClock) -> None:
    index = filled([1, 1], [clock() + SECOND_NS, clock() - (1 << 53)])
    finishes, latency = measured(index, clock, 10 * SECOND_NS)
    finishes.note_run(np.array([0, 1]))  # one is from a clock that has since been set back
    count, results = quantiles([latency], (0.5, 1.0))
    assert count == 2
    assert results == pytest.approx([1024, 1 << 52], rel=0.04)


def test_one_value_falls_into_the_same_bucket_as_among_many() -> None:
    edges = [(1 << bits) + more for bits in range(9, 54) for more in (-1, 0, 1)]
    values = [-5, 0, *edges, *default_rng(3).integers(0, 1 << 50, 2000).tolist()]
    assert [_code(value) for value in values] == _codes(np.array(values)).tolist()
