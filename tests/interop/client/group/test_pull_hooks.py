"""Hooks, OpenTelemetry and stats of pull consumers, over a real broker."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Literal

import pytest
from opentelemetry import trace
from tests.interop.client.group.test_pull import member, put
from tests.polling import until
from tests.unit.client.consumer.consuming import running
from tests.unit.client.recorded_hooks import RecordedHooks
from tests.unit.client.telemetry import Telemetry, attribute

from martlet.client import (
    BroadcastConsumer,
    ConnectionLost,
    Handling,
    Hooks,
    PullCounts,
    PulledMessage,
    QueueId,
    QueueStats,
    sync,
)
from martlet.testing import Broker


async def fail_once(message: PulledMessage) -> None:
    if message.body == b"bad" and message.attempts == 1:
        raise ValueError("on purpose")


async def test_hooks_are_called_for_runs_and_each_handler(broker: Broker) -> None:
    journal = RecordedHooks()
    put(broker, [b"good", b"bad"])
    async with member(broker, hooks=journal.hooks()) as consumer:
        running = asyncio.create_task(consumer.run(fail_once))
        await until(lambda: journal.sum("on_finished") == 2)
        put(broker, [b"batch"] * 3)
        consumer.stop()
        await running
        assert consumer.stats.workers == 0
    assert journal.of("on_handle", "on_handled") == [
        ("on_handle", ("t", "g", b"good", 1)),
        ("on_handled", ("t", "g", b"good", 1), None),
        ("on_handle", ("t", "g", b"bad", 1)),
        ("on_handled", ("t", "g", b"bad", 1), ValueError),
        ("on_handle", ("t", "g", b"bad", 2)),
        ("on_handled", ("t", "g", b"bad", 2), None),
    ]
    assert journal.of("on_received")[0] == ("on_received", broker.tcp_address, 2, 7)
    assert journal.sum("on_requeued") == 1
    assert journal.of("on_connected") == [("on_connected", broker.tcp_address)]
    assert journal.of("on_lost") == [], "it was closed"


async def test_messages_finished_in_one_turn_are_reported_at_once(broker: Broker) -> None:
    journal = RecordedHooks()
    put(broker, [b"x"] * 5)
    async with member(broker, hooks=journal.hooks()) as consumer:
        async for batch in consumer.batches():
            batch.finish()
            break
        await until(lambda: journal.of("on_finished"))
        assert journal.of("on_finished") == [("on_finished", broker.tcp_address, 5)]
        connection = consumer._brokers.sessions[0].connection
        assert connection is not None
        connection.abort()
        await until(lambda: len(journal.of("on_connected")) == 2)
    assert journal.of("on_lost") == [("on_lost", broker.tcp_address, ConnectionLost)]


async def test_hooks_of_a_broadcast_consumer_get_no_group(broker: Broker) -> None:
    journal = RecordedHooks()
    put(broker, [b"x"])
    async with (
        BroadcastConsumer(
            "t", broker.tcp_address, offsets=None, start="first", hooks=journal.hooks()
        ) as consumer,
        running(consumer, fail_once),
    ):
        await until(lambda: journal.sum("on_finished") == 1)
    assert journal.of("on_handle") == [("on_handle", ("t", "", b"x", 1))]


CONTEXT: contextvars.ContextVar[str] = contextvars.ContextVar("WHO", default="nobody")


@pytest.mark.parametrize("on", ["loop", "threads"])
async def test_a_handler_runs_in_the_context_that_the_hook_made(
    broker: Broker, on: Literal["loop", "threads"]
) -> None:
    seen: list[str] = []
    put(broker, [b"1", b"2"])

    def handle(message: PulledMessage) -> None:
        seen.append(f"{CONTEXT.get()} {message.body.decode()}")

    def on_handle(handling: Handling) -> None:
        handling.state = CONTEXT.set(f"hook of {handling.message.body.decode()}")

    def on_handled(handling: Handling, _error: BaseException | None) -> None:
        CONTEXT.reset(handling.state)

    hooks = Hooks(on_handle=on_handle, on_handled=on_handled)
    async with (
        member(broker, hooks=hooks) as consumer,
        running(consumer, handle, on=on),
    ):
        await until(lambda: len(seen) == 2)
    assert seen == ["hook of 1 1", "hook of 2 2"]


async def test_opentelemetry_has_spans_and_metrics(broker: Broker) -> None:
    telemetry = Telemetry()
    inside: list[trace.Span] = []
    put(broker, [b"good", b"bad"])

    async def handle(message: PulledMessage) -> None:
        inside.append(trace.get_current_span())
        await fail_once(message)

    async with member(broker, hooks=telemetry.hooks) as consumer, running(consumer, handle):
        await until(lambda: consumer.current_counts.finished == 2)
    processed = telemetry.named("process t")
    assert processed == list(telemetry.all())
    assert [span.get_span_context() for span in inside] == [span.context for span in processed]
    assert [span.status.is_ok for span in processed] == [True, False, True]
    groups = [attribute(span, "messaging.consumer.group.name") for span in processed]
    assert groups == ["g"] * 3
    assert {
        "messaging.client.consumed.messages": 2,
        "martlet.client.finished.messages": 2,
        "martlet.client.requeued.messages": 1,
    }.items() <= telemetry.sums().items()


async def test_stats_show_the_state_of_a_consumer(broker: Broker) -> None:
    put(broker, [b"%d" % n for n in range(10)])
    async with member(broker, max_messages=10, commit_every_s=60) as consumer:
        async for message in consumer:
            if message.offset == 3:
                break
        stats = consumer.stats
        assert stats.counts == PullCounts(received=10, finished=3, requeued=1), "one was left"
        assert (stats.given_up, stats.waiting, stats.workers) == (0, 7, 0)
        assert stats.queues == (QueueStats(QueueId(broker.tcp_address, 0), 3, 0, 7, 7, False),)
        (connection,) = stats.connections
        assert (connection.address, connection.is_connected) == (broker.tcp_address, True)
        assert (connection.ready_count, connection.in_flight) == (10, 7)
        assert (connection.received, connection.finished, connection.requeued) == (10, 3, 1)
        assert connection.last_message_s > 0
        assert connection.last_error == ""
        assert not consumer.is_starved
        await consumer.seek(0, 0)
        await until(lambda: consumer.is_starved)
        consumer.pause(0)
        assert consumer.stats.queues[0].is_paused


async def test_the_face_without_await_has_hooks_and_stats_too(broker: Broker) -> None:
    journal = RecordedHooks()
    put(broker, [b"x"])

    def work() -> int:
        with sync.PullConsumer(
            "t", "g", broker.tcp_address, start="first", hooks=journal.hooks()
        ) as consumer:
            consumer.run(lambda _message: consumer.stop())
            assert not consumer.is_starved
            return consumer.stats.counts.finished

    assert await asyncio.to_thread(work) == 1
    assert journal.of("on_handle") == [("on_handle", ("t", "g", b"x", 1))]
