"""One generation over two nodes is one trace: request, session, and what each node did."""

import itertools

import httpx
import pytest

from meshnet.domain.errors import EngineError
from meshnet.domain.tracing import CURRENT_TRACE, TraceContext, new_trace
from meshnet.engine.fixture import Fault, FaultKind
from meshnet.gateway.app import create_app
from meshnet.gateway.config import GatewayConfig
from tests.support.mesh import Setup, ask, mesh, prompt_of
from tests.support.spans import KeptSpans

PROMPT = prompt_of(20)
"""Three chunks of the mesh's eight tokens."""
HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("grpc", [False, True], ids=["loopback", "grpc"])
async def test_every_node_s_spans_are_below_the_session_in_one_trace(grpc):
    kept = KeptSpans()
    async with mesh((3,), Setup(tracer=kept.tracer, grpc=grpc)) as chain:
        await ask(await chain.model(), PROMPT, 6)
    session = kept.one("meshnet.session")
    assert {span.trace_id for span in kept.all()} == {session.trace_id}
    shards = kept.named("meshnet.shard")
    assert all(shard.below(session) for shard in shards)
    held = [span.attributes["meshnet.node.id"] for span in shards]
    assert sorted(held) == ["node-1", "node-2"]
    for shard in shards:
        for name in ("meshnet.prefill", "meshnet.decode"):
            assert sum(span.below(shard) for span in kept.named(name)) == 1


async def test_a_phase_is_one_span_with_sums_and_an_event_a_chunk():
    kept = KeptSpans()
    async with mesh((3,), Setup(tracer=kept.tracer)) as chain:
        await ask(await chain.model(), PROMPT, 6)
    for prefill in kept.named("meshnet.prefill"):
        assert [event.attributes["meshnet.rows"] for event in prefill.events] == [8, 8, 4]
        assert prefill.attributes["meshnet.rows"] == len(PROMPT)
    for decode in kept.named("meshnet.decode"):
        assert decode.attributes["meshnet.steps"] == 5
        assert decode.attributes["meshnet.engine_ms"] > 0
    assert not kept.named("meshnet.token")


async def test_a_span_lies_within_its_parent_and_events_within_their_span():
    kept = KeptSpans()
    async with mesh((3,), Setup(tracer=kept.tracer)) as chain:
        await ask(await chain.model(), PROMPT, 6)
    for parent, span in itertools.product(kept.all(), kept.all()):
        if span.below(parent) and parent.name != "meshnet.session":
            assert parent.began <= span.began <= span.ended <= parent.ended
    for span in kept.all():
        assert all(span.began <= event.at <= span.ended for event in span.events)


async def test_every_token_s_step_is_a_span_where_that_is_asked_for():
    kept = KeptSpans(detail=True)
    async with mesh((3,), Setup(tracer=kept.tracer)) as chain:
        await ask(await chain.model(), PROMPT, 6)
    tokens = kept.named("meshnet.token")
    for decode in kept.named("meshnet.decode"):
        own = [span for span in tokens if span.below(decode)]
        assert [span.attributes["meshnet.position"] for span in own] == [20, 21, 22, 23, 24]


async def test_the_session_goes_below_the_request_that_is_being_served():
    kept = KeptSpans()
    request = new_trace()
    async with mesh((), Setup(tracer=kept.tracer)) as chain:
        model = await chain.model()
        CURRENT_TRACE.set(request)
        await ask(model, PROMPT, 2)
    session = kept.one("meshnet.session")
    assert session.trace_id == request.trace_id
    assert session.parent_id == request.span_id


async def test_a_trace_that_nobody_samples_is_not_recorded_on_any_node():
    kept = KeptSpans()
    unsampled = TraceContext(new_trace().trace_id, new_trace().span_id, 0)
    async with mesh((3,), Setup(tracer=kept.tracer)) as chain:
        model = await chain.model()
        CURRENT_TRACE.set(unsampled)
        await ask(model, PROMPT, 2)
    assert not kept.all()


async def test_an_error_ends_its_node_s_span_and_the_session_s_with_its_code():
    kept = KeptSpans()
    fault = Fault(FaultKind.EXCEPTION, at_step=4)
    async with mesh((3,), Setup(tracer=kept.tracer, faults={1: (fault,)})) as chain:
        with pytest.raises(EngineError):
            await ask(await chain.model(), PROMPT, 6)
    failed = [span for span in kept.all() if span.failed]
    assert {span.attributes["error.type"] for span in failed} == {"engine_failed"}
    assert "meshnet.session" in {span.name for span in failed}


async def test_an_http_request_s_trace_reaches_the_last_node():
    kept = KeptSpans()
    async with mesh((3,), Setup(tracer=kept.tracer)) as chain:
        app = create_app([await chain.model()], GatewayConfig(), tracer=kept.tracer)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answer = await client.post(
                "/v1/completions",
                headers={"traceparent": HEADER},
                json={"model": "fixture", "prompt": "hello", "max_tokens": 3},
            )
    assert answer.status_code == 200
    request = kept.one("POST /v1/completions")
    assert request.parent_id == "b7ad6b7169203331"
    assert {span.trace_id for span in kept.all()} == {"0af7651916cd43dd8448eb211c80319c"}
    assert kept.one("meshnet.session").below(request)
    assert len(kept.named("meshnet.shard")) == 2
