"""One session on one node: computes its steps in order and hands the results on.

:class:`ShardSession` is what all have in common. :class:`SeamSession` here is driven by the node
before it; the head's, which drives the whole chain, is in ``meshnet.node.head``.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from meshnet.domain.errors import (
    CacheMissError,
    DeadlineExceededError,
    EngineError,
    InternalError,
    MeshnetError,
    NodeError,
    NodeUnreachableError,
    ResourceExhaustedError,
    StaleEpochError,
    status_of,
)
from meshnet.domain.frames import (
    NOTHING_UNKNOWN,
    ChunkInfo,
    DecodeFrame,
    DecodeStep,
    OpenSession,
    PrefillChunk,
    Release,
    SessionFailed,
    SessionKey,
    SessionOpened,
    SessionReleased,
    SessionTerms,
    StepAck,
    TokenReply,
    Unknown,
)
from meshnet.domain.generation import GeneratedToken
from meshnet.domain.ids import NodeId
from meshnet.domain.lifecycle import CacheExpectation, CacheMode, SessionLifecycle, SessionState
from meshnet.domain.nodes import FlowControl, HopTimings
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.tensors import BoundaryBundle
from meshnet.engine.base import (
    DecodeRequest,
    EngineCapabilities,
    PrefillRequest,
    ShardEngine,
    StepRequest,
    StepResult,
    TokenChoice,
)
from meshnet.node.blame import at_node
from meshnet.node.downstream import HOP_TIMEOUT_SECONDS, Downstream
from meshnet.node.stepper import EngineStepper
from meshnet.transport.base import ServerSeam
from meshnet.transport.channel import ChannelPool

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What every session of a node works with."""

    node_id: NodeId
    engine: ShardEngine
    capabilities: EngineCapabilities
    stepper: EngineStepper
    channels: ChannelPool
    flow: FlowControl


@dataclass(slots=True)
class TokenHistory:
    """The tokens so far, as far back as the penalties look."""

    params: SamplingParams
    tokens: list[int]

    def choice(self) -> TokenChoice:
        """How the next token is to be chosen."""
        if not self.params.needs_history:
            return TokenChoice(self.params)
        return TokenChoice(self.params, tuple(recent(self.tokens, self.params)))


def recent(tokens: list[int] | tuple[int, ...], params: SamplingParams) -> list[int]:
    """The last tokens, as many as the penalties look at; none if no penalty is on."""
    if not params.needs_history:
        return []
    return list(tokens if params.penalty_last_n < 0 else tokens[-params.penalty_last_n :])


