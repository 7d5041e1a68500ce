"""Which of several hosts is next, and how long each takes."""

from __future__ import annotations

import logging
from collections import Counter
from random import Random

import pytest

from martlet.cli.nsq_tools.hosts import FIRST_DELAY_S, MAX_DELAY_S, HostPool, Timings


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_round_robin_takes_each_in_its_turn_whether_it_works_or_not() -> None:
    pool = HostPool(["a", "b", "c", "a"], "round-robin")
    pool.failed("b")
    assert [pool.pick() for _ in range(7)] == [*"abcabca"]
    assert pool.order() == ["b", "c", "a"]


def test_one_that_failed_is_left_alone_for_longer_each_time() -> None:
    clock = Clock()
    pool = HostPool(["a", "b", "c"], "hostpool", clock)
    delay_s = FIRST_DELAY_S
    for _ in range(8):
        pool.failed("b")
        pool.failed("b")  # it was asked twice at once
        clock.now_s += delay_s - 1
        assert {pool.pick() for _ in range(6)} == {"a", "c"}
        assert len(pool.order()) == 2
        clock.now_s += 1
        assert {pool.pick() for _ in range(6)} == {"a", "b", "c"}
        delay_s = min(2 * delay_s, MAX_DELAY_S)
    pool.succeeded("b", 0.1)
    pool.failed("b")
    clock.now_s += FIRST_DELAY_S
    assert {pool.pick() for _ in range(6)} == {"a", "b", "c"}


def test_all_hosts_are_tried_if_none_works() -> None:
    pool = HostPool(["a", "b"], "hostpool", Clock())
    pool.failed("a")
    pool.failed("b")
    assert [pool.pick() for _ in range(4)] == [*"abab"]


def test_epsilon_greedy_takes_the_quick_ones_more_often_and_forgets_none() -> None:
    pool = HostPool(["quick", "slow", "dead"], "epsilon-greedy", Clock(), Random(1))
    for _ in range(50):
        pool.succeeded("quick", 0.01)
        pool.succeeded("slow", 0.1)
    pool.failed("dead")
    picked = Counter(pool.pick() for _ in range(1000))
    assert picked["dead"] == 0
    assert 700 < picked["quick"] < 960
    assert picked["slow"] > 40


def test_a_status_line_after_every_n_requests(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    timings = Timings(10, ("a", "b"))
    for number in range(20):
        timings.note(number / 1000)
        timings.note_host("a", 0.001)
    timings.note(0.002, 25)
    assert [record.getMessage() for record in caplog.records] == [
        "[aggregate]: finished 10 requests - 99th: 9.00ms - 95th: 9.00ms - avg: 4.50ms",
        "[a]: finished 10 requests - 99th: 1.00ms - 95th: 1.00ms - avg: 1.00ms",
        "[aggregate]: finished 10 requests - 99th: 19.00ms - 95th: 19.00ms - avg: 14.50ms",
        "[a]: finished 10 requests - 99th: 1.00ms - 95th: 1.00ms - avg: 1.00ms",
        *["[aggregate]: finished 10 requests - 99th: 2.00ms - 95th: 2.00ms - avg: 2.00ms"] * 2,
    ]


def test_one_host_is_logged_once_and_0_never(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    timings = Timings(1, ("a",))
    timings.note_host("a", 0.001)
    assert caplog.records == []
    Timings(0, ("a",)).note(0.001, 1000)
    assert caplog.records == []
