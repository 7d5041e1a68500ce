"""A consumer that has silently stopped is noticed, and one that is only idle is left alone."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from tests.polling import until
from tests.unit.client.consumer.consuming import consuming
from tests.unit.client.scripted_broker import ScriptedBroker, silent_at

from martlet.client import Consumer, Message
from martlet.client.consumer.handling.backoff import BackoffState
from martlet.client.consumer.watchdog import ConsumerSnapshot, Watchdog
from martlet.client.transport.dialer import Dialer
from martlet.client.transport.discovery import Discovery

WELL = ConsumerSnapshot(
    connected=2,
    ready=10,
    is_held_back=False,
    backoff=BackoffState.OPEN,
    trial_at_s=0.0,
    waiting=0,
    progress=1,
)


def dog(after_s: float = 10) -> Watchdog:
    return Watchdog(after_s, lambda: WELL)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"waiting": 3}, "3 wait here: handlers hang"),
        ({"ready": 0}, "no messages were requested"),
        ({"ready": 0, "backoff": BackoffState.TRIAL}, "no messages were requested"),
        ({"ready": 0, "backoff": BackoffState.BLOCKED, "trial_at_s": 5.0}, "its timer has not run"),
    ],
)
def test_a_stall_is_reported_when_it_has_lasted(changes: dict[str, Any], cause: str) -> None:
    watchdog = dog()
    stalled = replace(WELL, **changes)
    assert watchdog.check(WELL, 0) == ""
    for now_s in (6, 10, 15.9):
        assert watchdog.check(stalled, now_s) == ""
    assert cause in watchdog.check(stalled, 16.1)
    assert watchdog.check(replace(WELL, progress=2), 17) == ""
    assert watchdog.check(replace(stalled, progress=2), 18) == "", "it begins anew"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ready": 0, "is_held_back": True},
        {"ready": 0, "connected": 0},
        {"ready": 0, "backoff": BackoffState.BLOCKED, "trial_at_s": 1000.0},
    ],
)
def test_an_idle_or_paused_consumer_has_not_stalled(changes: dict[str, Any]) -> None:
    watchdog = dog()
    for now_s in range(0, 100, 5):
        assert watchdog.check(replace(WELL, **changes), now_s) == ""


def test_messages_that_wait_are_no_stall_while_others_are_answered() -> None:
    watchdog = dog()
    for now_s in range(0, 100, 5):
        assert watchdog.check(replace(WELL, waiting=9, progress=now_s), now_s) == ""


async def test_handlers_that_hang_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    go = asyncio.Event()
    causes: list[str] = []

    def on_stall(cause: str) -> None:
        causes.append(cause)
        raise RuntimeError("the hook is broken too")

    async def handle(_message: Message) -> None:
        await go.wait()

    async with consuming(run=handle, stall_after_s=0.08, on_stall=on_stall) as (broker, consumer):
        broker.deliver(1, 2, 3)
        await until(lambda: bool(causes))
        await asyncio.sleep(0.1)
        assert len(causes) == 1, "once for each stall"
        assert "2 wait here" in causes[0]
        assert "2 wait here" in consumer.stats.stall
        go.set()
        await until(lambda: not consumer.stats.stall)
    assert "the consumer has stalled: for" in caplog.text
    assert "the consumer progresses again" in caplog.text
    assert "the hook is broken too" in caplog.text


async def test_a_blocked_event_loop_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("martlet.client.consumer.watchdog.LATE_S", 0.1)
    async with consuming(stall_after_s=0.1):
        await asyncio.sleep(0.03)
        time.sleep(0.2)  # noqa: ASYNC251
        await until(lambda: "on='threads'" in caplog.text)


async def test_a_consumer_that_waits_for_a_broker_to_answer_has_not_stalled() -> None:
    causes: list[str] = []
    settings: dict[str, Any] = {"stall_after_s": 0.05, "on_stall": causes.append}
    async with ScriptedBroker() as one, ScriptedBroker(silent_at("IDENTIFY")) as two:
        addresses = [one.address, two.address]
        consumer = Consumer("t", "c", addresses, connect_timeout_s=0.3, **settings)
        entering = asyncio.create_task(consumer.__aenter__())
        await one.until(lambda: one.named("RDY"))
        one.deliver(1, 2)
        await entering
        await until(lambda: consumer.stats.waiting == 2)
        assert causes == []
        await consumer.close()


async def test_looking_for_brokers_is_taken_up_again_where_it_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("martlet.client.consumer.brokers.REVIVAL_S", 0.01)
    causes: list[str] = []
    calls = 0

    async def ask(_discovery: Discovery, _url: str) -> object:
        nonlocal calls
        calls += 1
        raise RuntimeError("a bug")

    monkeypatch.setattr(Discovery, "_ask", ask)
    async with Consumer("t", "c", lookup="127.0.0.1:1", on_stall=causes.append):
        await until(lambda: calls > 2)
    assert "discovery of brokers failed" in causes[0]
    ended = calls
    await asyncio.sleep(0.03)
    assert calls == ended


async def test_an_unforeseen_error_of_a_connection_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    causes: list[str] = []

    def lost(_dialer: Dialer, _error: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Dialer, "lost", lost)
    async with consuming(on_stall=causes.append) as (broker, consumer):
        running = asyncio.create_task(consumer.run(print))
        await asyncio.sleep(0)
        broker.peers[0].hang_up()
        with pytest.raises(RuntimeError, match="a bug"):
            await running
    assert causes == ["keeping a connection broke: RuntimeError('a bug')"]
