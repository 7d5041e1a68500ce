"""Positions: shared out fairly, and cut into splits without a gap."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from martlet.log.index import ENTRY
from martlet.reader.offsets import QueueKey, flatten, nested, spans, step, within_bytes
from martlet.reader.split import edges_of

KEYS = [QueueKey(broker, "t", queue) for broker in "ab" for queue in range(3)]
SIZES = st.lists(st.integers(0, 1000), min_size=len(KEYS), max_size=len(KEYS))


def test_nested_and_back() -> None:
    flat = {key: number for number, key in enumerate(KEYS)}
    offsets = nested(dict(reversed(list(flat.items()))))
    assert list(offsets) == ["a", "b"]
    assert offsets["a"]["t"] == {"0": 0, "1": 1, "2": 2}
    assert flatten(offsets) == flat


@given(sizes=SIZES, max_count=st.integers(1, 2000))
def test_a_step_takes_as_many_as_it_may_and_no_more(sizes: list[int], max_count: int) -> None:
    start = dict.fromkeys(KEYS, 5)
    end = {key: 5 + size for key, size in zip(KEYS, sizes, strict=True)}
    reached = step(start, end, max_count)
    taken = {key: reached[key] - start[key] for key in KEYS}
    assert sum(taken.values()) == min(max_count, sum(sizes))
    assert all(0 <= taken[key] <= end[key] - start[key] for key in KEYS)
    if max_count >= len(KEYS):
        assert all(taken[key] for key in KEYS if end[key] > start[key])


def test_a_step_of_less_than_one_message_a_queue_lets_them_take_turns() -> None:
    position, end = dict.fromkeys(KEYS, 0), dict.fromkeys(KEYS, 1000)
    for _ in range(len(KEYS)):
        position = step(position, end, 2)
    assert set(position.values()) == {2}


def test_bytes_are_shared_out_by_whole_batches() -> None:
    """Batches of 10 messages and 100 bytes; one queue has much, one little, one nothing."""

    def reach(key: QueueKey, start: int, end: int, max_count: int) -> tuple[int, int]:
        count = min(max(1, max_count // 100), -(-(end - start) // 10))
        return min(end, start + 10 * count), 100 * count

    start = dict.fromkeys(KEYS[:3], 0)
    end = dict(zip(KEYS[:3], (1000, 20, 0), strict=True))
    assert within_bytes(start, end, 10**9, reach) == end
    shared = within_bytes(start, end, 1000, reach)
    assert sum(shared.values()) == 100
    assert 10 <= shared[KEYS[1]] <= 20
    assert shared[KEYS[2]] == 0
    # Not even one batch of each: the others have their turn later.
    taken = within_bytes(start, end, 100, reach)
    assert sorted(taken.values()) == [0, 0, 10]


def test_spans_leave_out_queues_that_are_empty_or_have_no_start() -> None:
    start = {KEYS[0]: 3, KEYS[1]: 4}
    end = {KEYS[0]: 9, KEYS[1]: 4, KEYS[2]: 7}
    assert list(spans(start, end)) == [(KEYS[0], 3, 9)]


@given(
    counts=st.lists(st.integers(1, 50), min_size=1, max_size=50),
    split_bytes=st.integers(1, 5000),
    data=st.data(),
)
def test_edges_are_first_offsets_of_batches_within(
    counts: list[int], split_bytes: int, data: st.DataObject
) -> None:
    rows = np.zeros(len(counts), ENTRY)
    rows["count"] = counts
    rows["first_offset"] = np.cumsum(counts) - counts
    rows["length"] = rows["count"] * 10
    total = sum(counts)
    start = data.draw(st.integers(0, counts[0] - 1))
    end = data.draw(st.integers(total - counts[-1] + 1, total))
    edges = edges_of(rows, start, end, split_bytes)
    assert edges == sorted(set(edges))
    assert all(start < edge < end and edge in rows["first_offset"] for edge in edges)
    # No part is larger than asked by more than a batch.
    for first, last in zip([0, *edges], [*edges, total], strict=True):
        assert (last - first) * 10 <= split_bytes + 2 * max(counts) * 10
