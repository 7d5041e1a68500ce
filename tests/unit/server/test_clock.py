"""The running time and the date of a process."""

from __future__ import annotations

import time

import pytest

from martlet.server.clock import BEAT_NS, PAUSE_NS, Clock, elapsed_ns

SECOND_NS = 10**9
HOUR_NS = 3600 * SECOND_NS


class System:
    """The system's clocks, which stand still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monotonic_ns = 5 * HOUR_NS
        self.wall_ns = 1_700_000_000 * SECOND_NS
        self.suspended_ns = 0
        monkeypatch.setattr(time, "clock_gettime_ns", self.read)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.monotonic_ns)
        monkeypatch.setattr(time, "time_ns", lambda: self.wall_ns)

    def read(self, clock: int) -> int:
        return self.monotonic_ns + self.suspended_ns * (clock == time.CLOCK_BOOTTIME)

    def suspend(self, duration_ns: int) -> None:
        self.suspended_ns += duration_ns
        self.wall_ns += duration_ns

    def pass_time(self, duration_ns: int) -> None:
        self.monotonic_ns += duration_ns
        self.wall_ns += duration_ns


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    return System(monkeypatch)


def run(system: System, clock: Clock, duration_ns: int) -> None:
    for _ in range(duration_ns // BEAT_NS):
        system.pass_time(BEAT_NS)
        assert clock.beat() is None


def test_both_go_on_from_the_wall_clock_while_the_process_runs(system: System) -> None:
    clock = Clock()
    began_ns = clock()
    assert began_ns == clock.wall() == system.wall_ns
    run(system, clock, 10 * SECOND_NS)
    assert clock() == clock.wall() == began_ns + 10 * SECOND_NS
    assert clock.pauses == 0


@pytest.mark.parametrize("step_ns", [HOUR_NS, -HOUR_NS])
def test_a_step_of_the_wall_clock_moves_the_date_alone(system: System, step_ns: int) -> None:
    clock = Clock()
    clock.beat()
    before_ns = clock()
    system.wall_ns += step_ns
    assert clock.wall() == before_ns, "it is followed with the next beat"
    assert clock.beat() == step_ns
    assert clock.wall() == system.wall_ns
    assert clock() == before_ns
    run(system, clock, SECOND_NS)


def test_small_steps_are_not_followed(system: System) -> None:
    clock = Clock()
    clock.beat()
    system.wall_ns -= SECOND_NS
    assert clock.beat() is None
    assert clock.wall() == system.wall_ns + SECOND_NS


def test_a_pause_of_the_process_counts_as_a_second(system: System) -> None:
    clock = Clock()
    run(system, clock, SECOND_NS)
    system.pass_time(PAUSE_NS)
    before_ns = clock()
    assert clock.pauses == 0
    system.pass_time(HOUR_NS)
    assert clock() == clock() == before_ns
    assert clock.pauses == 1
    assert clock.wall() == system.wall_ns
    assert clock.beat() == 0, "what is due at a date has to be looked at"
    run(system, clock, SECOND_NS)
    assert clock() == before_ns + SECOND_NS


def test_the_running_time_never_goes_back(system: System) -> None:
    clock = Clock()
    clock.beat()
    newest_ns = clock()
    for duration_ns in (0, 1, BEAT_NS, PAUSE_NS, PAUSE_NS + 1, 1, 5 * HOUR_NS, 3, PAUSE_NS) * 3:
        system.pass_time(duration_ns)
        assert clock() >= newest_ns
        newest_ns = clock()
        if duration_ns % 2:
            clock.beat()
            assert clock() >= newest_ns


def test_a_suspended_machine_moves_the_date_alone(system: System) -> None:
    """The monotonic clock stands still meanwhile."""
    clock = Clock()
    clock.beat()
    before_ns = clock()
    system.suspend(HOUR_NS)
    assert clock.beat() == HOUR_NS
    assert (clock(), clock.wall()) == (before_ns, system.wall_ns)


def test_what_others_grant_goes_by_a_time_that_counts_pauses_and_suspension(
    system: System,
) -> None:
    before_ns = elapsed_ns()
    system.pass_time(HOUR_NS)
    system.suspend(HOUR_NS)
    assert elapsed_ns() == before_ns + 2 * HOUR_NS
    system.wall_ns -= 5 * HOUR_NS
    assert elapsed_ns() == before_ns + 2 * HOUR_NS


def test_without_beats_nothing_counts_as_a_pause(system: System) -> None:
    clock = Clock()
    system.pass_time(HOUR_NS)
    assert clock() == system.wall_ns


def test_an_interruption_between_the_readings_does_not_set_the_date_back(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    interruptions_ns = iter([8_000_000, 0, 3_000_000])

    def read_then_interrupted() -> int:
        wall_ns = system.wall_ns
        system.pass_time(next(interruptions_ns, 0))
        return wall_ns

    monkeypatch.setattr(time, "time_ns", read_then_interrupted)
    assert Clock().wall() == system.wall_ns
