"""Spans and metrics by OpenTelemetry: hooks that follow its conventions for messaging.

::

    pip install '.[otel]'        # in a clone: the API; the application brings the SDK

    from martlet.client.otel import otel_hooks

    hooks = otel_hooks()
    async with Producer(hooks=hooks) as producer: ...

Each call of ``publish``, ``submit`` or ``publish_many`` is a span of kind producer, a child of the
caller's span; each message in a handler a span of kind consumer, which is current while the handler
runs; a pull consumer's group is its consumer group.  The two are not linked: NSQ's messages carry
no headers, see `martlet.client.hooks`. Messages taken by iterating or in batches are counted, but
have no spans, since nothing shows when their handling ends.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any

from martlet import __version__
from martlet.client.hooks import Handling, Hooks, Publishing
from martlet.extras import how_to_install

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

SCOPE = "martlet.client"
SYSTEM = "nsq"


def otel_hooks(
    tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Hooks:
    """Return hooks that make spans and metrics; by default with the global providers.

    Raises:
        ImportError: opentelemetry-api is not installed.
    """
    try:
        from opentelemetry import metrics, trace
    except ImportError as error:
        raise ImportError(f"otel_hooks needs opentelemetry: {how_to_install('otel')}") from error
    tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
    meter = metrics.get_meter(SCOPE, __version__, meter_provider)
    return _Telemetry(tracer, meter).hooks()


class _Telemetry:
    """Make spans and metrics."""

    def __init__(self, tracer: Any, meter: Any) -> None:
        from opentelemetry import context, trace

        self._context = context
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
        call.state = self._tracer.start_span(
            f"publish {call.topic}", kind=self._trace.SpanKind.PRODUCER, attributes=attributes
        )

    def _published(self, call: Publishing, error: BaseException | None) -> None:
        span: Span = call.state
        span.set_attribute("messaging.batch.message_count", call.message_count)
        span.set_attribute("messaging.message.body.size", call.size_bytes)
        attributes = _operation("publish", "send", call.topic) | self._outcome(span, error)
        self._sent.add(call.message_count, attributes)
        self._publish_s.record(call.age_s(), attributes)
        span.end()

    def _handle(self, call: Handling) -> None:
        message = call.message
        attributes: dict[str, Any] = {
            **_operation("process", "process", call.topic),
            **_group(call),
            "messaging.message.id": message.id.decode("ascii", "replace"),
            "messaging.message.body.size": len(message.body),
            "martlet.message.attempts": message.attempts,
        }
        span = self._tracer.start_span(
            f"process {call.topic}", kind=self._trace.SpanKind.CONSUMER, attributes=attributes
        )
        call.state = span, self._context.attach(self._trace.set_span_in_context(span))

    def _handled(self, call: Handling, error: BaseException | None) -> None:
        span, token = call.state
        self._context.detach(token)
        attributes = {
            **_operation("process", "process", call.topic),
            **_group(call),
            **self._outcome(span, error),
        }
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


def _group(call: Handling) -> dict[str, str]:
    return {"messaging.consumer.group.name": call.channel} if call.channel else {}


def _server(address: str) -> dict[str, str | int]:
    host, _, port = address.rpartition(":")
    return {
        "messaging.system": SYSTEM,
        "server.address": host.strip("[]"),
        "server.port": int(port),
    }
