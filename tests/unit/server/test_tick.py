"""When a turn ends, and how long the loop stays awake after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.wire import http

from martlet.client import Producer, PullConsumer
from martlet.native import ELSEWHERE, FED, SERVED
from martlet.server.tick import (
    FEW,
    MAX_MORE_PASSES,
    MAX_NS,
    MAX_SERVE_NS,
    MIN_NS,
    OTHERS_ROUNDS,
    OTHERS_SERVE_NS,
    LoopTicks,
)
from martlet.testing import Broker


class World:
    """Turns on a loop whose rounds are run by hand."""

    def __init__(self) -> None:
        self.now_ns = 10**12
        self.ended = self.gave_way = 0
        self.failing = False
        self.planned: list[Callable[[], None]] = []
        self.turns = LoopTicks(self._plan, self._end, lambda: self.now_ns, self._give_way)

    def _plan(self, call: Callable[[], None]) -> None:
        self.planned.append(call)

    def _end(self) -> None:
        if self.failing:
            raise ZeroDivisionError
        self.ended += 1

    def _give_way(self) -> None:
        self.gave_way += 1

    def hear(self) -> None:
        """Hear a client, and run a round."""
        self.turns.note_input()
        self.round()

    def round(self) -> None:
        """Run the planned calls once."""
        planned, self.planned = self.planned, []
        assert len(planned) <= 1
        for call in planned:
            call()

    @property
    def asleep(self) -> bool:
        """Whether the loop would wait for bytes."""
        return not self.planned


def test_bytes_out_of_the_blue_end_a_turn_and_the_loop_sleeps() -> None:
    """Nothing says yet that more will come soon."""
    world = World()
    world.turns.note_input()
    world.turns.note_input()
    assert world.ended == 0
    world.round()
    assert world.ended == 1
    assert world.asleep


def awake_world() -> World:
    """One that has heard twice in short order."""
    world = World()
    world.hear()
    world.now_ns += MAX_NS // 2
    world.hear()
    assert world.ended == 2
    return world


def test_bytes_soon_after_it_slept_keep_it_awake_for_a_while() -> None:
    """Each turn begins the while anew."""
    world = awake_world()
    for _ in range(5):
        world.now_ns += MAX_NS - 1
        world.round()
        assert not world.asleep
        world.hear()
    assert world.ended == 7
    assert world.gave_way == 5
    world.now_ns += MAX_NS
    world.round()
    assert world.asleep
    assert world.ended == 7


def test_an_idle_loop_sleeps_and_stays_asleep() -> None:
    """Looks in vain make the window shorter until there is none."""
    world = awake_world()
    spent_ns = []
    while True:
        looked_ns = 0
        while not world.asleep:
            world.now_ns += 1000
            looked_ns += 1000
            world.round()
        spent_ns.append(looked_ns)
        if len(spent_ns) > 1 and spent_ns[-1] == spent_ns[-2] == 0:
            break
        world.now_ns += 50 * MAX_NS
        world.hear()
    assert spent_ns[0] >= MAX_NS > spent_ns[1] > MIN_NS
    assert spent_ns == sorted(spent_ns, reverse=True)
    assert len(spent_ns) < 10


@pytest.mark.parametrize(("speakers", "crowded"), [(1, False), (FEW, False), (FEW + 1, True)])
def test_a_turn_of_many_clients_is_recognized(speakers: int, crowded: bool) -> None:
    """Then the next one is served as a group."""
    world = World()
    for _ in range(speakers):
        world.turns.note_input()
    world.round()
    assert world.turns.crowded is crowded


def test_what_came_while_a_batch_was_handled_ends_with_its_turn() -> None:
    world = awake_world()
    results = [FED, FED, FED | SERVED, 0, FED, 0, SERVED]
    budgets = []

    def serve(window_ns: int, budget_ns: int) -> int:
        budgets.append(budget_ns)
        return results.pop(0)

    world.turns.serve = serve
    world.turns.note_input()
    ended = world.ended
    world.round()
    assert budgets == [MAX_SERVE_NS, 0, 0, 0, MAX_SERVE_NS, 0, MAX_SERVE_NS]
    assert world.ended == ended + 4


def test_clients_that_send_without_end_are_answered_and_leave_the_loop_its_turn() -> None:
    world = awake_world()
    calls = 0

    def serve(window_ns: int, budget_ns: int) -> int:
        nonlocal calls
        calls += 1
        world.now_ns += MAX_SERVE_NS // 10
        return FED

    world.turns.serve = serve
    world.turns.note_input()
    ended = world.ended
    world.round()
    assert calls == (world.ended - ended - 1) * (1 + MAX_MORE_PASSES) < 20
    assert not world.asleep


def test_other_input_ends_the_rounds_without_the_loop() -> None:
    world = awake_world()
    results = [FED, FED | ELSEWHERE]
    world.turns.serve = lambda window_ns, budget_ns: results.pop(0)
    world.turns.note_input()
    ended = world.ended
    world.round()
    assert world.ended == ended + 2
    assert not results


def test_the_loop_has_its_next_rounds_soon_for_what_takes_several() -> None:
    """An HTTP request had waited in each for clients that publish."""
    world = awake_world()
    budgets = []

    def serve(window_ns: int, budget_ns: int) -> int:
        budgets.append(budget_ns)
        return SERVED

    world.turns.serve = serve
    world.round()
    world.turns.others_wait()
    for _ in range(OTHERS_ROUNDS + 1):
        world.round()
    assert budgets == [MAX_SERVE_NS, *[OTHERS_SERVE_NS] * OTHERS_ROUNDS, MAX_SERVE_NS]


async def test_requests_over_http_and_calls_that_wait_have_the_loop_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = 0

    def count(_: LoopTicks) -> None:
        nonlocal waited
        waited += 1

    monkeypatch.setattr(LoopTicks, "others_wait", count)
    async with Broker(tmp_path) as broker:
        await http(broker.http_address, "/ping")
        assert waited == 1
        async with Producer(broker.tcp_address) as producer:
            await producer.publish("t", b"x")
            assert waited == 1, "a PUB needs no further round"
        async with PullConsumer("t", "g", broker.tcp_address, start="first") as consumer:
            await anext(aiter(consumer))
        assert waited > 1, "a fetch waits for its task"


def test_a_turn_that_fails_is_the_last_of_none() -> None:
    world = awake_world()
    world.failing = True
    world.turns.note_input()
    with pytest.raises(ZeroDivisionError):
        world.round()
    world.failing = False
    while not world.asleep:
        world.now_ns += MAX_NS
        world.round()
    ended = world.ended
    world.hear()
    assert world.ended == ended + 1
