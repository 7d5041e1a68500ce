"""Traces that go through the broker: from a publish to the handlers of its messages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from tests.unit.client.telemetry import Telemetry, attribute, is_child

from martlet.client import (
    Consumer,
    Message,
    MessageView,
    Producer,
    PullConsumer,
    Reject,
    RequestFailed,
    sync,
)
from martlet.client.admin import Admin
from martlet.client.otel import otel_hooks, process_span
from martlet.properties.model import MAX_BYTES, Properties
from martlet.testing import Broker, BrokerProcess


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


def linked(span: ReadableSpan) -> list[trace.SpanContext]:
    """Return the spans that this one has links to, without the mark that they are remote."""
    assert all(link.context.is_remote for link in span.links)
    return [
        trace.SpanContext(item.trace_id, item.span_id, False, item.trace_flags, item.trace_state)
        for item in (link.context for link in span.links)
    ]


def contexts(spans: Sequence[ReadableSpan]) -> list[trace.SpanContext | None]:
    return [span.context for span in spans]


async def handle_one(
    topic: str,
    channel: str,
    broker: Broker,
    telemetry: Telemetry,
    handler: Callable[[Message], Awaitable[object] | object],
) -> None:
    """Handle messages of a channel until one was."""

    def handle(message: Message) -> object:
        consumer.stop()
        return handler(message)

    async with Consumer(topic, channel, broker.tcp_address, hooks=telemetry.hooks) as consumer:
        await asyncio.wait_for(consumer.run(handle), 50)


async def test_a_message_keeps_its_link_through_restart_dead_letter_and_redrive(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    def fail(_message: Message) -> None:
        raise Reject("no such item")

    headers: list[dict[str, str | bytes]] = []
    tracer = telemetry.tracers.get_tracer("test")
    async with (
        Broker(tmp_path) as broker,
        Producer(broker.tcp_address, hooks=telemetry.hooks) as producer,
    ):
        state = trace.TraceState([("vendor", "7")])
        caller = trace.SpanContext(1, 2, True, trace.TraceFlags(trace.TraceFlags.SAMPLED), state)
        context = trace.set_span_in_context(trace.NonRecordingSpan(caller))
        with tracer.start_as_current_span("request", context) as request:
            await producer.publish("orders", b"tea", headers={"currency": "EUR"})
    async with Broker(tmp_path) as broker:
        await handle_one("orders", "mail", broker, telemetry, fail)
    async with Broker(tmp_path) as broker:
        await handle_one("orders.mail.dead", "dead-letters", broker, telemetry, Message.requeue)
        async with Admin(broker.http_address) as admin:
            moved = await admin.dead_letters.redrive("orders", "mail", all=True)
            assert [answer.count for answer in moved.values.values()] == [1]

        def note(message: Message) -> None:
            headers.append(dict(message.properties.headers))

        await handle_one("orders", "mail", broker, telemetry, note)

    (published,) = telemetry.named("publish orders")
    assert is_child(published, request)
    failed, redriven = telemetry.named("process orders")
    (dead,) = telemetry.named("process orders.mail.dead")
    assert linked(failed) == linked(dead) == linked(redriven) == [published.context]
    assert (failed.parent, redriven.parent) == (None, None), "a link, and no parent"
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert redriven.status.status_code is trace.StatusCode.UNSET
    assert attribute(published, "messaging.message.id") == attribute(failed, "messaging.message.id")
    assert attribute(redriven, "messaging.destination.name") == "orders"
    (kept,) = headers
    assert (
        str(kept.pop("traceparent")).split("-")[1] == f"{request.get_span_context().trace_id:032x}"
    )
    assert kept == {"currency": "EUR", "tracestate": "vendor=7"}


async def test_a_request_is_linked_to_its_reply(telemetry: Telemetry) -> None:
    async def handle(message: Message) -> None:
        if message.body == b"fail":
            raise ValueError("no")
        message.reply(b"done")

    async with (
        Broker() as broker,
        Consumer("jobs", "c", broker.tcp_address, hooks=telemetry.hooks) as consumer,
        Producer(broker.tcp_address, hooks=telemetry.hooks) as producer,
    ):
        running = asyncio.create_task(consumer.run(handle))
        await producer.request("jobs", b"x")
        with pytest.raises(RequestFailed):
            await producer.request("jobs", b"fail")
        consumer.stop()
        await running
    request, failed = telemetry.named("request jobs")
    published, _ = telemetry.named("publish jobs")
    processed, raised = telemetry.named("process jobs")
    replied = sorted(
        (span for span in telemetry.all() if span.name.startswith("publish reply.")),
        key=lambda item: item.start_time or 0,
    )
    assert is_child(published, request)
    assert request.kind is trace.SpanKind.CLIENT
    assert linked(processed) == [published.context]
    assert is_child(replied[0], processed)
    assert linked(request) == [replied[0].context]
    assert len(replied) == 2
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert attribute(failed, "error.type") == "RequestFailed"
    assert raised.status.status_code is trace.StatusCode.ERROR


def test_a_blocking_request_is_linked_to_its_reply(telemetry: Telemetry) -> None:
    with (
        BrokerProcess(None) as broker,
        sync.Consumer("jobs", "c", broker.tcp_address, hooks=telemetry.hooks) as consumer,
        sync.Producer(broker.tcp_address, hooks=telemetry.hooks) as producer,
    ):
        running = threading.Thread(target=consumer.run, args=(lambda m: m.reply(b"done"),))
        running.start()
        with telemetry.tracers.get_tracer("test").start_as_current_span("caller") as caller:
            producer.request("jobs", b"x", timeout_s=20)
        consumer.stop()
        running.join()
    (request,) = telemetry.named("request jobs")
    (processed,) = telemetry.named("process jobs")
    (replied,) = (span for span in telemetry.all() if span.name.startswith("publish reply."))
    assert is_child(request, caller)
    assert linked(request) == [replied.context]
    assert is_child(replied, processed)


async def test_every_way_to_publish_carries_the_trace(telemetry: Telemetry) -> None:
    async with Broker() as broker:
        async with Producer(broker.tcp_address, hooks=telemetry.hooks) as producer:
            await producer.publish("t", b"publish")
            await producer.publish("t", b"keyed", order_key="k")
            await producer.submit("t", b"submit")
            await producer.publish_many("t", [b"many 1", b"many 2"])
            await producer.publish_many("t", (body for body in [b"lazy 1", b"lazy 2"]))
            await producer.send("t", b"send", tag="red")
            await producer.send_async("t", b"async")
            await producer.send_many("t", [b"sent 1", b"sent 2"])
            producer.send_oneway("t", b"oneway")
            await producer.publish("t", b"later", defer_ms=1)
            async with producer.transaction() as transaction:
                await transaction.publish("t", b"added")
                await transaction.publish_many("t", [b"bulk 1", b"bulk 2"])
        seen: list[bytes] = []

        def handle(message: Message) -> None:
            seen.append(message.body)
            if len(seen) == 16:
                consumer.stop()

        async with Consumer("t", "c", broker.tcp_address, hooks=telemetry.hooks) as consumer:
            await asyncio.wait_for(consumer.run(handle), 50)
    published, processed = telemetry.named("publish t"), telemetry.named("process t")
    counts = [attribute(span, "messaging.batch.message_count") for span in published]
    assert counts == [None, None, None, 2, 2, None, None, 2, None, None, None, 2]
    origin = dict(zip(seen, map(linked, processed), strict=True))
    calls = ["publish", "keyed", "submit", "many", "lazy", "send", "async", "sent", "oneway"]
    calls += ["later", "added", "bulk"]
    for call, span in zip(calls, contexts(published), strict=True):
        of_call = [links for body, links in origin.items() if body.decode().split()[0] == call]
        assert of_call == [[span]] * (2 if call in ("many", "lazy", "sent", "bulk") else 1), call


async def test_a_batch_links_to_each_publish_once(telemetry: Telemetry) -> None:
    async with Broker() as broker:
        async with Producer(broker.tcp_address) as producer:
            await producer.send("t", b"without a trace", headers={"traceparent": b"\xff"})
        async with Producer(broker.tcp_address, hooks=telemetry.hooks) as producer:
            await producer.publish_many("t", [b"%d" % number for number in range(100)])
            await producer.publish("t", b"another")
        async with PullConsumer("t", "g", broker.tcp_address, start="first") as consumer:
            async for batch in consumer.batches():
                with process_span(batch, "t", "g", telemetry.tracers) as span:
                    assert trace.get_current_span() is span
                break
    (processed,) = telemetry.named("process t")
    assert attribute(processed, "messaging.batch.message_count") == 102
    assert attribute(processed, "messaging.consumer.group.name") == "g"
    assert linked(processed) == contexts(telemetry.named("publish t"))


async def test_the_face_without_await_carries_the_trace(telemetry: Telemetry) -> None:
    tracer = telemetry.tracers.get_tracer("test")

    def work(address: str) -> None:
        with (
            sync.Producer(address, hooks=telemetry.hooks) as producer,
            tracer.start_as_current_span("request"),
        ):
            producer.publish("t", b"handled")
            producer.publish_many("t", [b"iterated"])
            producer.submit("t", b"submitted").result(50)

        def handle(_message: MessageView) -> None:
            with tracer.start_as_current_span("inside"):
                consumer.stop()

        with sync.Consumer("t", "c", address, hooks=telemetry.hooks, max_in_flight=1) as consumer:
            consumer.run(handle)
        with sync.Consumer("t", "c", address) as consumer:
            message = next(iter(consumer))
            with pytest.raises(KeyError), process_span(message, "t", "c", telemetry.tracers):
                raise KeyError("on purpose")
            message.finish()

    async with Broker() as broker:
        await asyncio.to_thread(work, broker.tcp_address)
    (request,) = telemetry.named("request")
    published, processed = telemetry.named("publish t"), telemetry.named("process t")
    assert [is_child(span, request) for span in published] == [True] * 3
    assert [linked(span) for span in processed] == [[item] for item in contexts(published[:2])]
    (inside,) = telemetry.named("inside")
    handled, iterated = processed
    assert is_child(inside, handled)
    assert attribute(iterated, "error.type") == "KeyError"
    assert attribute(iterated, "messaging.message.id")


async def test_a_message_without_room_goes_without_a_trace(telemetry: Telemetry) -> None:
    """A trace refuses no message that would be stored without one."""
    name = "x"
    room = MAX_BYTES - len(Properties(headers={name: ""}).pack())
    async with Broker() as broker:
        async with Producer(broker.tcp_address, hooks=telemetry.hooks) as producer:
            await producer.publish("t", b"full", headers={name: "y" * room})
            await producer.publish("t", b"nearly", headers={name: "y" * (room - 70)})
        async with Consumer("t", "c", broker.tcp_address) as consumer:
            full, nearly = [await anext(consumer) for _ in range(2)]
            assert full.properties.headers == {name: "y" * room}
            assert set(nearly.properties.headers) == {name, "traceparent"}


async def test_without_an_sdk_messages_stay_as_they_are() -> None:
    hooks = otel_hooks(trace.NoOpTracerProvider())
    async with Broker() as broker:
        async with Producer(broker.tcp_address, hooks=hooks) as producer:
            await producer.publish("t", b"x")
        async with Consumer("t", "c", broker.tcp_address) as consumer:
            assert not (await anext(consumer)).properties