class ShardSession(abc.ABC):
    """A session's state on this node, and the task that does its work."""

    def __init__(
        self,
        parts: NodeParts,
        terms: SessionTerms,
        upstream: ServerSeam,
        handle: int,
        history: TokenHistory,
    ) -> None:
        self.parts = parts
        self.terms = terms
        self.handle = handle
        self._upstream = upstream
        self._history = history
        self._downstream: Downstream | None = None
        self._lifecycle = SessionLifecycle(str(terms.key))
        self._timings = HopTimings(parts.node_id, terms.hops[0].layers)
        self._handed_on = 0
        self._ended: Callable[[ShardSession], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def key(self) -> SessionKey:
        """The session's name and epoch."""
        return self.terms.key

    def start(self, ended: Callable[[ShardSession], None]) -> None:
        """Begin the work; ``ended`` is called once when the session is over on this node."""
        loop = asyncio.get_running_loop()
        self._ended = ended
        self._task = loop.create_task(self._guarded(), name=f"session {self.key}")
        if self.terms.deadline_unix_nanos:
            left = (self.terms.deadline_unix_nanos - time.time_ns()) / 1e9
            self._expiry = loop.call_later(max(left, 0.0), self._expire)

    @abc.abstractmethod
    async def _work(self) -> None:
        """The session's whole life after it was accepted."""

    @abc.abstractmethod
    def token_returned(self, reply: TokenReply) -> None:
        """The token of an earlier step, from this tail or from the nodes behind."""

    def fail(self, error: MeshnetError, state: SessionState = SessionState.FAILED) -> None:
        """End with an error: it is told to the node before, the nodes behind are cancelled."""
        if self._ended is None:
            return
        self._upstream.send(SessionFailed(self.handle, status_of(error)))
        self._end(state, error.message)

    def cancel(self, reason: str) -> None:
        """End without a word to the node before; the nodes behind are cancelled."""
        if self._ended is not None:
            self._end(SessionState.CANCELLED, reason)

    def _end(self, state: SessionState, reason: str | None) -> None:
        """Free all that the session holds. A reason means that it didn't end by itself."""
        ended, self._ended = self._ended, None
        self._lifecycle.move(state, reason or "")
        if self._expiry is not None:
            self._expiry.cancel()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        engine = self.parts.engine
        drop = engine.cancel if state is SessionState.CANCELLED else engine.release
        self.parts.stepper.post(drop, self.key)
        if ended is not None:
            ended(self)
        if self._downstream is not None:
            self._downstream.leave(reason)

    def _expire(self) -> None:
        self.fail(DeadlineExceededError(f"session {self.key} ran past its deadline"))

    async def _guarded(self) -> None:
        try:
            await self._work()
        except MeshnetError as error:
            self.fail(at_node(error, self.terms.hops[0]))
        except Exception as error:
            LOGGER.exception("a session failed in an unforeseen way")
            fault = InternalError(f"{type(error).__name__}: {error}")
            self.fail(at_node(fault, self.terms.hops[0]))

    async def _open_downstream(self, unknown: Unknown = NOTHING_UNKNOWN) -> None:
        """Open the session on the nodes behind; nothing to do on a tail."""
        if len(self.terms.hops) == 1:
            return
        hop = self.terms.hops[1]
        try:
            channel = await self.parts.channels.channel(hop.address, HOP_TIMEOUT_SECONDS)
        except NodeError as error:
            raise NodeUnreachableError(
                f"can't reach node {hop}: {error.message}",
                node=hop.node_id,
                layers=str(hop.layers),
            ) from error
        self._downstream = Downstream(self, channel, hop, len(self.terms.hops) - 2)
        await self._downstream.open(
            OpenSession(
                self._downstream.handle,
                replace(self.terms, hops=self.terms.hops[1:]),
                self._history.params,
                tuple(self._history.tokens),
                self.parts.flow,
                unknown,
            )
        )

    async def _step(
        self,
        request: StepRequest,
        chunk: ChunkInfo | None,
        unknown: Unknown = NOTHING_UNKNOWN,
        meanwhile: Callable[[], None] | None = None,
    ) -> StepResult:
        """Compute a step and hand its result on: a boundary downstream, or the tail's token.

        ``meanwhile`` is called while the engine computes.
        """
        self._lifecycle.require_live()
        done = await self.parts.stepper.run(request, meanwhile)
        result = done.result
        self._lifecycle.move(SessionState.ACTIVE)
        self._time_step(request, result.engine_nanos, done.queued_nanos, chunk)
        if self._downstream is None:
            if chunk is None or chunk.final:
                self._choose(request, result)
        elif chunk is not None:
            await self._downstream.send_chunk(
                self._chunk_frame(self._downstream.handle, request, chunk, result, unknown)
            )
        else:
            tensor = self._boundary(result, request.rows).tensors[0]
            step = request.idempotency_step
            frame = DecodeStep(
                self._downstream.handle, request.position, step, tensor, unknown=unknown
            )
            self._downstream.send(DecodeFrame((frame,)))
        self._handed_on = time.perf_counter_ns()
        return result

    def _choose(self, request: StepRequest, result: StepResult) -> None:
        output = result.token()
        if output.token_id >= self.parts.capabilities.n_vocab:
            raise EngineError(f"the engine chose token {output.token_id}, which doesn't exist")
        if not result.duplicate and self._history.params.needs_history:
            self._history.tokens.append(output.token_id)
        position = request.position + request.rows
        token = GeneratedToken(position, output.token_id, output.logprob, output.top_logprobs)
        self.token_returned(TokenReply(self.handle, request.idempotency_step, token))

    def _chunk_frame(
        self,
        handle: int,
        request: StepRequest,
        chunk: ChunkInfo,
        result: StepResult,
        unknown: Unknown,
    ) -> PrefillChunk:
        return PrefillChunk(
            handle,
            self.key,
            chunk,
            request.position,
            request.idempotency_step,
            request.expectation,
            self._boundary(result, request.rows),
            unknown,
        )

    def _boundary(self, result: StepResult, rows: int) -> BoundaryBundle:
        boundary = result.boundary()
        shape = (rows, self.parts.capabilities.n_embd)
        if boundary.tensors[0].shape != shape:
            raise EngineError(
                f"the engine gave a boundary of shape {boundary.tensors[0].shape}, not {shape}"
            )
        return boundary

    def _time_step(
        self, request: StepRequest, engine_nanos: int, queued_nanos: int, chunk: ChunkInfo | None
    ) -> None:
        old = self._timings
        if chunk is not None:
            self._timings = replace(
                old,
                prefill_tokens=old.prefill_tokens + request.rows,
                prefill_engine_nanos=old.prefill_engine_nanos + engine_nanos,
            )
        else:
            self._timings = replace(
                old,
                decode_steps=old.decode_steps + 1,
                decode_engine_nanos=old.decode_engine_nanos + engine_nanos,
                decode_queue_nanos=old.decode_queue_nanos + queued_nanos,
            )

    def _time_return(self) -> None:
        """Note the time from handing a decode step on to its token's return."""
        if self._timings.decode_steps and self._downstream is not None:
            waited = time.perf_counter_ns() - self._handed_on
            total = self._timings.decode_downstream_nanos + waited
            self._timings = replace(self._timings, decode_downstream_nanos=total)


class SeamSession(ShardSession):
    """A session on a middle or tail shard: does what the node before it sends."""

    def __init__(self, parts: NodeParts, request: OpenSession, upstream: ServerSeam) -> None:
        history = TokenHistory(request.sampling, list(request.history))
        super().__init__(parts, request.terms, upstream, request.handle, history)
        self._unknown = request.unknown
        self._inbox: asyncio.Queue[PrefillChunk | DecodeStep | Release] = asyncio.Queue()

    def push(self, frame: PrefillChunk | DecodeStep | Release) -> None:
        """Queue a frame; frames are worked on in order.

        One of another epoch ends the session, and so does one more than the credits allow.
        """
        if isinstance(frame, PrefillChunk) and frame.key != self.key:
            self.fail(StaleEpochError(f"a chunk of {frame.key} came for session {self.key}"))
        elif self._inbox.qsize() > self.parts.flow.chunk_credits:
            self.fail(
                ResourceExhaustedError(
                    f"session {self.key} sent more than its {self.parts.flow.chunk_credits} "
                    f"unanswered chunks"
                )
            )
        else:
            self._inbox.put_nowait(frame)

    def token_returned(self, reply: TokenReply) -> None:
        """Pass the token on towards the head."""
        self._time_return()
        self._upstream.send(replace(reply, handle=self.handle))

    async def _work(self) -> None:
        await self._open_downstream(self._unknown)
        self._upstream.send(SessionOpened(self.handle, self.parts.flow))
        while True:
            frame = await self._inbox.get()
            if isinstance(frame, PrefillChunk):
                await self._prefill(frame)
            elif isinstance(frame, DecodeStep):
                await self._decode(frame)
            else:
                await self._release()
                return

    async def _prefill(self, frame: PrefillChunk) -> None:
        request = PrefillRequest(
            self.key,
            frame.position,
            frame.expectation,
            frame.step,
            input=frame.boundary,
            choice=self._history.choice(),
        )
        result = await self._step(request, frame.chunk, frame.unknown)
        self._acknowledge(frame.step, result)

    async def _decode(self, frame: DecodeStep) -> None:
        if frame.expected_past_len not in (None, frame.position):
            raise CacheMissError(
                f"step {frame.step} of session {self.key} is at position {frame.position}, but "
                f"expects a cache of {frame.expected_past_len}"
            )
        request = DecodeRequest(
            self.key,
            frame.position,
            CacheExpectation(CacheMode.EXACT, frame.position),
            frame.step,
            input=BoundaryBundle((frame.tensor,)),
            choice=self._history.choice(),
        )
        result = await self._step(request, None, frame.unknown)
        if result.duplicate:
            self._acknowledge(frame.step, result)

    def _acknowledge(self, step: int, result: StepResult) -> None:
        """A chunk is always acknowledged; a decode step is by its token, unless it came twice."""
        if result.cache_result is not None:
            self._upstream.send(StepAck(self.handle, step, result.duplicate, result.cache_result))

    async def _release(self) -> None:
        behind = () if self._downstream is None else await self._downstream.release()
        self._upstream.send(SessionReleased(self.handle, (self._timings, *behind)))
        self._end(SessionState.RELEASED, None)
