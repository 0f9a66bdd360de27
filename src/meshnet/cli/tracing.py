"""Whether and where traces are sent; quick to import, also for those who send none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.tracing import NO_TRACER, Tracer
from meshnet.node.config import TraceConfig


def trace_config(otlp: str | None, endpoint: str | None, *, tokens: bool) -> TraceConfig | None:
    """What ``--otlp``, or else the environment's ``endpoint``, asks for; None for neither.

    An environment is often made for other programs: without the SDK its ``endpoint`` is passed over
    with a note. Raises ``InvalidArgumentError`` for what is no HTTP URL.
    """
    if otlp is None and endpoint is not None and not _sdk_is_there():
        return None
    url = endpoint if otlp is None else otlp
    if url is None:
        if tokens:
            raise InvalidArgumentError("trace-tokens", "it needs --otlp to say where traces go")
        return None
    if not _is_http(url):
        field = "OTEL_EXPORTER_OTLP_ENDPOINT" if otlp is None else "otlp"
        raise InvalidArgumentError(field, f"{url!r} isn't a URL like http://127.0.0.1:4318")
    return TraceConfig(url, tokens)


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        # Half of an IPv6 address, or a port that is no number.
        return False


def _sdk_is_there() -> bool:
    try:
        import meshnet.cli.otlp  # noqa: F401
    except InvalidArgumentError as error:
        # Imported here: workers, which come this way too, print nothing for people.
        from meshnet.cli.output import print_note

        print_note(f"OTEL_EXPORTER_OTLP_ENDPOINT is set, but no traces are sent: {error.message}")
        return False
    return True


@contextmanager
def tracer_for(traces: TraceConfig | None, service: str, instance: str) -> Iterator[Tracer]:
    """A tracer that sends what ``traces`` says, or nothing, as ``service`` and ``instance``.

    Raises ``InvalidArgumentError`` if the SDK isn't installed.
    """
    if traces is None:
        yield NO_TRACER
        return
    from meshnet.cli.otlp import exporting_tracer

    with exporting_tracer(traces.url, service, instance, detail=traces.tokens) as tracer:
        yield tracer
