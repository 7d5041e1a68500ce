"""A wall clock that is set ahead or back: dates follow it, timeouts and leases do not."""

from __future__ import annotations

import pytest
from tests.unit.broker.core import SECOND_NS, Core

from martlet.broker.retention.history import Retention
from martlet.testing import SimulatedClock

HOUR_NS = 3600 * SECOND_NS
YEARS_NS = 6 * 365 * 24 * HOUR_NS
STEPS = [HOUR_NS, YEARS_NS, -HOUR_NS, -YEARS_NS]


def step(core: Core, step_ns: int) -> None:
    core.clock.set_wall(step_ns)
    core.broker.follow_wall()
    core.broker.run()


@pytest.mark.parametrize("step_ns", STEPS)
def test_a_step_times_nothing_out_and_makes_no_dead_letter(core: Core, step_ns: int) -> None:
    client = core.client("t")
    core.configure(max_attempts=1)
    core.publish("t", *(b"%d" % number for number in range(10)))
    client.ready(10)
    client.touch(9)
    step(core, step_ns)
    core.wait(59 * SECOND_NS)
    client.finish()
    assert client.channel.timeout_count == client.channel.dead_letter_count == 0
    assert client.channel.depth == client.channel.in_flight_count == 0


@pytest.mark.parametrize("step_ns", [YEARS_NS, -YEARS_NS])
def test_the_delay_of_a_requeued_message_goes_on_after_a_start_with_another_clock(
    step_ns: int,
) -> None:
    core = Core()
    client = core.client("t").ready(1)
    core.publish("t", b"one")
    client.requeue(0, 10 * SECOND_NS)
    core.broker.write_journal()
    core.clock = SimulatedClock(core.clock.now_ns + step_ns)
    core.kill()
    client = core.client("t").ready(1)
    core.wait(10 * SECOND_NS)
    assert len(client.got) == 1


@pytest.mark.parametrize("step_ns", [YEARS_NS, -YEARS_NS])
def test_the_delay_of_a_requeued_message_is_journaled_as_the_wall_clock_shows_it(
    step_ns: int,
) -> None:
    core = Core()
    client = core.client("t").ready(1)
    step(core, step_ns)
    core.publish("t", b"one")
    client.requeue(0, 10 * SECOND_NS)
    core.broker.write_journal()
    core.clock = SimulatedClock(core.clock.wall())
    core.kill()
    client = core.client("t").ready(1)
    core.wait(9 * SECOND_NS)
    assert not client.got
    core.wait(SECOND_NS)
    assert len(client.got) == 1


def defer(core: Core, how: str, at_ns: int) -> None:
    if how == "deferred":
        core.broker.topic("t").stage([b"late"], at_ns)
        core.broker.commit()
    else:
        core.broker.delays.publish(core.broker.topic("t"), [b"late"], at_ns)


def test_a_deferred_message_that_was_due_stays_due_over_starts_with_a_clock_behind() -> None:
    """Its date has passed, though the stored times of its broker are years ahead."""
    core = Core()
    core.clock = SimulatedClock(core.clock.now_ns + YEARS_NS)
    core.kill()
    core.publish("t", b"from the future")
    core.clock = SimulatedClock(core.clock.now_ns - YEARS_NS)
    core.kill()
    core.channel("t")
    defer(core, "deferred", core.clock.wall() + SECOND_NS)
    core.wait(2 * SECOND_NS)
    for _ in range(3):
        core.kill(journaled=True)
    client = core.client("t").ready(9)
    assert len(client.got) == 2


@pytest.mark.parametrize("how", ["deferred", "delayed"])
def test_what_is_due_at_a_date_follows_the_wall_clock(core: Core, how: str) -> None:
    client = core.client("t").ready(9)
    defer(core, how, core.clock.wall() + 2 * HOUR_NS)
    step(core, HOUR_NS)
    core.wait(HOUR_NS // 2)
    assert not client.got
    step(core, -HOUR_NS)
    core.wait(HOUR_NS)
    assert not client.got, "the clock was set back, and half an hour is left"
    step(core, HOUR_NS // 2)
    core.wait(0)
    assert len(client.got) == 1
    client.finish()
    defer(core, how, core.clock.wall() + HOUR_NS)
    core.wait(HOUR_NS - SECOND_NS)
    assert len(client.got) == 1, "it was deferred after the steps"
    core.wait(SECOND_NS)
    assert len(client.got) == 2


def test_a_queue_stays_locked_and_members_keep_their_queues(core: Core) -> None:
    client = core.client("t").ready(1)
    core.configure(order="queue", lock_ms=60_000)
    other = core.client("t").ready(1)
    core.publish("t", b"1", b"2")
    step(core, HOUR_NS)
    client.finish()
    assert [len(client.got), len(other.got)] == [2, 0]


def test_stored_times_go_on_with_the_time_while_the_wall_clock_is_behind() -> None:
    """So retention keeps nothing for ever that was stored with a clock that was ahead."""
    core = Core(retention=Retention(24 * HOUR_NS))
    core.clock = SimulatedClock(core.clock.now_ns + YEARS_NS)
    core.kill()
    ahead_count = len(core.fill("t", 2))
    core.clock = SimulatedClock(core.clock.now_ns - YEARS_NS)
    core.kill()
    core.fill("t", 2)
    core.channel("t")
    queue = core.topic().queue
    core.broker.empty_channel(core.topic(), "c")
    times = [row.stored_at_ns for row in queue.index.rows(0, queue.index.end_row)]
    assert times == sorted(times)
    core.clock.advance(23 * HOUR_NS)
    core.fill("u", 1)
    core.checkpoint()
    assert queue.first_stored_offset == 0
    core.clock.advance(2 * HOUR_NS)
    core.fill("u", 1)
    core.checkpoint()
    assert queue.first_stored_offset >= ahead_count
