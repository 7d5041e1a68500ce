"""The token bucket, and parts that share a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from martlet.rate_limit import SECOND_NS, RateLimit, TokenBucket

MILLISECOND_NS = 1_000_000


def test_a_bucket_begins_full_and_refills() -> None:
    bucket = TokenBucket(10, 5, 0)
    assert bucket.available(0) == 5
    bucket.take(5, 0)
    assert bucket.available(99 * MILLISECOND_NS) == 0
    assert bucket.due_ns() == 200 * MILLISECOND_NS - 100 * MILLISECOND_NS
    assert bucket.available(100 * MILLISECOND_NS) == 1
    assert bucket.available(60 * SECOND_NS) == 5


def test_the_default_burst_is_a_tenth_of_a_second() -> None:
    assert TokenBucket(1000, 0, 0).available(0) == 100
    assert TokenBucket(0.5, 0, 0).available(0) == 1


def test_what_was_taken_too_much_is_missing_later() -> None:
    bucket = TokenBucket(10, 1, 0)
    bucket.take(4, 0)
    assert bucket.available(300 * MILLISECOND_NS) == 0
    assert bucket.due_ns() == 400 * MILLISECOND_NS
    assert bucket.available(400 * MILLISECOND_NS) == 1


def test_a_high_rate_is_not_looked_at_for_each_token() -> None:
    bucket = TokenBucket(100_000, 0, 0)
    bucket.take(10_000, 0)
    assert bucket.due_ns() == 10 * MILLISECOND_NS


@given(
    rate=st.floats(0.001, 1e6),
    burst=st.integers(0, 1000),
    steps=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 50)), max_size=50),
)
def test_no_span_has_more_than_the_burst_and_the_rate(
    rate: float, burst: int, steps: list[tuple[int, int]]
) -> None:
    bucket = TokenBucket(rate, burst, 0)
    first = bucket.available(0)
    now_ns = taken = 0
    for pause_ns, wanted in steps:
        now_ns += pause_ns
        count = min(wanted, bucket.available(now_ns))
        bucket.take(count, now_ns)
        taken += count
        assert taken <= first + round(rate * 1000) * now_ns / (1000 * SECOND_NS) + 1e-6
        due_ns = bucket.due_ns()
        assert due_ns >= now_ns
        if due_ns > now_ns and not bucket.available(now_ns):
            assert available_at(bucket, due_ns) >= 1


def available_at(bucket: TokenBucket, now_ns: int) -> int:
    """The tokens of a copy at a later time."""
    later = TokenBucket(1, 1, 0)
    for name in TokenBucket.__slots__:
        setattr(later, name, getattr(bucket, name))
    return later.available(now_ns)


class Part:
    """Hands out messages as far as a limit allows."""

    def __init__(self, limit: RateLimit, waiting: int) -> None:
        self.limit = limit
        self.waiting = waiting
        self.count = 0

    def pump(self) -> None:
        while self.waiting:
            room = min(self.limit.room(self), self.waiting)
            if not room:
                return
            self.limit.take(room)
            self.waiting -= room
            self.count += room


class Timer:
    """The time, and when the limit wants to be called."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.due: list[int] = []

    def __call__(self) -> int:
        return self.now_ns


def test_parts_take_turns() -> None:
    timer = Timer()
    limit = RateLimit(TokenBucket(100, 1, 0), timer, timer.due.append)
    parts = [Part(limit, 1000) for _ in range(3)]
    for part in parts:
        part.pump()
    for _ in range(30):
        timer.now_ns = timer.due.pop()
        assert not timer.due
        limit.ring()
        parts[0].pump()  # What one part does in between is no advantage.
    assert sum(part.count for part in parts) == 31
    assert max(part.count for part in parts) - min(part.count for part in parts) <= 1


def test_nothing_is_to_be_called_where_nothing_waits() -> None:
    timer = Timer()
    limit = RateLimit(TokenBucket(100, 2, 0), timer, timer.due.append)
    part = Part(limit, 2)
    part.pump()
    assert not timer.due
    part.waiting = 1
    part.pump()
    timer.now_ns = timer.due.pop()
    limit.ring()
    assert part.count == 3
    assert not timer.due
