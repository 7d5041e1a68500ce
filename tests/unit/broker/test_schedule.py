"""Alarms, and how many of them are kept."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
from tests.unit.broker.core import SECOND_NS, Core

from martlet.broker.schedule import Schedule

HOUR_NS = 3600 * SECOND_NS


def test_an_alarm_that_goes_between_near_and_far_leaves_nothing_behind() -> None:
    schedule = Schedule()
    called = 0

    def call(now_ns: int) -> int:
        nonlocal called
        called += 1
        return HOUR_NS

    alarm = schedule.alarm(call)
    alarm.at(HOUR_NS)
    for now_ns in range(1, 5001):
        alarm.at(now_ns)
        schedule.run(now_ns)
    assert called == 5000
    assert len(schedule._heap) < 200
    assert schedule.next_ns() == HOUR_NS
    schedule.run(HOUR_NS)
    assert called == 5001


def test_many_alarms_are_called_once_each_and_in_order_though_the_heap_was_cleared() -> None:
    schedule = Schedule()
    called: list[int] = []

    def alarm_of(number: int) -> None:
        alarm = schedule.alarm(lambda now_ns: called.append(number))
        for earlier in range(5):
            alarm.at(10_000 - 1000 * earlier + number)
        if number % 3 == 0:
            alarm.cancel()

    for number in range(500):
        alarm_of(number)
    while (time_ns := schedule.next_ns()) is not None:
        schedule.run(time_ns)
    assert called == [number for number in range(500) if number % 3]
    assert schedule._heap == []
    assert schedule._outdated_count == 0


def test_an_alarm_that_fails_is_called_again_and_keeps_no_other_from_its_time() -> None:
    schedule = Schedule()
    called: list[int] = []

    def fail(now_ns: int) -> None:
        called.append(now_ns)
        if len(called) == 1:
            raise ZeroDivisionError

    schedule.alarm(fail).at(5)
    schedule.alarm(called.append).at(6)
    with pytest.raises(ZeroDivisionError):
        schedule.run(10)
    assert schedule.next_ns() == 6
    schedule.run(11)
    again_ns = schedule.next_ns()
    assert again_ns is not None
    schedule.run(again_ns)
    assert called == [10, 11, again_ns]


def test_deleted_channels_are_forgotten_though_their_messages_were_due_in_an_hour() -> None:
    core = Core(segment_bytes=1 << 20)
    core.channel("t", "stays")
    seen = []
    for number in range(500):
        channel = core.channel("t", f"c{number}")
        core.publish("t", b"later", delay_ns=HOUR_NS)
        seen.append(weakref.ref(channel))
        core.topic().delete_channel(channel.name)
        del channel
    core.broker.write_journal()
    gc.collect()
    assert sum(channel() is not None for channel in seen) < 200


def _note(called: list[int], number: int, now_ns: int) -> None:
    called.append(number)


def test_of_alarms_that_are_due_together_those_of_a_lower_rank_are_called_first() -> None:
    schedule = Schedule()
    called: list[int] = []
    for number, rank in enumerate([0, 4, -5, 0]):
        schedule.alarm(partial(_note, called, number), rank).at(number)
    schedule.alarm(called.append, -9).at(100)
    schedule.run(10)
    assert called == [2, 0, 3, 1]


def test_an_alarm_that_another_one_due_at_its_time_cancels_is_not_called() -> None:
    schedule = Schedule()
    called: list[int] = []
    other = schedule.alarm(called.append, 1)
    schedule.alarm(lambda now_ns: other.cancel()).at(1)
    other.at(1)
    schedule.run(1)
    assert not called
    other.at(2)
    schedule.run(2)
    assert called == [2]


def test_an_alarm_that_fails_leaves_those_due_with_it_at_their_times() -> None:
    schedule = Schedule()
    called: list[int] = []

    def fail(now_ns: int) -> None:
        raise ZeroDivisionError

    schedule.alarm(fail, -1).at(5)
    for time_ns in (3, 4):
        schedule.alarm(called.append).at(time_ns)
    with pytest.raises(ZeroDivisionError):
        schedule.run(10)
    assert (called, schedule.next_ns()) == ([], 3)
    schedule.run(10)
    assert called == [10, 10]
