"""An SDK of OpenTelemetry that keeps what a client's hooks report."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from martlet.client.otel import otel_hooks


class Telemetry:
    """The spans and metrics of clients with its hooks."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.hooks = otel_hooks(self.tracers, MeterProvider([self._reader]))

    def all(self) -> Sequence[ReadableSpan]:
        return self._spans.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def sums(self) -> dict[str, float]:
        """Return the value of each counter and the number of records of each histogram."""
        data = self._reader.get_metrics_data()
        assert data is not None
        sums: dict[str, float] = {}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.data.data_points:
                value = getattr(point, "value", None)
                sums[metric.name] = sums.get(metric.name, 0) + (
                    point.count if value is None else value  # type: ignore[union-attr]
                )
        return sums


def attribute(span: ReadableSpan, name: str) -> object:
    assert span.attributes is not None
    return span.attributes.get(name)


def is_child(span: ReadableSpan, parent: trace.Span | ReadableSpan) -> bool:
    context = parent.get_span_context()
    return bool(span.parent and context and span.parent.span_id == context.span_id)
