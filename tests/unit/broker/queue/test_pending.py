"""Pending messages against a plain dict, with a heap that is cleaned only when it must be."""

from dataclasses import dataclass
from random import Random

import pytest

from martlet.broker.queue.pending import PendingMessages


@dataclass
class Plain:
    """One pending message, the simple way."""

    attempts: int
    due_ns: int
    owner: str | None = None
    ready: bool = False


@pytest.mark.parametrize("seed", range(12))
def test_pending_messages_work_like_a_dict(seed: int) -> None:
    random = Random(seed)
    pending: PendingMessages[str] = PendingMessages()
    plain: dict[int, Plain] = {}
    changed: set[int] = set()
    now_ns = 0
    for _ in range(2000):
        offset = random.randrange(12)
        act = random.randrange(7)
        entry = plain.get(offset)
        if act <= 1 and (entry is None or entry.owner is not None):
            due_ns = now_ns + random.choice([0, 0, 3, 10])
            pending.wait(offset, 5, due_ns, now_ns)
            plain[offset] = Plain(5, due_ns, None, due_ns <= now_ns)
            changed.add(offset)
        elif act <= 3 and (entry is None or entry.owner is not None or entry.ready):
            deadline_ns = now_ns + random.choice([1, 3, 3, 10])
            pending.hold(offset, 6, "me", now_ns, deadline_ns)
            plain[offset] = Plain(6, deadline_ns, "me")
            changed.add(offset)
        elif act == 4 and entry is not None:
            pending.remove(offset)
            del plain[offset]
            changed.add(offset)
        elif act == 5:
            now_ns += random.randrange(4)
            overdue = pending.expire(now_ns)
            expected = {o for o, p in plain.items() if p.owner is not None and p.due_ns <= now_ns}
            assert len(overdue) == len(expected), "each expires once"
            assert {o for o, _ in overdue} == expected
            for o in expected:
                pending.wait(o, 7, now_ns, now_ns)
                plain[o] = Plain(7, now_ns, None, True)
                changed.add(o)
            for p in plain.values():
                p.ready |= p.owner is None and p.due_ns <= now_ns
        elif act == 6:
            assert pending.changed | pending.removed == changed
            assert pending.changed <= set(plain)
            assert not pending.removed & set(plain)
            pending.changed.clear()
            pending.removed.clear()
            changed.clear()
        check(pending, plain, now_ns)


def check(pending: PendingMessages[str], plain: dict[int, Plain], now_ns: int) -> None:
    assert set(pending.by_offset) == set(plain)
    assert len(pending) == len(plain)
    for offset, entry in plain.items():
        message = pending.by_offset[offset]
        assert (message.attempts, message.owner) == (entry.attempts, entry.owner)
        assert (pending.get(offset, "me") is message) == (entry.owner == "me")
    ready = {offset for offset, p in plain.items() if p.ready}
    in_flight = {offset for offset, p in plain.items() if p.owner is not None}
    assert pending.ready_count == len(ready)
    assert pending.in_flight_count == len(in_flight)
    assert pending.waiting_count == len(plain) - len(ready) - len(in_flight)
    assert {offset for offset, _ in pending.owned_by("me")} == in_flight
    first = pending.next_ready()
    assert (first in ready) if ready else (first is None)
    assert list(pending.rising(4)) == sorted(offset for offset in plain if offset >= 4)
    times = [p.due_ns for p in plain.values() if not p.ready]
    assert pending.earliest_ns() == min(times, default=None)


def test_pending_messages_are_ordered_once_though_some_are_finished_meanwhile() -> None:
    pending: PendingMessages[str] = PendingMessages()
    for offset in (5, 3, 9):
        pending.wait(offset, 1, 0, 0)
    assert list(pending.rising(0)) == [3, 5, 9]
    order = pending._rising
    pending.remove(5)
    pending.hold(9, 2, "me", 0, 1)
    assert list(pending.rising(0)) == [3, 9]
    assert pending._rising is order
    pending.wait(4, 1, 0, 0)
    assert list(pending.rising(4)) == [4, 9]


def test_ready_ones_come_in_the_order_in_which_they_became_so() -> None:
    pending: PendingMessages[str] = PendingMessages()
    for offset in (5, 3, 9):
        pending.wait(offset, 1, 0, 0)
    pending.remove(3)
    pending.wait(3, 1, 0, 0)
    order = []
    while (first := pending.next_ready()) is not None:
        order.append(first)
        pending.hold(first, 2, "me", 0, 10)
    assert sorted(order) == [3, 5, 9]
    assert order.index(5) < order.index(9)


def test_the_heap_does_not_grow_by_touches() -> None:
    pending: PendingMessages[str] = PendingMessages()
    pending.wait(1, 1, 1 << 40, 0)
    for time_ns in range(10_000):
        pending.hold(2, 1, "me", 0, (1 << 30) - time_ns)
    assert len(pending._times) < 100
    assert pending.earliest_ns() == (1 << 30) - 9_999


def test_the_ready_queue_does_not_grow_by_removals_from_its_middle() -> None:
    pending: PendingMessages[str] = PendingMessages()
    pending.wait(0, 1, 0, 0)
    for offset in range(1, 10_000):
        pending.wait(offset, 1, 0, 0)
        pending.remove(offset)
    assert len(pending.ready) < 100
    pending.wait(5, 1, 0, 0)
    assert pending.take_ready() == [0, 5]
