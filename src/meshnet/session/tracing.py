"""One generation as a span: below the request that asked for it, above what its nodes do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from meshnet.domain.errors import MeshnetError
from meshnet.domain.tracing import CURRENT_TRACE, TraceContext, Tracer
from meshnet.session.service import GenerationSummary, TextDelta, TextRequest

Events = AsyncGenerator[TextDelta | GenerationSummary, None]


async def traced(
    tracer: Tracer,
    model: str,
    request: TextRequest,
    generate: Callable[[TextRequest, TraceContext], Events],
) -> Events:
    """The events of ``generate``, which is told its place in the trace; records a span of them.

    Attributes are named as OpenTelemetry names them for language models where it has a name.
    """
    span = tracer.begin(
        "meshnet.session",
        CURRENT_TRACE.get(),
        {"gen_ai.request.model": model, "gen_ai.usage.input_tokens": len(request.prompt)},
    )
    ended: dict[str, str | int | float] = {"meshnet.end": "left"}
    fault: MeshnetError | None = None
    try:
        async with aclosing(generate(request, span.context)) as events:
            async for event in events:
                if isinstance(event, GenerationSummary):
                    ended = _attributes(event)
                yield event
    except MeshnetError as error:
        ended, fault = {"meshnet.end": error.code.value}, error
        raise
    finally:
        span.end(ended, fault)


def _attributes(summary: GenerationSummary) -> dict[str, str | int | float]:
    return {
        "meshnet.end": summary.finish_reason.value,
        "gen_ai.usage.output_tokens": summary.completion_tokens,
        "meshnet.cached_tokens": summary.cached_tokens,
        "meshnet.first_token_ms": summary.seconds_to_first_token * 1e3,
        "meshnet.recoveries": len(summary.pauses),
    }
