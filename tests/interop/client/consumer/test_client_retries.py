"""Failed messages between Martlet's client and broker."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.unit.client.consumer.consuming import running

from martlet.broker.dead_letters.dead_letter import CHANNEL
from martlet.broker.policy import ChannelPolicy
from martlet.broker.queue.peek import PeekState, peek
from martlet.client import (
    Consumer,
    FailureBackoff,
    LinearDelay,
    Message,
    MessageView,
    Producer,
    Properties,
    Reject,
    Requeue,
    sync,
)
from martlet.testing import Broker

AMPLE_S = 60
NEVER = FailureBackoff(max_s=0)


def configure(broker: Broker, *delays_ms: int, max_attempts: int = 0) -> None:
    topic = broker.server.broker.topic("t")
    topic.channel("c")
    policy = ChannelPolicy(max_attempts=max_attempts, retry_delays_ms=delays_ms)
    topic.configure_channel("c", policy)


async def dead_letter(broker: Broker) -> tuple[bytes, Properties]:
    async with (
        asyncio.timeout(AMPLE_S),
        Consumer("t.c.dead", CHANNEL, broker.tcp_address) as consumer,
    ):
        message = await anext(consumer)
        message.finish()
        return message.body, message.properties


async def publish(broker: Broker, *bodies: bytes) -> None:
    async with Producer(broker.tcp_address) as producer:
        await producer.publish_many("t", list(bodies))


async def test_the_channels_delays_count_and_the_errors_are_kept(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    configure(broker, 1, 2, max_attempts=3)
    await publish(broker, b"bad")
    seen: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(message.attempts)
        raise ConnectionError(f"try {message.attempts}")

    async with (
        Consumer("t", "c", broker.tcp_address, failure_backoff=NEVER) as consumer,
        running(consumer, handle),
    ):
        body, properties = await dead_letter(broker)
    assert (body, seen) == (b"bad", [1, 2, 3])
    assert properties.system["dead_reason"] == "max_attempts"
    assert properties.system["dead_first_error"] == "ConnectionError: try 1"
    assert properties.system["dead_last_error"] == "ConnectionError: try 3"
    lines = [record.message for record in caplog.records if "handler failed" in record.message]
    says = ["attempt 1; again after", "attempt 2; again after", "attempt 3; the last of 3"]
    assert [said in line for said, line in zip(says, lines, strict=True)] == [True] * 3


async def test_a_handler_that_wants_its_message_later_gets_it_when_the_policy_has_it(
    broker: Broker,
) -> None:
    """Not after the consumer's own 4 s."""
    configure(broker, 3_600_000)
    await publish(broker, b"not yet")

    async def handle(_message: Message) -> None:
        raise Requeue

    async with (
        Consumer("t", "c", broker.tcp_address) as consumer,
        running(consumer, handle),
        asyncio.timeout(AMPLE_S),
    ):
        channel = broker.server.broker.topic("t").channel("c")
        while not channel.deferred_count:  # noqa: ASYNC110, the broker's own
            await asyncio.sleep(0.005)
        assert consumer.stats.backoff_level == 0, "it is no failure"
    (waiting,) = peek(channel, 0, 1, list(PeekState))
    assert waiting.due_ns - time.time_ns() > 3_000_000_000_000


async def test_a_delay_that_the_application_has_chosen_counts_more(broker: Broker) -> None:
    configure(broker, 3_600_000)
    await publish(broker, b"bad")
    again = asyncio.Event()

    def handle(message: Message) -> None:
        if message.attempts == 3:
            again.set()
            return
        if message.attempts == 2:
            raise Requeue(1)
        raise ConnectionError("no")

    async with (
        Consumer(
            "t", "c", broker.tcp_address, failure_backoff=NEVER, retry=LinearDelay(step_s=0.001)
        ) as consumer,
        running(consumer, handle),
    ):
        async with asyncio.timeout(AMPLE_S):
            await again.wait()


async def test_a_consumer_that_gives_up_by_itself_loses_nothing(broker: Broker) -> None:
    await publish(broker, b"bad")

    def handle(message: Message) -> None:
        message.requeue(backoff=False, error="out of stock")

    async with (
        Consumer("t", "c", broker.tcp_address, max_attempts=2) as consumer,
        running(consumer, handle),
    ):
        body, properties = await dead_letter(broker)
        assert consumer.stats.given_up == 1
    assert body == b"bad"
    assert properties.system["dead_reason"] == "given_up"
    assert properties.system["dead_last_error"] == "out of stock"
    channel = broker.server.broker.topics["t"].channels["c"]
    assert channel.dead_letter_count == 1
    assert not channel.cursor.pending


