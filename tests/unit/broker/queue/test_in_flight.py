"""The window against a plain dict of who holds what."""

from random import Random

import numpy as np
import pytest

from martlet.broker.queue import in_flight as window_module
from martlet.broker.queue.in_flight import InFlightWindow


class Plain:
    """A window, the simple way."""

    def __init__(self, start: int) -> None:
        self.next = start
        self.held: dict[int, int] = {}

    @property
    def floor(self) -> int:
        return min(self.held, default=self.next)


@pytest.mark.parametrize("seed", range(12))
def test_the_window_works_like_a_dict(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "FIRST_CAPACITY", 4)
    monkeypatch.setattr(window_module, "COMFORTABLE_SPAN", 32)
    monkeypatch.setattr(window_module, "_SCAN", 5)
    random = Random(seed)
    start = random.choice([0, 1000, 1 << 40])
    window, plain = InFlightWindow(start), Plain(start)
    for _ in range(1500):
        act = random.randrange(7)
        if act <= 1:
            holder, end = random.randrange(4), window.next + random.randrange(1, 30)
            window.grant(holder, end)
            if holder:
                plain.held |= dict.fromkeys(range(plain.next, end), holder)
            plain.next = end
        elif act == 2 and plain.held:
            offset = random.choice(list(plain.held))
            assert window.holds(plain.held[offset], offset)
            assert not window.holds(plain.held[offset] + 1, offset)
            window.release(offset)
            del plain.held[offset]
        elif act <= 4:
            holder = random.randrange(1, 4)
            mine = [offset for offset, other in plain.held.items() if other == holder]
            some = sorted(random.sample(mine, random.randint(0, len(mine))))
            if random.randrange(4) == 0:
                some = sorted({*some, window.next + random.randrange(-40, 3)})
            if not some:
                continue
            is_complete = set(some) <= set(mine)
            assert window.release_run(holder, np.array(some, np.int64)) == is_complete
            if is_complete:
                for offset in some:
                    del plain.held[offset]
        elif act == 5:
            holder = random.randrange(1, 4)
            first, end = sorted(window.next - random.randrange(60) for _ in range(2))
            released = window.release_range(holder, first, end).tolist()
            expected = [o for o, h in plain.held.items() if h == holder and first <= o < end]
            assert released == sorted(expected)
            for offset in released:
                del plain.held[offset]
        else:
            window.advance()
        assert (window.floor, window.next) == (plain.floor, plain.next)
        held = {o for first, end in window.held_ranges().tolist() for o in range(first, end)}
        assert held == set(plain.held)
        assert dict(window.held(window.floor, window.next)) == plain.held


def test_offsets_outside_are_in_flight_to_no_consumer() -> None:
    window = InFlightWindow(10)
    window.grant(7, 20)
    for offset in (0, 9, 20, 21, 1 << 63, (1 << 64) - 1):
        assert not window.holds(7, offset)
    for run in ([9, 10], [19, 20], [-5, 12], [15, (1 << 63) - 1]):
        assert not window.release_run(7, np.array(run, np.int64))
    assert window.held_ranges().tolist() == [[10, 20]]


def test_skipping_far_costs_no_memory() -> None:
    window = InFlightWindow(0)
    window.grant(0, 1 << 50)
    assert (window.floor, window.next) == (1 << 50, 1 << 50)
    window.grant(3, (1 << 50) + 5)
    assert window.holds(3, (1 << 50) + 4)


def test_few_held_among_many_are_crowded_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "COMFORTABLE_SPAN", 64)
    window = InFlightWindow(0)
    window.grant(1, 1)
    window.grant(2, 200)
    assert window.crowd() == 0, "all are held: it just grows"
    assert window.release_run(2, np.arange(2, 200, dtype=np.int64))
    crowded = window.crowd()
    assert crowded > 0
    assert window.held(0, crowded) == [(0, 1), (1, 2)]
