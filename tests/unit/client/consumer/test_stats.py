"""The stats of a consumer."""

import asyncio
from dataclasses import FrozenInstanceError

import pytest
from tests.polling import until
from tests.unit.client.scripted_broker import ScriptedBroker

from martlet.client import Consumer, FailureBackoff, Refused
from martlet.client.consumer.stats import Losses


async def test_stats_show_the_state_of_each_broker() -> None:
    async with ScriptedBroker() as one, ScriptedBroker() as two:
        await two.go_away()
        async with Consumer(
            "t",
            "c",
            [one.address, two.address],
            max_in_flight=10,
            failure_backoff=FailureBackoff(multiplier_s=50),
        ) as consumer:
            one.deliver(*range(9))
            await until(lambda: consumer.counts.received == 9)
            stats = consumer.stats
            here, away = stats.connections
            assert (here.address, away.address) == (one.address, two.address)
            assert (here.is_connected, here.ready_count, here.in_flight) == (True, 10, 9)
            assert (away.is_connected, away.ready_count, away.in_flight) == (False, 0, 0)
            assert away.last_error
            assert here.last_message_s > 0
            assert (stats.waiting, stats.workers, stats.backoff) == (9, 0, "open")
            assert here.is_starved
            assert consumer.is_starved
            messages = [await anext(consumer) for _ in range(9)]
            for message in messages[:2]:
                message.finish()
            await until(lambda: consumer.counts.finished == 2)
            assert not consumer.stats.is_starved, "7 of 10 are less than 85 %"
            messages[2].requeue(backoff=True)
            stats = consumer.stats
            assert (stats.backoff, stats.backoff_level) == ("blocked", 1)
            assert stats.connections[0].ready_count == 0
            running = asyncio.create_task(consumer.run(print, concurrency=3))
            await asyncio.sleep(0)
            assert consumer.stats.workers == 3
            consumer.pause()
            assert consumer.stats.is_paused
            with pytest.raises(FrozenInstanceError):
                stats.waiting = 3  # type: ignore[misc]
            consumer.stop()
            await running


def test_losses_are_logged_once_for_each_kind_and_not_a_line_for_each_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING")
    losses = Losses()
    for _ in range(1000):
        losses.on_expired(2)
        losses.on_late(Refused("E_FIN_FAILED", "not in flight"))
    assert (losses.expired, losses.late) == (2000, 1000)
    assert len(caplog.records) < 1000
    assert "2 messages waited here" in caplog.text
    assert "too late (1 so far)" in caplog.text
