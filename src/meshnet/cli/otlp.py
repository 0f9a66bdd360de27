"""Spans sent to an OpenTelemetry collector over OTLP/HTTP, with OpenTelemetry's own SDK.

Imported only by who exports: the SDK is the optional extra ``telemetry``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from meshnet.domain.errors import InvalidArgumentError, MeshnetError
from meshnet.domain.tracing import Attributes, Span, SpanEvent, TraceContext

try:
    from opentelemetry import trace as otel
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
except ImportError as error:
    raise InvalidArgumentError(
        "otlp", f"traces need the extra `telemetry`: pip install 'meshnet[telemetry]' ({error})"
    ) from error

TRACES_PATH = "/v1/traces"
MAX_EVENTS = 1024
"""Of one span; a chunk of a prompt is one, so that 128 of them, the SDK's default, are few."""
DELAY_MILLIS = 500.0
"""How long spans are collected before they leave together."""
EXPORT_SECONDS = 5.0
"""How long the collector may take for one batch."""
FLUSH_SECONDS = 0.4
"""How long the last spans may take to leave when the process ends; less than a worker's grace."""


class OtelTracer:
    """A :class:`~meshnet.domain.tracing.Tracer` over the SDK. It records what is sampled."""

    def __init__(self, provider: TracerProvider, *, detail: bool = False) -> None:
        self._tracer = provider.get_tracer("meshnet")
        self._detail = detail

    @property
    def detail(self) -> bool:
        """See the protocol."""
        return self._detail

    def begin(
        self,
        name: str,
        parent: TraceContext | None,
        attributes: Attributes | None = None,
        unix_nanos: int | None = None,
    ) -> Span:
        """See the protocol."""
        span = self._tracer.start_span(
            name, _below(parent), attributes=attributes, start_time=unix_nanos
        )
        return _OtelSpan(span)


class _OtelSpan:
    def __init__(self, span: otel.Span) -> None:
        self._span = span
        held = span.get_span_context()
        self.context = TraceContext(
            otel.format_trace_id(held.trace_id),
            otel.format_span_id(held.span_id),
            int(held.trace_flags),
        )

    @property
    def recording(self) -> bool:
        return self._span.is_recording()

    def event(self, event: SpanEvent) -> None:
        self._span.add_event(event.name, event.attributes, event.unix_nanos)

    def end(
        self,
        attributes: Attributes | None = None,
        error: MeshnetError | None = None,
        unix_nanos: int | None = None,
    ) -> None:
        if attributes:
            self._span.set_attributes(attributes)
        if error is not None:
            self._span.set_attribute("error.type", error.code.value)
            self._span.set_status(otel.Status(otel.StatusCode.ERROR, error.message))
        self._span.end(unix_nanos)


def _below(parent: TraceContext | None) -> Context:
    """The SDK's form of a place in a trace; an empty one begins a trace."""
    if parent is None:
        return Context()
    remote = otel.SpanContext(
        int(parent.trace_id, 16),
        int(parent.span_id, 16),
        is_remote=True,
        trace_flags=otel.TraceFlags(parent.flags),
    )
    return otel.set_span_in_context(otel.NonRecordingSpan(remote), Context())


@contextmanager
def exporting_tracer(
    url: str, service: str, instance: str, *, detail: bool = False
) -> Iterator[OtelTracer]:
    """A tracer whose spans go to the collector at ``url``, a base URL such as ``http://host:4318``.

    ``service`` and ``instance`` name the sender. Spans leave from a thread of their own; a
    collector that isn't there costs the spans, and a line in the log.
    """
    endpoint = url if url.endswith(TRACES_PATH) else url.rstrip("/") + TRACES_PATH
    resource = Resource.create({"service.name": service, "service.instance.id": instance})
    limits = SpanLimits(max_events=MAX_EVENTS)
    provider = TracerProvider(resource=resource, span_limits=limits, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=DELAY_MILLIS))
    try:
        yield OtelTracer(provider, detail=detail)
    finally:
        # The SDK's own shutdown waits for as long as an export takes.
        flushing = threading.Thread(target=provider.shutdown, daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)
