"""Stragglers against a plain dict, with a heap that is cleaned only when it must be."""

from dataclasses import dataclass
from random import Random

import pytest

from martlet.broker.queue.pending import PendingMessages


@dataclass
class Plain:
    """One straggler, the simple way."""

    attempts: int
    due_ns: int
    owner: str | None = None
    ready: bool = False


@pytest.mark.parametrize("seed", range(12))
def test_they_are_what_a_dict_would_be(seed: int) -> None:
    random = Random(seed)
    stragglers: PendingMessages[str] = PendingMessages()
    plain: dict[int, Plain] = {}
    changed: set[int] = set()
    now_ns = 0
    for _ in range(2000):
        offset = random.randrange(12)
        act = random.randrange(7)
        known = plain.get(offset)
        if act <= 1 and (known is None or known.owner is not None):
            due_ns = now_ns + random.choice([0, 0, 3, 10])
            stragglers.wait(offset, 5, due_ns, now_ns)
            plain[offset] = Plain(5, due_ns, None, due_ns <= now_ns)
            changed.add(offset)
        elif act <= 3 and (known is None or known.owner is not None or known.ready):
            deadline_ns = now_ns + random.choice([1, 3, 3, 10])
            stragglers.hold(offset, 6, "me", now_ns, deadline_ns)
            plain[offset] = Plain(6, deadline_ns, "me")
            changed.add(offset)
        elif act == 4 and known is not None:
            stragglers.remove(offset)
            del plain[offset]
            changed.add(offset)
        elif act == 5:
            now_ns += random.randrange(4)
            overdue = stragglers.expire(now_ns)
            wanted = {o for o, p in plain.items() if p.owner is not None and p.due_ns <= now_ns}
            assert len(overdue) == len(wanted), "each expires once"
            assert {o for o, _ in overdue} == wanted
            for o in wanted:
                stragglers.wait(o, 7, now_ns, now_ns)
                plain[o] = Plain(7, now_ns, None, True)
                changed.add(o)
            for p in plain.values():
                p.ready |= p.owner is None and p.due_ns <= now_ns
        elif act == 6:
            assert stragglers.changed | stragglers.removed == changed
            assert stragglers.changed <= set(plain)
            assert not stragglers.removed & set(plain)
            stragglers.changed.clear()
            stragglers.removed.clear()
            changed.clear()
        check(stragglers, plain, now_ns)


def check(stragglers: PendingMessages[str], plain: dict[int, Plain], now_ns: int) -> None:
    assert set(stragglers.by_offset) == set(plain)
    assert len(stragglers) == len(plain)
    for offset, wanted in plain.items():
        straggler = stragglers.by_offset[offset]
        assert (straggler.attempts, straggler.owner) == (wanted.attempts, wanted.owner)
        assert (stragglers.get(offset, "me") is straggler) == (wanted.owner == "me")
    ready = {offset for offset, p in plain.items() if p.ready}
    in_flight = {offset for offset, p in plain.items() if p.owner is not None}
    assert stragglers.ready_count == len(ready)
    assert stragglers.in_flight_count == len(in_flight)
    assert stragglers.waiting_count == len(plain) - len(ready) - len(in_flight)
    assert {offset for offset, _ in stragglers.owned_by("me")} == in_flight
    first = stragglers.next_ready()
    assert (first in ready) if ready else (first is None)
    assert list(stragglers.rising(4)) == sorted(offset for offset in plain if offset >= 4)
    times = [p.due_ns for p in plain.values() if not p.ready]
    assert stragglers.earliest_ns() == min(times, default=None)


def test_they_are_put_in_order_once_though_some_are_finished_meanwhile() -> None:
    stragglers: PendingMessages[str] = PendingMessages()
    for offset in (5, 3, 9):
        stragglers.wait(offset, 1, 0, 0)
    assert list(stragglers.rising(0)) == [3, 5, 9]
    order = stragglers._rising
    stragglers.remove(5)
    stragglers.hold(9, 2, "me", 0, 1)
    assert list(stragglers.rising(0)) == [3, 9]
    assert stragglers._rising is order
    stragglers.wait(4, 1, 0, 0)
    assert list(stragglers.rising(4)) == [4, 9]


def test_ready_ones_come_in_the_order_in_which_they_became_so() -> None:
    stragglers: PendingMessages[str] = PendingMessages()
    for offset in (5, 3, 9):
        stragglers.wait(offset, 1, 0, 0)
    stragglers.remove(3)
    stragglers.wait(3, 1, 0, 0)
    order = []
    while (first := stragglers.next_ready()) is not None:
        order.append(first)
        stragglers.hold(first, 2, "me", 0, 10)
    assert sorted(order) == [3, 5, 9]
    assert order.index(5) < order.index(9)


def test_the_heap_does_not_grow_with_what_was_touched() -> None:
    stragglers: PendingMessages[str] = PendingMessages()
    stragglers.wait(1, 1, 1 << 40, 0)
    for time_ns in range(10_000):
        stragglers.hold(2, 1, "me", 0, (1 << 30) - time_ns)
    assert len(stragglers._times) < 100
    assert stragglers.earliest_ns() == (1 << 30) - 9_999


def test_the_line_does_not_grow_with_what_is_removed_from_its_middle() -> None:
    stragglers: PendingMessages[str] = PendingMessages()
    stragglers.wait(0, 1, 0, 0)
    for offset in range(1, 10_000):
        stragglers.wait(offset, 1, 0, 0)
        stragglers.remove(offset)
    assert len(stragglers.ready) < 100
    stragglers.wait(5, 1, 0, 0)
    assert stragglers.take_ready() == [0, 5]
