"""Spans and metrics by OpenTelemetry: hooks that follow its conventions for messaging.

::

    pip install '.[otel]'        # in a clone: the API; the application brings the SDK

    from martlet.client.otel import otel_hooks

    hooks = otel_hooks()
    async with Producer(hooks=hooks) as producer: ...

Each call that publishes or sends is a span of kind producer, a child of the caller's span. The
messages carry its context in their headers (W3C's ``traceparent``, or what ``OTEL_PROPAGATORS``
says). Each message in a handler is a span of kind consumer, which is current while the handler runs
and has a link to the span of its publish: also after a restart of the broker, as a dead letter, and
when it is redriven. A pull consumer's group is its consumer group.

A request is a span of kind client, up to its reply, with the span of its publish below it. The
reply is a publish of the consumer, below the span of its handler; the request has a link to it.

Messages taken by iterating or in batches are counted, but have no spans of their own, since nothing
shows when their handling ends: `process_span` makes one of a block. Without an SDK nothing is added
to messages.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from martlet import __version__
from martlet.client.consumer.batch import Decoded
from martlet.client.hooks import Handling, Hooks, Publishing, Requesting
from martlet.client.received import MessageView, ReceivedMessage
from martlet.properties.model import Properties
from martlet.text import how_to_install

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, TracerProvider

SCOPE = "martlet.client"
SYSTEM = "nsq"
MAX_LINKS = 128
"""The maximum number of publishes that the span of a batch links to: the SDK keeps no more."""


def otel_hooks(
    tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Hooks:
    """Return hooks that make spans and metrics; by default with the global providers. Raises
    ImportError: opentelemetry-api is not installed.
    """
    try:
        from opentelemetry import metrics, trace
    except ImportError as error:
        raise ImportError(f"otel_hooks needs opentelemetry: {how_to_install('otel')}") from error
    tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
    meter = metrics.get_meter(SCOPE, __version__, meter_provider)
    return _Telemetry(tracer, meter).hooks()


@contextmanager
def process_span(
    messages: Decoded | ReceivedMessage | MessageView,
    topic: str,
    channel: str = "",
    tracer_provider: TracerProvider | None = None,
) -> Iterator[Span]:
    """Make a span of a block that processes a message or a batch, linked to their publishes.

    ::

        async for batch in consumer.batches():
            with process_span(batch, "orders", "billing"):
                ...

    Args:
        messages: a batch, or one message.
        topic, channel: of the consumer; a pull consumer's group is the channel.
        tracer_provider: instead of the global one.

    Raises:
        ImportError: opentelemetry-api is not installed.
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ImportError(f"process_span needs opentelemetry: {how_to_install('otel')}") from error
    attributes = _process(topic, channel)
    if isinstance(messages, Decoded):
        attributes["messaging.batch.message_count"] = messages.count
        properties = messages.properties
    else:
        attributes |= _message(messages)
        properties = [messages.properties]
    with trace.get_tracer(SCOPE, __version__, tracer_provider).start_as_current_span(
        f"process {topic}",
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=_links(properties),
    ) as span:
        try:
            yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__qualname__)
            raise


