"""Traces and metrics in memory: a provider for a block, the tree of the spans that it has recorded, the numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler


class Traces(logging.Handler):
    """The spans that have ended, and what OpenTelemetry has logged meanwhile."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        super().__init__()
        self.exporter = exporter
        self.logged: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.logged.append(record.getMessage())

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def events(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """The events of all spans of a name, in their order."""
        spans = [span for span in self.spans if span.name == name]
        return [(event.name, dict(event.attributes or {})) for span in spans for event in span.events]

    def tree(self, told: Callable[[ReadableSpan], str] = lambda span: span.name) -> str:
        """The names of the spans, indented; siblings sorted by name, since those of branches begin in any order."""
        return tree_of(self.spans, told)

    def clear(self) -> None:
        self.exporter.clear()


def tree_of(spans: Sequence[ReadableSpan], told: Callable[[ReadableSpan], str] = lambda span: span.name) -> str:
    ids = {span.context.span_id for span in spans}
    below: dict[int | None, list[ReadableSpan]] = {}
    for span in spans:
        parent = None if span.parent is None or span.parent.span_id not in ids else span.parent.span_id
        below.setdefault(parent, []).append(span)

    def lines(span: ReadableSpan, depth: int) -> Iterator[str]:
        yield "  " * depth + told(span)
        for child in sorted(below.get(span.context.span_id, ()), key=told):
            yield from lines(child, depth + 1)

    return "\n".join(line for root in below.get(None, ()) for line in lines(root, 0))


@contextmanager
def tracing(sampler: Sampler | None = None, processor: SpanProcessor | None = None) -> Iterator[Traces]:
    """A block in which the program traces. OpenTelemetry may log nothing in it."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    if processor is not None:
        provider.add_span_processor(processor)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces, logger = Traces(exporter), logging.getLogger("opentelemetry")
    logger.addHandler(traces)
    before = trace.get_tracer_provider
    trace.get_tracer_provider = lambda: provider  # OpenTelemetry lets a process set a provider once
    try:
        yield traces
    finally:
        trace.get_tracer_provider = before
        logger.removeHandler(traces)
    assert traces.logged == []


class Meter:
    """What a reader of metrics is told."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self.reader = reader

    def points(self) -> Iterator[tuple[str, dict[str, Any], float]]:
        """Instrument, attributes and value of each number; of the duration, how many were recorded."""
        data = self.reader.get_metrics_data()
        for resource in () if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                assert scope.scope.name == "dspyer"
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        value = point.value if isinstance(point, NumberDataPoint) else point.count
                        yield metric.name.removeprefix("dspyer."), dict(point.attributes or {}), value

    def counted(self) -> dict[str, float]:
        """What is not 0, as `"steps One.a"`, without the times of stores and the active runs, which there are none."""
        found = {f"{name} {'.'.join(map(str, told.values()))}": value for name, told, value in self.points() if value}
        assert not [name for name in found if name.startswith("runs.active")]
        return {name: value for name, value in found.items() if not name.startswith("store.")}


@contextmanager
def metering(**options: Any) -> Iterator[Meter]:
    """A block in which the program counts."""
    reader = InMemoryMetricReader(**options)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    before = metrics.get_meter_provider
    metrics.get_meter_provider = lambda: provider  # as above
    try:
        yield Meter(reader)
    finally:
        metrics.get_meter_provider = before
