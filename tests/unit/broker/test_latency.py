"""Latencies beside exact percentiles, and the window that forgets them."""

import numpy as np
import pytest
from numpy.random import default_rng
from tests.unit.broker.filled_index import filled

from martlet.broker.latency import Latency, quantiles
from martlet.duration import MILLISECOND_NS, SECOND_NS
from martlet.testing import SimulatedClock

LEVELS = (0.5, 0.95, 0.99, 1.0)
WITHIN = 0.016


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.mark.parametrize("in_runs", [False, True], ids=["one by one", "in runs"])
def test_percentiles_are_those_of_all_messages(clock: SimulatedClock, in_runs: bool) -> None:
    random = default_rng(7)
    counts = random.integers(1, 40, 300).tolist()
    ages_ns = np.sort(np.exp(random.uniform(8, 25, 300)).astype(np.int64))[::-1]
    index = filled(counts, (clock() - ages_ns).tolist())
    latency = Latency(index, clock, 600 * SECOND_NS)
    offsets = np.flatnonzero(random.random(sum(counts)) < 0.7)
    if in_runs:
        for run in np.array_split(offsets, 23):
            latency.note_run(run)
    else:
        for offset in offsets.tolist():
            latency.note(offset)
    exact = np.repeat(ages_ns, counts)[offsets]
    count, found = quantiles([latency], LEVELS)
    assert count == len(offsets)
    wanted = np.quantile(np.maximum(exact, 1024), LEVELS, method="inverted_cdf")
    assert found == pytest.approx(wanted, rel=WITHIN)


def test_a_topic_s_percentiles_are_those_of_all_its_channels(clock: SimulatedClock) -> None:
    index = filled([3, 1], [clock() - 10 * MILLISECOND_NS, clock() - 90 * MILLISECOND_NS])
    one, other, silent = (Latency(index, clock, SECOND_NS) for _ in range(3))
    one.note_run(np.array([0, 1, 2]))
    other.note(3)
    count, found = quantiles([one, other, silent], (0.75, 1.0))
    assert count == 4
    assert found == pytest.approx([10 * MILLISECOND_NS, 90 * MILLISECOND_NS], rel=WITHIN)


def test_without_messages_there_is_nothing_to_tell(clock: SimulatedClock) -> None:
    assert quantiles([], LEVELS) == (0, [0, 0, 0, 0])
    assert quantiles([Latency(filled([], []), clock, SECOND_NS)], (0.5,)) == (0, [0])


def test_what_is_older_than_the_window_is_forgotten(clock: SimulatedClock) -> None:
    index = filled([1] * 4, [clock()] * 4)
    latency = Latency(index, clock, 10 * SECOND_NS)

    def count() -> int:
        return quantiles([latency], (0.5,))[0]

    latency.note(0)
    clock.advance(4 * SECOND_NS)
    latency.note(1)
    assert count() == 2
    clock.advance(2 * SECOND_NS)  # the other half begins
    latency.note(2)
    assert count() == 3
    clock.advance(5 * SECOND_NS)
    assert count() == 1
    latency.note(3)
    assert count() == 2
    clock.advance(60 * SECOND_NS)
    assert count() == 0


def test_times_beyond_all_buckets_count_at_the_edge(clock: SimulatedClock) -> None:
    index = filled([1, 1], [clock() + SECOND_NS, clock() - (1 << 53)])
    latency = Latency(index, clock, 10 * SECOND_NS)
    latency.note_run(np.array([0, 1]))  # one is from a clock that has since been set back
    count, found = quantiles([latency], (0.5, 1.0))
    assert count == 2
    assert found == pytest.approx([1024, 1 << 52], rel=0.04)
