"""Calls of hooks, with a broker that follows the test's script."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import AsyncIterator

import pytest
from opentelemetry import trace
from tests.unit.client.consumer.consuming import running
from tests.unit.client.recorded_hooks import RecordedHooks
from tests.unit.client.scripted_broker import Command, ScriptedBroker, at
from tests.unit.client.telemetry import Telemetry, attribute, is_child

from martlet.client import (
    Backoff,
    Closed,
    Consumer,
    Handling,
    Hooks,
    Message,
    MessageView,
    Producer,
    PublishRefused,
)
from martlet.client.hooks import guarded

FAST = Backoff(first_s=0.01, max_s=0.05)


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    refuse = at(b"bad", act=lambda peer: peer.fail(b"E_BAD_MESSAGE bad"))
    hang_up = at(b"hang up", act=lambda peer: peer.hang_up(), times=1)

    async def script(command: Command) -> bool:
        return await refuse(command) or await hang_up(command)

    async with ScriptedBroker(script) as scripted:
        yield scripted


@pytest.fixture
def journal() -> RecordedHooks:
    return RecordedHooks()


async def test_producer_hooks_are_called_for_each_call(
    broker: ScriptedBroker, journal: RecordedHooks
) -> None:
    async with Producer(broker.address, backoff=FAST, hooks=journal.hooks()) as producer:
        await producer.publish("t", b"one")
        await producer.publish_many("t", [b"two", b"three"])
        await producer.submit("t", b"four")
        with pytest.raises(PublishRefused):
            await producer.publish("t", b"bad")
        cancelled = producer.submit("t", b"five")
        cancelled.cancel()
        await producer.publish("t", b"six")
    with pytest.raises(Closed):
        await producer.publish("t", b"seven")
    assert journal.of("on_publish", "on_published") == [
        ("on_publish", ("t", 1, 3)),
        ("on_published", ("t", 1, 3), None),
        ("on_publish", ("t", 0, 0)),
        ("on_published", ("t", 2, 8), None),
        ("on_publish", ("t", 1, 4)),
        ("on_published", ("t", 1, 4), None),
        ("on_publish", ("t", 1, 3)),
        ("on_published", ("t", 1, 3), PublishRefused),
        ("on_publish", ("t", 1, 4)),
        ("on_publish", ("t", 1, 3)),
        ("on_published", ("t", 1, 4), asyncio.CancelledError),
        ("on_published", ("t", 1, 3), None),
        ("on_publish", ("t", 1, 5)),
        ("on_published", ("t", 1, 5), Closed),
    ]


async def test_producer_hooks_are_called_for_connections(
    broker: ScriptedBroker, journal: RecordedHooks
) -> None:
    async with Producer(broker.address, backoff=FAST, hooks=journal.hooks()) as producer:
        await producer.publish("t", b"hang up")
    events = journal.of("on_connected", "on_lost", "on_retried")
    assert [each[:2] for each in events] == [
        ("on_connected", broker.address),
        ("on_lost", broker.address),
        ("on_retried", broker.address),
        ("on_connected", broker.address),
    ]
    assert events[2][2] == 1


async def test_consumer_hooks_are_called_for_runs_and_each_handler(
    broker: ScriptedBroker, journal: RecordedHooks
) -> None:
    async def handle(message: Message) -> None:
        if message.body == b"body 1":
            raise ValueError

    async with Consumer("t", "c", broker.address, hooks=journal.hooks()) as consumer:
        await broker.until(broker.ready_counts)
        async with running(consumer, handle):
            broker.deliver(*range(3))
            await broker.until(lambda: len(broker.named("FIN", "REQ")) == 3)
    handled = journal.of("on_handle", "on_handled")
    assert handled == [
        ("on_handle", ("t", "c", b"body 0", 1)),
        ("on_handled", ("t", "c", b"body 0", 1), None),
        ("on_handle", ("t", "c", b"body 1", 1)),
        ("on_handled", ("t", "c", b"body 1", 1), ValueError),
        ("on_handle", ("t", "c", b"body 2", 1)),
        ("on_handled", ("t", "c", b"body 2", 1), None),
    ]
    received = journal.of("on_received")
    assert journal.sum("on_received") == 3
    assert sum(each[3] for each in received) == 3 * len(b"body 0")
    assert (journal.sum("on_finished"), journal.sum("on_requeued")) == (2, 1)
    assert journal.of("on_connected") == [("on_connected", broker.address)]
    assert journal.of("on_lost") == [], "it was closed"


async def test_a_hook_that_fails_is_logged_and_changes_nothing(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: object) -> None:
        raise ValueError("on purpose")

    hooks = Hooks(**dict.fromkeys(Hooks.__dataclass_fields__, fail))

    async def handle(_message: Message) -> None: ...

    async with (
        Producer(broker.address, hooks=hooks) as producer,
        Consumer("t", "c", broker.address, hooks=hooks) as consumer,
    ):
        await producer.publish("t", b"x")
        async with running(consumer, handle):
            broker.deliver(1)
            await broker.until(lambda: broker.answered("FIN"))
    failures = {each.getMessage() for each in caplog.records}
    assert {"the hook on_publish failed", "the hook on_handled failed"} <= failures


def test_system_exit_passes_in_the_main_thread_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def leave() -> None:
        raise SystemExit(3)

    guard = guarded("the hook", leave)
    with pytest.raises(SystemExit, match="3"):
        guard()
    thread = threading.Thread(target=guard)
    thread.start()
    thread.join()
    assert [each.getMessage() for each in caplog.records] == ["the hook failed"]


context: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@pytest.mark.parametrize("on", ["loop", "threads"])
async def test_a_handler_runs_in_the_context_that_the_hook_made(
    broker: ScriptedBroker, on: str
) -> None:
    seen: list[str] = []

    def handle(message: Message | MessageView) -> None:
        seen.append(f"{context.get()} {message.body.decode()}")

    def on_handle(handling: Handling) -> None:
        handling.state = context.set(f"hook of {handling.message.body.decode()}")

    def on_handled(handling: Handling, _error: BaseException | None) -> None:
        context.reset(handling.state)

    hooks = Hooks(on_handle=on_handle, on_handled=on_handled)
    async with (
        Consumer("t", "c", broker.address, hooks=hooks) as consumer,
        running(consumer, handle, on=on),
    ):
        await broker.until(broker.ready_counts)
        broker.deliver(1, 2)
        await broker.until(lambda: len(broker.answered("FIN")) == 2)
    assert seen == ["hook of body 1 body 1", "hook of body 2 body 2"]


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


async def test_opentelemetry_has_spans_and_metrics(
    broker: ScriptedBroker, telemetry: Telemetry
) -> None:
    inside: list[trace.Span] = []

    async def handle(message: Message) -> None:
        inside.append(trace.get_current_span())
        if message.body == b"body 2":
            raise KeyError("no")

    async with (
        Producer(broker.address, backoff=FAST, hooks=telemetry.hooks) as producer,
        Consumer("t", "c", broker.address, hooks=telemetry.hooks) as consumer,
    ):
        with telemetry.tracers.get_tracer("test").start_as_current_span("request") as request:
            await producer.publish_many("t", [b"one", b"two"])
            with pytest.raises(PublishRefused):
                await producer.publish("t", b"bad")
        broker.peers.append(broker.named("SUB")[0].peer)  # It delivers to the last.
        async with running(consumer, handle):
            broker.deliver(1, 2)
            await broker.until(lambda: len(broker.named("FIN", "REQ")) == 2)
    many, bad = telemetry.named("publish t")
    good, failed = telemetry.named("process t")
    kinds = [span.kind.name for span in (many, bad, good, failed)]
    assert kinds == ["PRODUCER"] * 2 + ["CONSUMER"] * 2
    assert is_child(many, request)
    assert is_child(bad, request)
    assert broker.named("MPUB"), "a broker of NSQ takes no headers"
    assert broker.named("SEND") == []
    assert attribute(many, "messaging.batch.message_count") == 2
    assert attribute(many, "messaging.destination.name") == "t"
    assert (many.status.is_ok, bad.status.is_ok) == (True, False)
    assert attribute(bad, "error.type") == "PublishRefused"
    assert [each.get_span_context() for each in inside] == [good.context, failed.context]
    assert attribute(good, "messaging.consumer.group.name") == "c"
    assert attribute(good, "messaging.message.id") == f"{1:016x}"
    assert attribute(failed, "error.type") == "KeyError"
    assert [event.name for event in failed.events] == ["exception"]
    sums = telemetry.sums()
    assert {
        "messaging.client.sent.messages": 3,
        "messaging.client.consumed.messages": 2,
        "martlet.client.finished.messages": 1,
        "martlet.client.requeued.messages": 1,
        "messaging.process.duration": 2,
        "messaging.client.operation.duration": 2,
        "martlet.client.lost.connections": 1,
    }.items() <= sums.items()


def test_hooks_of_a_producer_are_quiet_where_they_are_not_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    assert Producer()._hooks is None
    assert Producer(hooks=Hooks(on_lost=print))._hooks is None
