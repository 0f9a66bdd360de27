"""A tracer over OpenTelemetry's SDK that keeps its spans in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from meshnet.cli.otlp import OtelTracer


@dataclass(frozen=True, slots=True)
class KeptEvent:
    """Something that happened within a span."""

    at: int
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KeptSpan:
    """A span that has ended; ids in hexadecimal digits, as in a ``traceparent``."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    began: int
    ended: int
    failed: bool
    attributes: Mapping[str, Any]
    events: tuple[KeptEvent, ...]

    def below(self, parent: KeptSpan) -> bool:
        """Whether this span is a child of another."""
        return (self.trace_id, self.parent_id) == (parent.trace_id, parent.span_id)


class KeptSpans:
    """What was recorded, in the order of the spans' ends."""

    def __init__(self, *, detail: bool = False) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = OtelTracer(provider, detail=detail)

    def all(self) -> list[KeptSpan]:
        """Every span that has ended."""
        return [_kept(span) for span in self._exporter.get_finished_spans()]

    def named(self, name: str) -> list[KeptSpan]:
        """Those of one name."""
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> KeptSpan:
        """The only one of a name."""
        (span,) = self.named(name)
        return span


def _kept(span: ReadableSpan) -> KeptSpan:
    context = span.get_span_context()
    assert context is not None
    assert span.start_time is not None
    assert span.end_time is not None
    return KeptSpan(
        span.name,
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
        None if span.parent is None else f"{span.parent.span_id:016x}",
        span.start_time,
        span.end_time,
        not span.status.is_ok,
        span.attributes or {},
        tuple(KeptEvent(event.timestamp, event.attributes or {}) for event in span.events),
    )
