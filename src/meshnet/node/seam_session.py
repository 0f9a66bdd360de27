"""A session on a middle or tail shard, driven by the node before it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace

from meshnet.domain.errors import (
    CacheMissError,
    InvalidArgumentError,
    ResourceExhaustedError,
    StaleEpochError,
)
from meshnet.domain.frames import (
    DecodeStep,
    OpenSession,
    PrefillChunk,
    Release,
    SessionOpened,
    SessionReleased,
    StepAck,
    TokenReply,
    Unknown,
)
from meshnet.domain.lifecycle import CacheExpectation, CacheMode, SessionState
from meshnet.domain.recipe import MAX_CHUNK_TOKENS
from meshnet.domain.seamcounts import NodeSeamCounts
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle
from meshnet.engine.base import DecodeRequest, PrefillRequest, StepResult
from meshnet.node.history import TokenHistory, require_grammar
from meshnet.node.parts import NodeParts
from meshnet.node.returns import StraightReturn, straight_return
from meshnet.node.session import ShardSession
from meshnet.node.stepper import MAX_DECODE_ROWS
from meshnet.node.track import MAX_ROWS_IN_FLIGHT
from meshnet.transport.base import ServerSeam
from meshnet.wire.narrow import widened

MAX_UNKNOWN_BYTES = 64 * 1024
"""Of fields that this version doesn't know, a frame may hold so much: they are kept to go on."""


