"""How often brokers are asked, and what comes of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.unit.console.test_cluster import A, node

from martlet.client.admin import AdminError, Answers, NodeStats
from martlet.console import collector as module
from martlet.console.collector import Collector

INTERVAL_S = 0.05
HOUR_S = 3600.0
log = logging.getLogger(__name__)


class Brokers:
    """Answers polls: each time with one message more."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.polls = 0
        self.asked = asyncio.Event()
        self.delay_s = delay_s
        self.error: Exception | None = None

    async def look(self, limit_s: float) -> Answers[NodeStats]:
        self.polls += 1
        self.asked.set()
        await asyncio.sleep(self.delay_s)
        if self.error:
            raise self.error
        return Answers({A: node(self.polls)})


@asynccontextmanager
async def running(
    look: Callable[[float], Awaitable[Answers[NodeStats]]],
    interval_s: float = INTERVAL_S,
    max_limit_s: float = 5.0,
) -> AsyncIterator[Collector]:
    collector = Collector(look, interval_s, log, max_limit_s)
    task = asyncio.create_task(collector.run())
    try:
        yield collector
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_all_tabs_share_a_look() -> None:
    brokers = Brokers()
    async with running(brokers.look) as collector:
        view = await collector.fresh()
        for _ in range(3):
            before = brokers.polls
            views = await asyncio.gather(*(collector.following(view) for _ in range(50)))
            assert {id(view) for view in views} == {id(collector.view)}
            assert brokers.polls == before + 1
            view = views[0]


async def test_without_a_tab_brokers_are_asked_at_the_idle_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "IDLE_INTERVAL_S", 0.4)
    brokers = Brokers()
    async with running(brokers.look) as collector:
        view = await collector.fresh()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with collector._changed:  # not `following`, which a tab calls
            await collector._changed.wait_for(lambda: collector.view is not view)
        assert loop.time() - began_s >= 0.35
        assert brokers.polls == 2


async def test_where_answers_are_slow_they_are_asked_less() -> None:
    brokers = Brokers(delay_s=0.05)
    async with running(brokers.look, interval_s=0.01) as collector:
        view = await collector.fresh()
        began_s = asyncio.get_running_loop().time()
        await collector.following(view)
        # A tenth of the time is the brokers': 0.05 s of it, and 0.45 s for other work.
        assert asyncio.get_running_loop().time() - began_s >= 0.45


async def test_a_broker_that_hangs_does_not_delay_the_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LIMIT_S", 0.2)
    monkeypatch.setattr(module, "_MAX_SHARE", 0.001)
    limits: list[float] = []

    async def look(limit_s: float) -> Answers[NodeStats]:
        limits.append(limit_s)
        if len(limits) > 2:
            await asyncio.sleep(limit_s)
            return Answers({A: node(1)}, {"http://b": AdminError("http://b", "no answer in time")})
        return Answers({A: node(1)})

    async with running(look, max_limit_s=0.4) as collector:
        view = await collector.fresh()
        for _ in range(4):  # A thousand times as long as polls take would be minutes.
            view = await collector.following(view)
        assert [broker.url for broker in view.missing] == ["http://b"]
        assert limits[:5] == [0.4, 0.2, 0.2, 0.4, 0.4]


async def test_after_a_change_the_look_began_later() -> None:
    brokers = Brokers(delay_s=0.05)
    async with running(brokers.look, interval_s=60.0) as collector:
        await brokers.asked.wait()
        await collector.poll_now()  # while the first poll is under way
        assert brokers.polls == 2
        await collector.poll_now()  # in its pause of a minute
        assert brokers.polls == 3


async def test_after_a_change_the_next_page_waits_for_a_look_that_all_tabs_share() -> None:
    brokers = Brokers()
    async with running(brokers.look, interval_s=60.0) as collector:
        view = await collector.fresh()
        collector.poll_later(is_in_place=True)
        assert (collector.topology, brokers.polls) == (view, 1)
        collector.poll_later(is_in_place=False)
        assert (collector.topology, brokers.polls) == (None, 1)
        views = await asyncio.gather(*(collector.fresh() for _ in range(3)))
        assert collector.topology in views
        assert {id(view) for view in views} == {id(collector.view)}
        assert brokers.polls == 2


async def test_a_view_is_fresh_for_an_interval() -> None:
    brokers = Brokers()
    async with running(brokers.look, interval_s=60.0) as collector:
        view = await collector.fresh()
        assert await collector.fresh() is view
        assert brokers.polls == 1


async def test_all_brokers_are_away_and_come_back() -> None:
    brokers = Brokers()
    async with running(brokers.look) as collector:
        view = await collector.fresh()
        assert view.topics
        brokers.error = AdminError(A, "refused", errors={A: AdminError(A, "refused")})
        view = await collector.following(view)
        assert (view.topics, view.brokers[A].error, view.error) == ({}, "refused", f"{A}: refused")
        brokers.error = None
        view = await collector.following(view)
        assert (view.error, view.missing) == ("", [])
        assert view.topics["orders"].total_depth == brokers.polls + 1


async def test_a_fault_is_shown_and_logged_and_does_not_end_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = Brokers()
    brokers.error = KeyError("a fault")
    async with running(brokers.look) as collector:
        view = await collector.fresh()
        assert "a fault of this page: KeyError('a fault')" in view.error
        assert "the brokers' answers could not be used" in caplog.text
        brokers.error = None
        assert (await collector.following(view)).topics


async def test_rates_are_those_of_the_brokers_counters() -> None:
    brokers = Brokers()
    async with running(brokers.look) as collector:
        first = await collector.fresh()
        second = await collector.following(first)
        channel = second.topics["orders"].channels["work"]
        passed_s = second.at_s - first.at_s
        assert channel.in_per_s == pytest.approx(1 / passed_s)
        # What came in waits: nothing was finished.
        assert (channel.out_per_s, second.in_per_s, second.out_per_s) == (0.0, 0.0, 0.0)
        assert collector.history.series(("orders", "work"), "depth") == [1.0]
        assert collector.history.series(("", ""), "depth") == [2.0]


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
async def test_a_step_of_the_wall_clock_changes_no_age_and_no_rate(
    step_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while brokers are asked, each time anew."""
    brokers, wall_s, steps = Brokers(), time.time(), 0.0
    monkeypatch.setattr(time, "time", lambda: wall_s + steps)

    async def look(limit_s: float) -> Answers[NodeStats]:
        nonlocal steps
        steps += step_s
        return await brokers.look(limit_s)

    async with running(look, interval_s=60.0) as collector:
        view = await collector.fresh()
        assert 0 <= view.took_s < 60
        steps += step_s
        assert await collector.fresh() is view
        view = await collector.poll_now()
        assert view.topics["orders"].channels["work"].in_per_s > 1 / 60
        assert 0 <= view.took_s < 60


@pytest.mark.parametrize("turns", range(5))
async def test_it_ends_where_it_is_cancelled_while_it_is_woken(turns: int) -> None:
    brokers = Brokers()
    collector = Collector(brokers.look, 3600, log)
    task = asyncio.create_task(collector.run())
    view = await collector.fresh()
    asking = asyncio.create_task(collector.following(view))
    polling = asyncio.create_task(collector.poll_now())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5)
    assert done, "it goes on"
    asking.cancel()
    polling.cancel()
    await asyncio.gather(task, asking, polling, return_exceptions=True)