class _Telemetry:
    """Make spans and metrics."""

    def __init__(self, tracer: Any, meter: Any) -> None:
        from opentelemetry import context, propagate, trace

        self._context = context
        self._inject = propagate.inject
        self._trace = trace
        self._tracer = tracer
        count = meter.create_counter
        self._sent = count("messaging.client.sent.messages", "{message}", "Messages published")
        self._consumed = count(
            "messaging.client.consumed.messages", "{message}", "Messages received"
        )
        self._finished = count("martlet.client.finished.messages", "{message}", "Finished")
        self._requeued = count("martlet.client.requeued.messages", "{message}", "Requeued")
        self._retried = count("martlet.client.retried.messages", "{message}", "To be sent again")
        self._lost = count("martlet.client.lost.connections", "{connection}", "Connections lost")
        time = meter.create_histogram
        self._publish_s = time("messaging.client.operation.duration", "s", "Time of a publish")
        self._handle_s = time("messaging.process.duration", "s", "Time of a handler")

    def hooks(self) -> Hooks:
        return Hooks(
            on_publish=self._publish,
            on_published=self._published,
            on_request=self._request,
            on_replied=self._replied,
            on_retried=lambda address, count: self._retried.add(count, _server(address)),
            on_received=lambda address, count, _size: self._consumed.add(count, _server(address)),
            on_handle=self._handle,
            on_handled=self._handled,
            on_finished=lambda address, count: self._finished.add(count, _server(address)),
            on_requeued=lambda address, count: self._requeued.add(count, _server(address)),
            on_lost=lambda address, _error: self._lost.add(1, _server(address)),
        )

    def _publish(self, call: Publishing) -> None:
        attributes = _operation("publish", "send", call.topic)
        span = self._tracer.start_span(
            f"publish {call.topic}", kind=self._trace.SpanKind.PRODUCER, attributes=attributes
        )
        call.state = span
        if span.get_span_context().is_valid:
            self._inject(call.headers, self._trace.set_span_in_context(span))

    def _published(self, call: Publishing, error: BaseException | None) -> None:
        span: Span = call.state
        if call.is_batch:
            span.set_attribute("messaging.batch.message_count", call.message_count)
        else:
            span.set_attribute("messaging.message.body.size", call.size_bytes)
        if call.message_id is not None:
            span.set_attribute("messaging.message.id", call.message_id.decode("ascii", "replace"))
        attributes = _operation("publish", "send", call.topic) | self._outcome(span, error)
        self._sent.add(call.message_count, attributes)
        self._publish_s.record(call.age_s(), attributes)
        span.end()

    def _request(self, call: Requesting) -> None:
        span = self._tracer.start_span(
            f"request {call.topic}",
            kind=self._trace.SpanKind.CLIENT,
            attributes=_operation("request", "send", call.topic)
            | {"messaging.message.body.size": call.size_bytes},
        )
        call.state = span, self._context.attach(self._trace.set_span_in_context(span))

    def _replied(self, call: Requesting, error: BaseException | None) -> None:
        span, token = call.state
        self._context.detach(token)
        attributes = _operation("request", "send", call.topic) | self._outcome(span, error)
        for link in _links([call.reply.properties] if call.reply is not None else []):
            span.add_link(link.context)
        self._publish_s.record(call.age_s(), attributes)
        span.end()

    def _handle(self, call: Handling) -> None:
        span = self._tracer.start_span(
            f"process {call.topic}",
            kind=self._trace.SpanKind.CONSUMER,
            attributes=_process(call.topic, call.channel) | _message(call.message),
            links=_links([call.message.properties]),
        )
        call.state = span, self._context.attach(self._trace.set_span_in_context(span))

    def _handled(self, call: Handling, error: BaseException | None) -> None:
        span, token = call.state
        self._context.detach(token)
        attributes = _process(call.topic, call.channel) | self._outcome(span, error)
        self._handle_s.record(call.age_s(), attributes)
        span.end()

    def _outcome(self, span: Span, error: BaseException | None) -> dict[str, str]:
        if error is None:
            return {}
        kind = type(error).__qualname__
        span.set_attribute("error.type", kind)
        if not isinstance(error, CancelledError):
            span.record_exception(error)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error) or kind))
        return {"error.type": kind}


def _operation(name: str, kind: str, topic: str) -> dict[str, str]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }


def _process(topic: str, channel: str) -> dict[str, Any]:
    group = {"messaging.consumer.group.name": channel} if channel else {}
    return _operation("process", "process", topic) | group


def _message(message: ReceivedMessage | MessageView) -> dict[str, Any]:
    return {
        "messaging.message.id": message.id.decode("ascii", "replace"),
        "messaging.message.body.size": len(message.body),
        "martlet.message.attempts": message.attempts,
    }


def _links(properties: Iterable[Properties]) -> list[Link]:
    """Return a link for each publish that messages with these properties come from."""
    from opentelemetry import context, propagate, trace

    # Messages of one publish share their properties.
    distinct = {id(one): one.headers for one in properties if one.headers}
    nothing = context.Context()
    texts = (
        {name: value for name, value in headers.items() if isinstance(value, str)}
        for headers in distinct.values()
    )
    spans = (
        trace.get_current_span(propagate.extract(headers, nothing)).get_span_context()
        for headers in texts
    )
    contexts = {(span.trace_id, span.span_id): span for span in spans if span.is_valid}
    return [trace.Link(context) for context in islice(contexts.values(), MAX_LINKS)]


def _server(address: str) -> dict[str, str | int]:
    host, _, port = address.rpartition(":")
    return {
        "messaging.system": SYSTEM,
        "server.address": host.strip("[]"),
        "server.port": int(port),
    }
