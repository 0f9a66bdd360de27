"""One session on one node: computes its steps in order and hands the results on.

:class:`ShardSession` is what all have in common. A middle's or tail's session, which the node
before it drives, is in ``meshnet.node.seam_session``; the head's, which drives the whole chain, in
``meshnet.node.head``.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from meshnet.domain.errors import (
    CacheMissError,
    DeadlineExceededError,
    EngineError,
    InternalError,
    MeshnetError,
    NodeError,
    NodeUnreachableError,
    error_from,
    status_of,
)
from meshnet.domain.frames import (
    NOTHING_UNKNOWN,
    ChunkInfo,
    DecodeStep,
    OpenSession,
    PrefillChunk,
    ReturnPath,
    SessionFailed,
    SessionTerms,
    TokenReply,
    Unknown,
)
from meshnet.domain.generation import GeneratedToken
from meshnet.domain.ids import SessionKey
from meshnet.domain.lifecycle import CacheMode, SessionLifecycle, SessionState
from meshnet.domain.seamcounts import NodeSeamCounts, SeamCounts
from meshnet.domain.tensors import BoundaryBundle, DType
from meshnet.engine.base import DecodeRequest, PrefillRequest, StepRequest, StepResult
from meshnet.node.blame import at_node
from meshnet.node.clock import SessionClock
from meshnet.node.downstream import HOP_TIMEOUT_SECONDS, Downstream
from meshnet.node.history import TokenHistory
from meshnet.node.parts import NodeParts
from meshnet.node.places import Place
from meshnet.node.plan import StepDone
from meshnet.node.prefixes import fork_of, joined_pieces
from meshnet.node.stepper import MAX_DECODE_ROWS
from meshnet.transport.base import ServerSeam
from meshnet.transport.countersigning import openers_receipt
from meshnet.wire.narrow import narrowed

LOGGER = logging.getLogger(__name__)
MAX_SESSION_SECONDS = 3600.0
"""A session whose opener named no deadline ends after this time."""


class ShardSession(abc.ABC):
    """A session's state on this node, and the task that does its work."""

    counts: SeamCounts
    """What passes on the seam to the upstream."""
    place: Place
    """Set by the node when it lets the session in, before the start."""

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
        self._clock = SessionClock(parts.node_id, terms, parts.tracer)
        self._fault: MeshnetError | None = None
        self.heard = asyncio.get_running_loop().time()
        """When the upstream last said something, by the loop's clock."""
        self.keeps = False
        """Whether the cache stays when the session ends."""
        self._computing: asyncio.Future[StepDone] | None = None
        self._ended: Callable[[ShardSession], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def key(self) -> SessionKey:
        """The session's name and epoch."""
        return self.terms.key

    @property
    def boundary_dtype(self) -> DType:
        """What the session's seams carry; its fingerprint says it."""
        return self.parts.boundaries.get(self.terms.fingerprint, DType.FLOAT32)

    @property
    def engine_nanos(self) -> int:
        """How long the engine has worked on the session."""
        return self._clock.engine_nanos

    @property
    def over(self) -> bool:
        """Whether the session has ended on this node."""
        return self._ended is None

    @property
    def return_key(self) -> bytes | None:
        """What who brings the session's tokens must show; None if none come but by the seams."""
        return None

    @property
    def chunk_credits(self) -> int:
        """Chunks that the next node takes now; 0 on a tail."""
        return 0 if self._downstream is None else self._downstream.chunk_credits

    def start(self, ended: Callable[[ShardSession], None]) -> None:
        """Begin the work; ``ended`` is called once when the session is over on this node."""
        loop = asyncio.get_running_loop()
        self._ended = ended
        self._task = loop.create_task(self._guarded(), name=f"session {self.key}")
        left = MAX_SESSION_SECONDS
        if self.terms.deadline_unix_nanos:
            left = (self.terms.deadline_unix_nanos - time.time_ns()) / 1e9
        self._expiry = loop.call_later(max(left, 0.0), self._expire)

    @abc.abstractmethod
    async def _work(self) -> None:
        """The session's whole life after it was accepted."""

    @property
    @abc.abstractmethod
    def waits_for_upstream(self) -> bool:
        """Whether nothing happens here until the upstream says something."""

    @abc.abstractmethod
    def token_returned(self, reply: TokenReply) -> None:
        """The token of an earlier step, from this tail or from the nodes behind."""

    def fail(self, error: MeshnetError, state: SessionState = SessionState.FAILED) -> None:
        """End with an error: it is told to the node before, the nodes behind are cancelled."""
        if self._ended is None:
            return
        self._fault = error
        self.parts.stepper.figures.failed(error.code)
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
        self._clock.tell(state.value, self._fault)
        if self._expiry is not None:
            self._expiry.cancel()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        elif self._task is not None and state is not SessionState.RELEASED:
            # It is in the middle of its work, and would wait for what doesn't come any more.
            asyncio.get_running_loop().call_soon(self._task.cancel)
        if self._computing is not None:
            self._computing.cancel()
        self.keeps = self.keeps and state is SessionState.RELEASED
        if not self.keeps:
            engine = self.parts.engine
            drop = engine.cancel if state is SessionState.CANCELLED else engine.release
            self.parts.stepper.post(drop, self.key)
        self.parts.stepper.forget(self.key)
        if ended is not None:
            ended(self)
        if self._downstream is not None:
            self._downstream.leave(reason)

    def give_up(self) -> None:
        """The session has ended, and now what was kept of it goes too: tell the nodes behind."""
        if self._downstream is not None:
            self._downstream.give_up()

    def _expire(self) -> None:
        self.fail(DeadlineExceededError(f"session {self.key} ran past its deadline"))

    async def _guarded(self) -> None:
        try:
            await self._work()
        except Exception as error:  # noqa: BLE001 - ends the session, and is told
            self._fail_by(error)

    def _guard(self, act: Callable[[], None]) -> None:
        """Do what is part of the session's work, from outside of its task."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - ends the session, and is told
            self._fail_by(error)

    def _fail_by(self, error: Exception) -> None:
        if not isinstance(error, MeshnetError):
            key = self.terms.key
            LOGGER.error("session %s failed in an unforeseen way", key, exc_info=error)
            error = InternalError(f"{type(error).__name__}: {error}")
        self.fail(at_node(error, self.terms.hops[0]))

    async def _open_downstream(
        self, return_path: ReturnPath | None, unknown: Unknown = NOTHING_UNKNOWN
    ) -> None:
        """Open the session on the nodes behind; nothing to do on a tail."""
        if len(self.terms.hops) == 1:
            return
        (own, hop), parts = self.terms.hops[:2], self.parts
        try:
            channel = await parts.channels.channel(hop.address, HOP_TIMEOUT_SECONDS, hop.node_id)
        except NodeError as error:
            raise NodeUnreachableError(
                f"can't reach node {hop}: {error.message}",
                node=hop.node_id,
                layers=str(hop.layers),
            ) from error
        behind = replace(self.terms, hops=self.terms.hops[1:])
        book, counts = parts.channels.receipts, NodeSeamCounts()
        receipt = openers_receipt(book, own.layers, behind, counts, channel)
        self._downstream = Downstream(self, channel, hop, len(behind.hops) - 1, receipt)
        await self._downstream.open(
            OpenSession(
                self._downstream.handle,
                behind,
                self._history.params,
                tuple(self._history.tokens),
                parts.flow,
                unknown,
                return_path,
                self.place.positions,
                None if self.place.reuse is None else fork_of(self.place.reuse),
                self._history.generated,
                None if receipt is None else receipt.opener,
            )
        )

    @property
    def _step_tokens(self) -> int:
        """See :attr:`SessionOpened.step_tokens`; for when the nodes behind have accepted."""
        held = self.parts.capabilities
        own = min(MAX_DECODE_ROWS, held.exact_step_tokens) if held.supports_rollback else 0
        return own if self._downstream is None else min(own, self._downstream.step_tokens)

    @property
    def _pieces(self) -> tuple[int, int] | None:
        """See :attr:`SessionOpened.pieces`; for when the nodes behind have accepted."""
        own = self.parts.capabilities.exact_pieces
        return own if self._downstream is None else joined_pieces(own, self._downstream.pieces)

    @property
    def _cached_tokens(self) -> int:
        """See :attr:`SessionOpened.cached_tokens`; for when the nodes behind have accepted."""
        own = 0 if self.place.reuse is None else self.place.reuse.tokens
        return own if self._downstream is None else min(own, self._downstream.cached_tokens)

    async def _prefill_step(
        self,
        request: PrefillRequest,
        chunk: ChunkInfo,
        unknown: Unknown = NOTHING_UNKNOWN,
        meanwhile: Callable[[], None] | None = None,
    ) -> StepResult:
        """Compute a chunk and hand its result on: a boundary downstream, or the tail's token.

        ``meanwhile`` is called while the engine computes.
        """
        self._lifecycle.require_live()
        self._clock.arrived()
        await self.place.ready()
        try:
            done = await self.parts.stepper.run(request, meanwhile)
        except CacheMissError:
            if request.expectation.mode is CacheMode.FORK:
                self.place.missed()
            raise
        self.place.begun()
        self._clock.computed()
        result, waited = done.result, 0
        self._lifecycle.move(SessionState.ACTIVE)
        if self._downstream is not None:
            waited = await self._downstream.send_chunk(
                self._chunk_frame(self._downstream.handle, request, chunk, result, unknown)
            )
        elif chunk.final:
            self._choose(request, result)
        self._clock.handed_on(request, done, chunk, waited)
        return result

    def _decode_step(
        self,
        request: DecodeRequest,
        unknown: Unknown = NOTHING_UNKNOWN,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Have a decode step computed; its result is handed on as soon as it is there.

        Without a task's help: its turns of the loop would be a good part of what a hop costs.
        """
        self._lifecycle.require_live()
        self._clock.arrived()

        def take(done: asyncio.Future[StepDone]) -> None:
            self._guard(lambda: self._decoded(request, unknown, done.result()))

        self._computing = self.parts.stepper.submit(request, take, meanwhile)

    def _decoded(self, request: DecodeRequest, unknown: Unknown, done: StepDone) -> None:
        result = done.result
        if not result.status.ok:
            raise error_from(result.status)
        self._clock.computed()
        self._lifecycle.move(SessionState.ACTIVE)
        if self._downstream is None:
            self._choose(request, result)
        elif self._wanted(request.idempotency_step):
            tensor = self._boundary(result, request.rows).tensors[0]
            frame = DecodeStep(
                self._downstream.handle,
                request.position,
                request.idempotency_step,
                tensor,
                proposed=request.choice.proposed,
                truncate=request.expectation.mode is CacheMode.TRUNCATE,
                unknown=unknown,
            )
            self._downstream.send_step(frame)
        self._clock.handed_on(request, done, None, 0)
        if not self.over:
            self._handed_on(request, result)

    def _wanted(self, step: int) -> bool:
        """Whether what a decode step gave is still of use."""
        return True

    @abc.abstractmethod
    def _handed_on(self, request: DecodeRequest, result: StepResult) -> None:
        """A decode step is done here."""

    def _choose(self, request: StepRequest, result: StepResult) -> None:
        """Bring the tokens of a tail's step on their way."""
        outputs = result.tokens()
        if len(outputs) != request.choices:
            raise EngineError(f"the engine chose {len(outputs)} tokens, not {request.choices}")
        first = request.position + request.rows - len(outputs) + 1
        for position, output in enumerate(outputs, start=first):
            if output.token_id >= self.parts.capabilities.n_vocab:
                raise EngineError(f"the engine chose token {output.token_id}, which doesn't exist")
            if not result.duplicate:
                self._history.chosen(position, output.token_id)
            token = GeneratedToken(position, output.token_id, output.logprob, output.top_logprobs)
            self.token_returned(TokenReply(self.handle, request.idempotency_step, token))
            if self.over:
                return

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
        packed = narrowed(boundary, self.boundary_dtype)
        self._clock.packed(packed.byte_length)
        return packed
