"""What a session's clock sums up, and that it tells a tracer nothing while the session runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meshnet.domain.frames import ChunkInfo
from meshnet.domain.ids import NodeId
from meshnet.domain.lifecycle import CacheExpectation, CacheMode, CacheResult
from meshnet.domain.status import OK
from meshnet.domain.tracing import NO_TRACER, Span, TraceContext, new_trace
from meshnet.engine.base import DecodeRequest, PrefillRequest, StepRequest, StepResult, TokenOutput
from meshnet.node.clock import SessionClock
from meshnet.node.plan import StepDone
from tests.support.frames import KEY, TERMS

DONE = StepDone(
    StepResult(OK, TokenOutput(1), CacheResult(hit=True, past_len=9), engine_nanos=40), 7
)


@dataclass
class Told:
    """A tracer that remembers which spans were begun below what."""

    detail: bool = False
    begun: list[tuple[str, TraceContext | None]] = field(default_factory=list)

    def begin(
        self,
        name: str,
        parent: TraceContext | None,
        attributes: Mapping[str, object] | None = None,
        unix_nanos: int | None = None,
    ) -> Span:
        self.begun.append((name, parent))
        return NO_TRACER.begin(name, parent)


def decode() -> StepRequest:
    return DecodeRequest(KEY, 8, CacheExpectation(CacheMode.EXACT, 8), 3, token_ids=(1,))


def chunk() -> StepRequest:
    return PrefillRequest(KEY, 0, CacheExpectation(CacheMode.FRESH, 0), 0, token_ids=(1,) * 8)


def run(clock: SessionClock) -> None:
    """A prompt of one chunk, then two steps."""
    for request, info in ((chunk(), ChunkInfo(0, 1, 8, 8)), (decode(), None), (decode(), None)):
        clock.arrived()
        clock.computed()
        clock.handed_on(request, DONE, info, 0)
        clock.returned()


def test_the_sums_are_by_phase():
    clock = SessionClock(NodeId("node-1"), TERMS, NO_TRACER)
    run(clock)
    read = clock.read()
    assert (read.node_id, read.layers) == ("node-1", TERMS.hops[0].layers)
    assert (read.prefill_tokens, read.prefill_engine_nanos, read.prefill_queue_nanos) == (8, 40, 7)
    assert (read.decode_steps, read.decode_engine_nanos, read.decode_queue_nanos) == (2, 80, 14)
    assert read.prefill_began_nanos > 0
    assert read.prefill_span_nanos >= read.prefill_codec_nanos > 0
    assert read.decode_downstream_nanos > 0


def test_waiting_for_the_next_node_is_no_work_of_the_codec():
    clock = SessionClock(NodeId("node-1"), TERMS, NO_TRACER)
    clock.arrived()
    clock.computed()
    clock.handed_on(chunk(), DONE, ChunkInfo(0, 1, 8, 8), waited_nanos=10**9)
    assert clock.read().prefill_codec_nanos < 0 < clock.read().prefill_span_nanos


def test_a_tracer_hears_of_a_session_when_it_is_over_and_not_before():
    tracer = Told()
    terms = replace(TERMS, trace=new_trace())
    clock = SessionClock(NodeId("node-1"), terms, tracer)
    run(clock)
    assert tracer.begun == []
    clock.tell("released", None)
    assert tracer.begun == [("meshnet.shard", terms.trace)]


def test_a_session_without_a_trace_or_of_one_that_is_not_sampled_tells_nothing():
    for trace in (None, replace(new_trace(), flags=0)):
        tracer = Told(detail=True)
        clock = SessionClock(NodeId("node-1"), replace(TERMS, trace=trace), tracer)
        run(clock)
        clock.tell("released", None)
        assert tracer.begun == []