class SeamSession(ShardSession):
    """A session on a middle or tail shard: does what the node before it sends."""

    def __init__(self, parts: NodeParts, request: OpenSession, upstream: ServerSeam) -> None:
        context = parts.capabilities.limits.context_length
        if len(request.history) > context:
            raise InvalidArgumentError(
                "history", f"{len(request.history)} tokens are more than the context's {context}"
            )
        _require_little_unknown(request.unknown)
        require_grammar(request.sampling, parts.capabilities)
        history = TokenHistory(request.sampling, list(request.history), request.generated)
        super().__init__(parts, request.terms, upstream, request.handle, history)
        self.counts: NodeSeamCounts = NodeSeamCounts()
        self._unknown = request.unknown
        self._return_path = request.return_path
        self._straight: StraightReturn | None = None
        self._frames: deque[PrefillChunk | DecodeStep | Release] = deque()
        self._busy = True
        """Whether frames must wait: one is worked on, or the session isn't open yet."""
        self._woken: asyncio.Future[None] | None = None

    @property
    def waits_for_upstream(self) -> bool:
        """See the base class."""
        return not self._busy and not self._frames

    def push(self, frame: PrefillChunk | DecodeStep | Release) -> None:
        """Queue a frame; frames are worked on in order.

        One of another epoch ends the session, and so does one more than may wait, or one that is
        larger than any step.
        """
        self.heard = asyncio.get_running_loop().time()
        if not isinstance(frame, Release):
            self.counts.request(frame)
        self._guard(lambda: self._queue(frame))

    def _queue(self, frame: PrefillChunk | DecodeStep | Release) -> None:
        if isinstance(frame, PrefillChunk):
            if frame.key != self.key:
                raise StaleEpochError(f"a chunk of {frame.key} came for session {self.key}")
            self._require_chunk(frame)
            bound, kind = self.parts.flow.chunk_credits, "chunks"
        else:
            if isinstance(frame, DecodeStep):
                self._require_step(frame)
            bound, kind = MAX_ROWS_IN_FLIGHT, "steps"
            if isinstance(frame, Release) or frame.truncate:
                self._drop_void_steps()
        if len(self._frames) > bound:
            raise ResourceExhaustedError(
                f"session {self.key} sent more than its {bound} unanswered {kind}"
            )
        self._frames.append(frame)
        self._next()

    def _require_chunk(self, frame: PrefillChunk) -> None:
        boundary, rows = frame.boundary, frame.chunk.token_count
        self._require_rows(boundary, rows, MAX_CHUNK_TOKENS)
        if len(boundary.token_id_sideband) not in (0, rows):
            raise InvalidArgumentError(
                "token_id_sideband",
                f"{len(boundary.token_id_sideband)} ids came with a chunk of {rows} rows",
            )
        _require_little_unknown(frame.unknown)

    def _require_step(self, frame: DecodeStep) -> None:
        rows = 1 + len(frame.proposed)
        self._require_rows(BoundaryBundle((frame.tensor,)), rows, MAX_DECODE_ROWS)
        _require_little_unknown(frame.unknown)

    def _require_rows(self, boundary: BoundaryBundle, rows: int, most: int) -> None:
        """Refuse what isn't the residual of a step, before it is kept or computed."""
        if rows > most:
            raise InvalidArgumentError("rows", f"{rows} are more than the {most} of one step")
        shape = (rows, self.parts.capabilities.n_embd)
        first = boundary.tensors[0]
        if len(boundary.tensors) != 1 or (first.name, first.shape) != (RESIDUAL, shape):
            raise InvalidArgumentError(
                "tensors",
                f"one {RESIDUAL} of shape {shape} is expected, but {len(boundary.tensors)} came, "
                f"the first with the name {first.name[:32]!r} and the shape {first.shape[:4]}",
            )

    def _drop_void_steps(self) -> None:
        """The head took back what it had sent for wrong guesses."""
        self._frames = deque(each for each in self._frames if not isinstance(each, DecodeStep))

    def _next(self) -> None:
        """Begin with the next frame, unless one is under way."""
        if self._busy or not self._frames or self.over:
            return
        frame = self._frames[0]
        if isinstance(frame, DecodeStep):
            self._frames.popleft()
            self._busy = True
            self._guard(lambda: self._decode(frame))
        elif self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _next_for_task(self) -> PrefillChunk | Release:
        """The next frame that isn't a decode step: those need no task."""
        self._busy = False
        while True:
            self._next()
            if not self._busy and self._frames:
                frame = self._frames.popleft()
                if not isinstance(frame, DecodeStep):
                    self._busy = True
                    return frame
            self._woken = asyncio.get_running_loop().create_future()
            await self._woken

    def token_returned(self, reply: TokenReply) -> None:
        """Pass the token on towards the head."""
        if self._downstream is not None:
            self._clock.returned()
        if self._straight is not None:
            self._straight.send(reply)
        else:
            self._send_up(reply)

    def _send_up(self, reply: TokenReply) -> None:
        self.counts.reply(reply)
        self._upstream.send(replace(reply, handle=self.handle))

    def _end(self, state: SessionState, reason: str | None) -> None:
        super()._end(state, reason)
        if self._straight is not None:
            self._straight.leave()

    async def _work(self) -> None:
        await self._open_downstream(self._return_path, self._unknown)
        if self._downstream is None and self._return_path is not None:
            self._straight = await straight_return(
                self.parts.channels,
                self.parts.dead_ends,
                self._return_path,
                self.key,
                self._send_up,
            )
        self._upstream.send(
            SessionOpened(
                self.handle,
                self.parts.flow,
                self._step_tokens,
                self._pieces,
                self._cached_tokens,
            )
        )
        while isinstance(frame := await self._next_for_task(), PrefillChunk):
            await self._prefill(frame)
        self.keeps = frame.keep and self.place.keeps
        await self._release(keep=frame.keep)

    async def _prefill(self, frame: PrefillChunk) -> None:
        source, reuse = frame.expectation.source, self.place.reuse
        if source is not None and (reuse is None or source != reuse.source):
            raise CacheMissError(f"no cache of session {source} is kept for this stream")
        request = PrefillRequest(
            self.key,
            frame.position,
            frame.expectation,
            frame.step,
            input=widened(frame.boundary, self.boundary_dtype),
            choice=self._history.choice(frame.position + frame.chunk.token_count - 1),
        )
        result = await self._prefill_step(request, frame.chunk, frame.unknown)
        self._acknowledge(frame.step, result)

    def _decode(self, frame: DecodeStep) -> None:
        if frame.expected_past_len not in (None, frame.position):
            raise CacheMissError(
                f"step {frame.step} of session {self.key} is at position {frame.position}, but "
                f"expects a cache of {frame.expected_past_len}"
            )
        request = DecodeRequest(
            self.key,
            frame.position,
            CacheExpectation(
                CacheMode.TRUNCATE if frame.truncate else CacheMode.EXACT, frame.position
            ),
            frame.step,
            input=widened(BoundaryBundle((frame.tensor,)), self.boundary_dtype),
            choice=self._history.choice(frame.position, frame.proposed),
        )
        self._decode_step(request, frame.unknown)

    def _handed_on(self, request: DecodeRequest, result: StepResult) -> None:
        if result.duplicate:
            self._acknowledge(request.idempotency_step, result)
        self._busy = False
        self._next()

    def _acknowledge(self, step: int, result: StepResult) -> None:
        """A chunk is always acknowledged; a decode step is by its token, unless it came twice."""
        if result.cache_result is not None:
            self._upstream.send(StepAck(self.handle, step, result.duplicate, result.cache_result))

    async def _release(self, *, keep: bool) -> None:
        behind = () if self._downstream is None else await self._downstream.release(keep=keep)
        self._upstream.send(SessionReleased(self.handle, (self._clock.read(), *behind)))
        self._end(SessionState.RELEASED, None)


def _require_little_unknown(unknown: Unknown) -> None:
    size = len(unknown.message) + len(unknown.envelope)
    if size > MAX_UNKNOWN_BYTES:
        raise InvalidArgumentError(
            "unknown fields", f"they take {size} bytes; at most {MAX_UNKNOWN_BYTES} are handed on"
        )