def reject(view: MessageView) -> None:
    raise Reject(f"cannot read {view.body!r}")


@pytest.mark.parametrize("on", ["loop", "threads", "processes"])
async def test_a_handler_may_reject_a_message(broker: Broker, on: str) -> None:
    await publish(broker, b"bad")
    async with Consumer("t", "c", broker.tcp_address) as consumer, running(consumer, reject, on=on):
        _, properties = await dead_letter(broker)
    assert properties.system["dead_reason"] == "rejected"
    assert properties.system["dead_attempts"] == "1"
    assert properties.system["dead_last_error"] == "cannot read b'bad'"


async def test_unanswered_messages_are_given_back_without_a_delay(broker: Broker) -> None:
    configure(broker, 3_600_000, max_attempts=5)
    await publish(broker, b"1", b"2", b"3")
    async with Consumer("t", "c", broker.tcp_address) as consumer:
        for _ in range(3):
            await anext(consumer)
    async with asyncio.timeout(AMPLE_S), Consumer("t", "c", broker.tcp_address) as consumer:
        again = [await anext(consumer) for _ in range(3)]
        for message in again:
            message.finish()
    assert {(message.attempts, message.failures) for message in again} == {(2, 0)}


async def test_many_failures_at_once_are_all_reported(broker: Broker) -> None:
    """More than the calls of one connection that may wait for an answer."""
    count = 2000
    configure(broker, max_attempts=1)
    await publish(broker, *[b"%d" % number for number in range(count)])
    async with Consumer("t", "c", broker.tcp_address, max_in_flight=count) as consumer:
        for _ in range(count):
            (await anext(consumer)).requeue(backoff=False, error="no")
    keeper = broker.server.broker.topics["t.c.dead"].channels[CHANNEL]
    channel = broker.server.broker.topics["t"].channels["c"]
    broker.server.broker.run()
    assert keeper.depth + channel.in_flight_count == count


async def test_without_await(broker: Broker) -> None:
    configure(broker, 1, max_attempts=2)
    await publish(broker, b"later", b"rejected")

    def consume() -> None:
        with sync.Consumer("t", "c", broker.tcp_address) as consumer:
            for _ in range(3):
                message = next(consumer)
                if message.body == b"rejected":
                    message.reject("no such account")
                else:
                    message.requeue(backoff=False, error="busy")

    await asyncio.to_thread(consume)
    dead_letters = [await dead_letter(broker) for _ in range(2)]
    assert {body: properties.system["dead_last_error"] for body, properties in dead_letters} == {
        b"later": "busy",
        b"rejected": "no such account",
    }


async def test_a_failure_that_the_policy_delays_does_not_pause_the_consumer(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    configure(broker, 3_600_000, max_attempts=2)
    bodies = [b"%d" % number for number in range(400)]
    await publish(broker, *bodies)
    handled: set[bytes] = set()

    async def handle(message: Message) -> None:
        if int(message.body) % 4 == 0:
            raise ValueError("bad")
        handled.add(message.body)
        if len(handled) == 300:
            consumer.stop()

    async with Consumer("t", "c", broker.tcp_address, max_in_flight=10) as consumer:
        await consumer.run(handle)
    assert len(handled) == 300
    assert "no more are requested" not in caplog.text
    assert "again after the delay of its channel's retry policy" in caplog.text


async def test_a_pause_after_failures_can_be_asked_for(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    configure(broker, 3_600_000, max_attempts=2)
    await publish(broker, b"bad")

    async def handle(_message: Message) -> None:
        consumer.stop()
        raise ValueError("bad")

    short = FailureBackoff(multiplier_s=0.01)
    async with Consumer("t", "c", broker.tcp_address, failure_backoff=short) as consumer:
        flow = consumer._flow
        flow.stop = lambda: None  # type: ignore[method-assign]
        await consumer.run(handle)
    assert "failure_backoff=FailureBackoff(max_s=0) never pauses" in caplog.text
