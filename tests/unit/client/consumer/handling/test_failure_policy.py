"""Failed messages come again, are deferred, or are given up."""

import asyncio
import random
from functools import partial

import pytest
from tests.polling import until
from tests.unit.client.consumer.consuming import NEVER, consuming

from martlet.client import FailureBackoff, LinearDelay, Message, Requeue
from martlet.client.consumer.handling.failure_policy import RETRY

handling = partial(consuming, failure_backoff=NEVER)


async def fail(_message: Message) -> None:
    raise RuntimeError("bad")


def test_a_message_that_failed_is_not_the_one_that_is_tried_next() -> None:
    """It came again before, was tried, failed again, and so on, while all others waited."""
    nothing_comes_s = FailureBackoff().wait_s(1, random.random)
    assert RETRY.delay_s(1, chance=1) >= 1.5 * nothing_comes_s


async def test_nothing_is_given_up_unless_asked_for() -> None:
    async with handling(run=fail) as (broker, consumer):
        broker.deliver(1, attempts=65_535)
        await broker.until(lambda: broker.answered("REQ") == [1])
        assert consumer.stats.given_up == 0


async def test_a_message_given_up_is_handed_over_before_it_is_finished(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handled: list[bytes] = []
    kept: list[bytes] = []
    go = asyncio.Event()

    def handle(message: Message) -> None:
        handled.append(message.body)

    async def keep(message: Message) -> None:
        await go.wait()
        kept.append(message.body)

    async with handling(run=handle, max_attempts=5, on_giving_up=keep) as (broker, consumer):
        broker.deliver(1, attempts=5)
        broker.deliver(2, attempts=6)
        await broker.until(lambda: broker.answered("FIN") == [1])
        await until(lambda: "it was delivered 6 times, max_attempts is 5" in caplog.text)
        assert broker.answered("FIN") == [1]
        go.set()
        await broker.until(lambda: broker.answered("FIN") == [1, 2])
        assert consumer.stats.given_up == 1
    assert (handled, kept) == ([b"body 1"], [b"body 2"])


async def test_a_message_that_could_not_be_handed_over_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def keep(_message: Message) -> None:
        raise OSError("no room")

    async with handling(run=fail, max_attempts=1, on_giving_up=keep) as (broker, consumer):
        broker.deliver(1, attempts=2)
        await broker.until(lambda: broker.answered("REQ") == [1])
        assert (broker.answered("FIN"), consumer.stats.given_up) == ([], 0)
    assert "no room" in caplog.text


async def test_a_message_given_up_without_a_hook_is_logged_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with handling(run=fail, max_attempts=1) as (broker, _):
        broker.deliver(1, attempts=2)
        await broker.until(lambda: broker.answered("FIN") == [1])
    assert "on_giving_up, to keep it, is not set" in caplog.text


async def test_a_handler_can_put_its_message_off(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(message: Message) -> None:
        raise Requeue(1234 if message.body == b"body 1" else None)

    async with handling(run=handle, retry=LinearDelay(step_s=2, max_s=5)) as (broker, _):
        broker.deliver(1)
        for attempts in (1, 2, 3):
            broker.deliver(2, attempts=attempts)
        await broker.until(lambda: len(broker.named("REQ")) == 4)
        delays = [command.words[2] for command in broker.named("REQ")]
        assert delays == ["1234", "2000", "4000", "5000"]
    assert "handler failed" not in caplog.text


def test_delays_as_go_nsq_has_them() -> None:
    delay = LinearDelay()
    assert [delay.delay_s(attempt) for attempt in (1, 2, 9, 10, 11)] == [90, 180, 810, 900, 900]
    with pytest.raises(ValueError, match="step_s=10"):
        LinearDelay(step_s=10, max_s=1)


async def test_a_keeper_that_meets_a_cancelled_task_fails_and_the_worker_goes_on() -> None:
    async def keep(_message: Message) -> None:
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        await cancelled

    async with handling(run=fail, max_attempts=1, on_giving_up=keep) as (broker, consumer):
        broker.deliver(1, 2, attempts=2)
        await broker.until(lambda: broker.answered("REQ") == [1, 2])
        assert consumer.stats.workers == 1
