"""Where one session's time goes on one node: sums for the gateway, and spans for a trace."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from meshnet.domain.errors import MeshnetError
from meshnet.domain.frames import ChunkInfo, SessionTerms
from meshnet.domain.ids import NodeId
from meshnet.domain.nodes import HopTimings
from meshnet.domain.tracing import Attributes, Span, SpanEvent, Tracer
from meshnet.engine.base import StepRequest
from meshnet.node.plan import StepDone

MILLI = 1e-6
"""Milliseconds in a nanosecond."""


@dataclass(slots=True)
class _PhaseSums:
    """One phase's sums in nanoseconds, and when it began and last moved on."""

    rows: int = 0
    steps: int = 0
    engine: int = 0
    queue: int = 0
    codec: int = 0
    began: int = 0
    ended: int = 0


@dataclass(frozen=True, slots=True)
class _Step:
    """A step as a trace tells of it."""

    arrived: int
    ended: int
    position: int
    rows: int
    engine: int
    queue: int

    def attributes(self) -> Attributes:
        return {
            "meshnet.position": self.position,
            "meshnet.rows": self.rows,
            "meshnet.engine_ms": self.engine * MILLI,
            "meshnet.queue_ms": self.queue * MILLI,
        }


@dataclass(slots=True)
class SessionClock:
    """Told of each step's stages as they happen, in order; a step costs it about a microsecond."""

    node_id: NodeId
    terms: SessionTerms
    tracer: Tracer
    _accepted: int = field(default_factory=time.perf_counter_ns)
    _accepted_unix: int = field(default_factory=time.time_ns)
    _prefill: _PhaseSums = field(default_factory=_PhaseSums)
    _decode: _PhaseSums = field(default_factory=_PhaseSums)
    _arrived: int = 0
    _computed: int = 0
    _handed_on: int = 0
    _downstream: int = 0
    _boundary_bytes: int = 0
    _chunks: list[_Step] = field(default_factory=list)
    _tokens: list[_Step] = field(default_factory=list)
    _traced: bool = field(init=False)

    def __post_init__(self) -> None:
        self._traced = self.terms.trace is not None and self.terms.trace.sampled

    def arrived(self) -> None:
        """A step is about to be queued for the engine."""
        self._arrived = time.perf_counter_ns()

    def computed(self) -> None:
        """The engine has computed it."""
        self._computed = time.perf_counter_ns()

    def handed_on(
        self, request: StepRequest, done: StepDone, chunk: ChunkInfo | None, waited_nanos: int
    ) -> None:
        """What the step gave is on its way; for ``waited_nanos`` of that the next node was full."""
        now = self._handed_on = time.perf_counter_ns()
        sums = self._decode if chunk is None else self._prefill
        sums.began = sums.began or self._arrived
        sums.ended = now
        sums.steps += 1
        sums.rows += request.rows
        sums.engine += done.result.engine_nanos
        sums.queue += done.queued_nanos
        sums.codec += now - self._computed - waited_nanos
        if self._traced and (chunk is not None or self.tracer.detail):
            told = self._tokens if chunk is None else self._chunks
            engine, queue = done.result.engine_nanos, done.queued_nanos
            told.append(_Step(self._arrived, now, request.position, request.rows, engine, queue))

    def packed(self, boundary_bytes: int) -> None:
        """What a step gave is so large, and about to be handed on."""
        self._boundary_bytes += boundary_bytes

    def returned(self) -> None:
        """The token of the step that was handed on last came back from the nodes behind."""
        if self._decode.steps:
            now = self._decode.ended = time.perf_counter_ns()
            self._downstream += now - self._handed_on

    @property
    def engine_nanos(self) -> int:
        """Inside the engine's steps."""
        return self._prefill.engine + self._decode.engine

    def read(self) -> HopTimings:
        """The sums so far."""
        prefill, decode = self._prefill, self._decode
        return HopTimings(
            self.node_id,
            self.terms.hops[0].layers,
            prefill_tokens=prefill.rows,
            prefill_engine_nanos=prefill.engine,
            decode_steps=decode.steps,
            decode_engine_nanos=decode.engine,
            decode_queue_nanos=decode.queue,
            decode_downstream_nanos=self._downstream,
            prefill_queue_nanos=prefill.queue,
            prefill_codec_nanos=prefill.codec,
            prefill_began_nanos=prefill.began - self._accepted if prefill.steps else 0,
            prefill_span_nanos=prefill.ended - prefill.began,
            decode_codec_nanos=decode.codec,
            boundary_bytes=self._boundary_bytes,
        )

    def tell(self, how: str, error: MeshnetError | None) -> None:
        """The session is over: record its spans, if its trace is recorded here.

        Spans are begun in hindsight, with their times, so that nothing is recorded while it runs.
        """
        if not self._traced:
            return
        hop = self.terms.hops[0]
        held: Attributes = {"meshnet.node.id": hop.node_id, "meshnet.layers": str(hop.layers)}
        shard = self._begin("meshnet.shard", None, self._accepted, held)
        if shard.recording and self._prefill.steps:
            self._tell_prefill(shard, held)
        if shard.recording and self._decode.steps:
            self._tell_decode(shard, held)
        shard.end({"meshnet.end": how}, error)

    def _tell_prefill(self, shard: Span, held: Attributes) -> None:
        prefill = self._begin("meshnet.prefill", shard, self._prefill.began, held)
        for step in self._chunks:
            prefill.event(SpanEvent("chunk", self._unix(step.ended), step.attributes()))
        prefill.end(_sums(self._prefill), unix_nanos=self._unix(self._prefill.ended))

    def _tell_decode(self, shard: Span, held: Attributes) -> None:
        decode = self._begin("meshnet.decode", shard, self._decode.began, held)
        for step in self._tokens:
            token = self._begin("meshnet.token", decode, step.arrived, step.attributes())
            token.end(unix_nanos=self._unix(step.ended))
        sums = {**_sums(self._decode), "meshnet.downstream_ms": self._downstream * MILLI}
        decode.end(sums, unix_nanos=self._unix(self._decode.ended))

    def _begin(self, name: str, above: Span | None, at: int, attributes: Attributes) -> Span:
        parent = self.terms.trace if above is None else above.context
        return self.tracer.begin(name, parent, attributes, self._unix(at))

    def _unix(self, at: int) -> int:
        return self._accepted_unix + at - self._accepted


def _sums(phase: _PhaseSums) -> Attributes:
    return {
        "meshnet.steps": phase.steps,
        "meshnet.rows": phase.rows,
        "meshnet.engine_ms": phase.engine * MILLI,
        "meshnet.queue_ms": phase.queue * MILLI,
        "meshnet.codec_ms": phase.codec * MILLI,
    }
