"""The buckets of publish-to-finish times beside a count of each message by itself."""

import numpy as np
import pytest
from numpy.random import default_rng
from tests.unit.broker.core import SECOND_NS, Core
from tests.unit.broker.filled_index import filled

from martlet.broker.tracing.finish_ages import BOUNDS_NS, FinishAges
from martlet.log.index import MAX_ROWS_IN_MEMORY
from martlet.testing import SimulatedClock

MILLISECOND_NS = 1_000_000


def counted(latencies_ns: np.ndarray) -> list[int]:
    """Return the expected count of each bucket."""
    up_to = [int((latencies_ns <= bound).sum()) for bound in BOUNDS_NS]
    return [*np.diff([0, *up_to]).tolist(), len(latencies_ns) - up_to[-1]]


@pytest.mark.parametrize("max_count", [1, 3, 300], ids=["alone", "few", "many"])
@pytest.mark.parametrize("way", ["one by one", "in runs", "backwards"])
def test_each_message_is_in_its_bucket(max_count: int, way: str) -> None:
    """The index is partly in its file, partly in memory."""
    clock = SimulatedClock()
    random = default_rng(max_count)
    rows = MAX_ROWS_IN_MEMORY + 900
    counts = random.integers(1, max_count + 1, rows).tolist()
    ages_ns = np.sort(np.exp(random.uniform(11, 31, rows)).astype(np.int64))[::-1]
    index = filled(counts, (clock() - ages_ns).tolist())
    finishes = FinishAges(index, clock)
    offsets = np.flatnonzero(random.random(sum(counts)) < 0.8)
    runs = np.array_split(offsets, 200)
    if way == "backwards":
        runs.reverse()
    for run in runs:
        if way == "one by one":
            for offset in run.tolist():
                finishes.note(offset)
        else:
            finishes.note_run(run)
    latencies_ns = np.repeat(ages_ns, counts)[offsets]
    assert finishes.counts == counted(latencies_ns)
    assert finishes.count == len(offsets)
    assert finishes.sum_ns == int(latencies_ns.sum())


def test_a_bound_belongs_to_its_bucket() -> None:
    clock = SimulatedClock()
    bound_ns = BOUNDS_NS[3]
    index = filled([1, 1], [clock() - bound_ns, clock() - bound_ns + 1])
    finishes = FinishAges(index, clock)
    finishes.note_run(np.array([0, 1]))
    assert finishes.counts[3] == 2
    clock.advance(1)
    finishes.note(0)
    assert finishes.counts[3:5] == [2, 1]


def test_a_message_from_the_future_took_no_time() -> None:
    """A clock was set back while the broker was down."""
    clock = SimulatedClock()
    index = filled([1] * 20, [clock() + SECOND_NS] * 20)
    finishes = FinishAges(index, clock)
    finishes.note(0)
    finishes.note_run(np.arange(1, 20))
    assert finishes.counts[0] == 20
    assert finishes.sum_ns == 0


def test_a_channel_counts_late_finishes_too(core: Core) -> None:
    """In the window, requeued and timed out; and what has been emptied was never finished."""
    core.publish("t", b"a", b"b", b"c", b"d")
    client = core.client("t", timeout_ns=SECOND_NS).ready(3)
    channel = core.channel("t")
    client.finish(0)
    client.requeue(1)
    core.wait(2 * SECOND_NS)
    client.ready(10)
    again = [number for number, got in enumerate(client.got) if got.attempts > 1]
    client.finish(again[-1])
    assert channel.finishes.count == 2
    assert channel.finishes.sum_ns == 2 * SECOND_NS
    channel.empty()
    assert channel.finishes.count == 2


def test_deliveries_are_counted_though_their_consumer_has_left(core: Core) -> None:
    core.publish("t", b"a", b"b", b"c")
    first = core.client("t").ready(2)
    channel = core.channel("t")
    assert channel.delivered_count == 2
    first.leave()
    assert channel.delivered_count == 2
    core.client("t").ready(1)
    assert channel.delivered_count == 3
