"""A middle or tail behind gRPC seen as an engine: the engine contract is run through the wire.

Everything but ``load``, which starts the node, goes through one seam and the node's other calls. A
middle hands its boundaries on to a node behind it that keeps them and answers with any token.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from meshnet.domain.errors import (
    InvalidArgumentError,
    MeshnetError,
    NodeNotReadyError,
    error_from,
    status_of,
)
from meshnet.domain.frames import (
    ChunkInfo,
    DecodeFrame,
    DecodeStep,
    OpenSession,
    PrefillChunk,
    Release,
    SeamReply,
    SeamRequest,
    SessionFailed,
    SessionOpened,
    SessionReleased,
    SessionTerms,
    StepAck,
    TokenReply,
)
from meshnet.domain.generation import GeneratedToken
from meshnet.domain.ids import Address, NodeId, SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import CacheMode, CacheResult, LifecycleState
from meshnet.domain.nodes import FlowControl, Hop
from meshnet.domain.status import OK
from meshnet.domain.tensors import BoundaryBundle
from meshnet.engine.base import (
    DecodeRequest,
    EngineCapabilities,
    HealthResult,
    LoadRequest,
    LoadResult,
    MetricsResult,
    Output,
    PrefillRequest,
    ShardEngine,
    StepRequest,
    StepResult,
    TokenOutput,
)
from meshnet.engine.fixture import EXACT_STEP_TOKENS
from meshnet.transport.base import ClientSeam, Peer
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.seam_server import GrpcNodeServer
from tests.support.mesh import Mesh, Setup
from tests.support.services import ScriptedService

SECONDS = 20.0

T = TypeVar("T")


@dataclass(slots=True)
class _Remote:
    """A session that is open on the node."""

    handle: int
    replies: asyncio.Queue[SeamReply] = field(default_factory=asyncio.Queue)
    steps: set[int] = field(default_factory=set)


class _Sink:
    """The node behind a middle: keeps what it gets."""

    def __init__(self) -> None:
        self.made: dict[tuple[SessionKey, int], BoundaryBundle] = {}
        self._keys: dict[int, SessionKey] = {}

    def answer(self, request: SeamRequest) -> Iterator[SeamReply]:
        """What a tail would say."""
        if isinstance(request, OpenSession):
            self._keys[request.handle] = request.terms.key
            yield SessionOpened(request.handle, request.flow, step_tokens=EXACT_STEP_TOKENS)
        elif isinstance(request, PrefillChunk):
            end = request.position + request.chunk.token_count
            self.made[request.key, request.step] = request.boundary
            yield StepAck(request.handle, request.step, False, CacheResult(True, end))
            yield TokenReply(request.handle, request.step, GeneratedToken(end, 0))
        elif isinstance(request, DecodeFrame):
            for step in request.steps:
                bundle = BoundaryBundle((step.tensor,))
                self.made[self._keys[step.handle], step.step] = bundle
                for position in range(step.position, step.position + bundle.rows):
                    yield TokenReply(step.handle, step.step, GeneratedToken(position + 1, 0))
        elif isinstance(request, Release):
            yield SessionReleased(request.handle, ())


class RemoteEngine(ShardEngine):
    """A node with the fixture engine. :meth:`close` stops it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._mesh: Mesh | None = None
        self._hops: tuple[Hop, ...] = ()
        self._sink = _Sink()
        self._sink_server: GrpcNodeServer | None = None
        self._peer: Peer | None = None
        self._seam: ClientSeam | None = None
        self._reader: asyncio.Task[None] | None = None
        self._sessions: dict[SessionKey, _Remote] = {}
        self._handles = 0

    def load(self, request: LoadRequest) -> LoadResult:
        self._run(self._start(request))
        return LoadResult(self.capabilities())

    def capabilities(self) -> EngineCapabilities:
        if self._mesh is None:
            raise NodeNotReadyError("no node is started yet")
        return self._mesh.head.engine.capabilities()

    def prefill(self, request: PrefillRequest) -> StepResult:
        return self._run(self._step(request))

    def decode(self, request: DecodeRequest) -> StepResult:
        return self._run(self._step(request))

    def cancel(self, key: SessionKey) -> None:
        self._run(self._node.cancel(key, "the contract says so", SECONDS))

    def release(self, key: SessionKey) -> None:
        self._run(self._release(key))

    def health(self) -> HealthResult:
        if self._mesh is None:
            return HealthResult(LifecycleState.LOADING)
        report = self._run(self._node.health(SECONDS))
        return HealthResult(report.state, report.status)

    def metrics(self) -> MetricsResult:
        return MetricsResult(open_sessions=self._run(self._node.health(SECONDS)).open_sessions)

    def close(self) -> None:
        """Stop the node and the thread."""
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    @property
    def _node(self) -> Peer:
        if self._peer is None:
            raise NodeNotReadyError("no node is started yet")
        return self._peer

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    async def _start(self, request: LoadRequest) -> None:
        limits = request.limits
        setup = Setup(
            grpc=True,
            chunk_tokens=request.recipe.chunk_tokens,
            context_length=limits.context_length,
            engine_sessions=limits.max_sessions,
            flow=FlowControl(max_sessions=limits.max_sessions),
        )
        self._mesh = Mesh(setup)
        node = await self._mesh.add(LayerRange(request.shard_start, request.shard_end))
        self._hops = (node.hop,)
        self._peer = GrpcTransport(setup.flow).peer(node.hop.address)
        if request.shard_end < request.total_layers:
            service = ScriptedService(self._sink.answer)
            self._sink_server = GrpcNodeServer(service, Address("127.0.0.1:0"), setup.flow)
            address = await self._sink_server.start()
            layers = LayerRange(request.shard_end, request.total_layers)
            self._hops += (Hop(NodeId("sink"), address, layers),)

    async def _stop(self) -> None:
        await self._hang_up()
        if self._peer is not None:
            await self._peer.close()
        if self._mesh is not None:
            await self._mesh.close()
        if self._sink_server is not None:
            await self._sink_server.stop(0.0)

    async def _hang_up(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None
        if self._seam is not None:
            await self._seam.close()
            self._seam = None
        self._sessions.clear()

    async def _send(self, request: SeamRequest) -> None:
        if self._reader is None or self._reader.done():
            await self._hang_up()
            self._seam = await self._node.open_seam(SECONDS)
            self._reader = asyncio.create_task(self._read(self._seam))
        assert self._seam is not None
        self._seam.send(request)

    async def _read(self, seam: ClientSeam) -> None:
        while True:
            try:
                reply = await seam.receive()
            except MeshnetError as error:
                for session in self._sessions.values():
                    session.replies.put_nowait(SessionFailed(session.handle, status_of(error)))
                return
            for session in self._sessions.values():
                if session.handle == reply.handle:
                    session.replies.put_nowait(reply)

    async def _step(self, request: StepRequest) -> StepResult:
        try:
            if request.key not in self._sessions:
                await self._open(request)
            return await self._computed(request, self._sessions[request.key])
        except MeshnetError as error:
            # The node has ended it by itself, unless it never saw the step.
            await self._release(request.key)
            return StepResult(status_of(error))

    async def _open(self, request: StepRequest) -> None:
        self._handles += 1
        session = _Remote(self._handles)
        await self._send(self._opening(session.handle, request))
        self._sessions[request.key] = session
        await _received(session, SessionOpened)

    def _opening(self, handle: int, request: StepRequest) -> OpenSession:
        assert self._mesh is not None
        terms = SessionTerms(
            request.key,
            self._mesh.setup.recipe().fingerprint(),
            self._hops,
            time.time_ns() + int(SECONDS * 1e9),
        )
        choice = request.choice
        return OpenSession(handle, terms, choice.params, choice.history, self._mesh.setup.flow)

    async def _computed(self, request: StepRequest, session: _Remote) -> StepResult:
        again = request.idempotency_step in session.steps
        session.steps.add(request.idempotency_step)
        if request.input is None or len(request.input.tensors) != 1:
            raise InvalidArgumentError("input", "a tail takes boundaries of one tensor")
        prefill = isinstance(request, PrefillRequest)
        await self._send((_chunk if prefill else _decode)(session.handle, request, request.input))
        tokens: list[TokenOutput] = []
        ack: StepAck | None = None
        while len(tokens) < request.choices or (ack is None and (prefill or again)):
            reply = await _received(session, TokenReply, StepAck)
            if isinstance(reply, StepAck):
                ack = reply
            elif isinstance(reply, TokenReply):
                made = reply.token
                tokens.append(TokenOutput(made.token_id, None, made.logprob, made.top_logprobs))
        cache = CacheResult(True, request.position + request.rows) if ack is None else ack.cache
        output: Output = tokens[0] if len(tokens) == 1 else tuple(tokens)
        if self._sink_server is not None:
            output = self._sink.made[request.key, request.idempotency_step]
        return StepResult(OK, output, cache, duplicate=ack is not None and ack.duplicate)

    async def _release(self, key: SessionKey) -> None:
        session = self._sessions.pop(key, None)
        if session is None:
            await self._node.release(key, SECONDS)
            return
        # Its answer is for nobody: the session's replies are no longer looked at.
        await self._send(Release(session.handle))
        await self._node.release(key, SECONDS)


async def _received(session: _Remote, *kinds: type[SeamReply]) -> SeamReply:
    """The session's next reply; raises what the node ended the session with."""
    async with asyncio.timeout(SECONDS):
        reply = await session.replies.get()
    if isinstance(reply, SessionFailed):
        raise error_from(reply.status)
    assert isinstance(reply, kinds), reply
    return reply


def _chunk(handle: int, request: StepRequest, boundary: BoundaryBundle) -> PrefillChunk:
    return PrefillChunk(
        handle,
        request.key,
        ChunkInfo(0, 1, request.rows, request.rows),
        request.position,
        request.idempotency_step,
        request.expectation,
        boundary,
    )


def _decode(handle: int, request: StepRequest, boundary: BoundaryBundle) -> DecodeFrame:
    tensor = boundary.tensors[0]
    step = DecodeStep(
        handle,
        request.position,
        request.idempotency_step,
        tensor,
        request.expectation.expected_past_len,
        request.choice.proposed or (0,) * (request.rows - 1),
        request.expectation.mode is CacheMode.TRUNCATE,
    )
    return DecodeFrame((step,))
