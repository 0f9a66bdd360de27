"""``ShardNode``: one shard in service: accepts sessions, refuses those that can't share a route.

Reading order: :meth:`ShardNode.serve_seam` takes a stream's frames; each session's work is in
``seam_session.py`` (middle and tail) and ``head.py`` (the decode loop), on the common ground of
``session.py``; ``stepper.py`` runs the engine.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from meshnet.domain.errors import (
    CancelledError,
    ContextLengthError,
    DeadlineExceededError,
    InvalidArgumentError,
    LayerRangeError,
    MeshnetError,
    NodeNotReadyError,
    ResourceExhaustedError,
    SessionNotFoundError,
    StaleEpochError,
    status_of,
)
from meshnet.domain.frames import (
    AttachReturn,
    Cancel,
    DecodeFrame,
    DecodeStep,
    Generate,
    GrantTokens,
    OpenSession,
    PrefillChunk,
    Release,
    ReturnedTokens,
    SeamRequest,
    SessionFailed,
    SessionTerms,
    SignedWork,
)
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.layers import require_chain
from meshnet.domain.lifecycle import LifecycleState, SessionState
from meshnet.domain.nodes import Capability, HealthReport
from meshnet.domain.status import StatusCode, StructuredStatus
from meshnet.node.head import HeadSession
from meshnet.node.parts import NodeParts
from meshnet.node.places import Keepsake, Place, Places
from meshnet.node.prefixes import Reuse, Route, best_reuse
from meshnet.node.probe import PROBE_TIMEOUT_SECONDS, probe
from meshnet.node.returns import ReturnDesk
from meshnet.node.seam_session import SeamSession
from meshnet.node.seats import Bounds
from meshnet.node.session import ShardSession
from meshnet.transport.base import ServerSeam, ShardService
from meshnet.transport.countersigning import ReceiversReceipts

REMEMBERED_EPOCHS = 4096
READY_SECONDS = 30.0
"""A node that computed a step within this time is ready; else a probe step is run first."""


@dataclass(slots=True)
class _Stream:
    """What is kept of one stream."""

    seam: ServerSeam
    returns: ReturnDesk
    receipts: ReceiversReceipts
    sessions: dict[int, ShardSession] = field(default_factory=dict)
    highest: int = 0
    """Of all handles so far."""


class ShardNode(ShardService):
    """Serves one loaded engine. Make it on the event loop that will serve it."""

    def __init__(self, parts: NodeParts, capability: Capability, chunk_tokens: int) -> None:
        self._parts = parts
        self._capability = capability
        self._chunk_tokens = chunk_tokens
        self._sessions: dict[SessionKey, ShardSession] = {}
        self._epochs: OrderedDict[RouteSessionId, int] = OrderedDict()
        self._draining = False
        limits, flow = parts.capabilities.limits, capability.flow
        bounds = Bounds(
            # A session has one step at a time: with more sessions the queue could overflow.
            min(flow.max_sessions, flow.max_queued_work, limits.max_sessions),
            limits.max_sessions,
            flow.max_positions or limits.max_sessions * limits.context_length,
        )
        self._places = Places(parts.engine, parts.stepper, bounds, parts.keep_seconds)
        self._quiet: dict[SessionKey, float] = {}
        """Since when sessions were seen to wait for their upstream."""
        self._next_sweep = asyncio.get_running_loop().call_soon(self._sweep)

    @property
    def places(self) -> Places:
        """The caches: who has one, and which are kept."""
        return self._places

    @property
    def parts(self) -> NodeParts:
        """What the node works with."""
        return self._parts

    @property
    def sessions(self) -> tuple[ShardSession, ...]:
        """The sessions open now."""
        return tuple(self._sessions.values())

    async def capability(self) -> Capability:
        """See the base class."""
        return self._capability

    async def health(self) -> HealthReport:
        """READY if a step succeeded lately, or a probe step does now."""
        stepper = self._parts.stepper
        now = asyncio.get_running_loop().time()
        state, status = LifecycleState.READY, StructuredStatus(StatusCode.OK)
        if self._draining:
            state = LifecycleState.DRAINING
        elif stepper.last_success is None or now - stepper.last_success > READY_SECONDS:
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                    await probe(self._parts.engine, stepper)
            except ResourceExhaustedError:
                state = LifecycleState.READY
            except (MeshnetError, TimeoutError) as error:
                state = LifecycleState.FAILED
                status = _why(error)
        return HealthReport(state, status, len(self._sessions), stepper.steps_done)

    async def release(self, key: SessionKey) -> None:
        """See the base class."""
        session = self._sessions.get(key)
        self._places.drop(key)
        if session is not None:
            session.fail(CancelledError(f"session {key} was released from outside"))

    async def cancel(self, key: SessionKey, reason: str) -> None:
        """See the base class. A cancel that comes before its session's opening holds as well."""
        session = self._sessions.get(key)
        if session is not None:
            cancelled = CancelledError(f"session {key} was cancelled: {reason}")
            session.fail(cancelled, SessionState.CANCELLED)
        elif self._places.keeping(key):
            self._places.drop(key)
        else:
            self._parts.stepper.post(self._parts.engine.cancel, key)

    def drain(self) -> None:
        """Take no new sessions; those that run go on."""
        self._draining = True

    async def close(self) -> None:
        """End every session and free the connections."""
        for session in list(self._sessions.values()):
            session.cancel("the node is shutting down")
        self._next_sweep.cancel()
        self._places.close()
        await self._parts.channels.close()
        self._parts.stepper.close()

    async def serve_seam(self, seam: ServerSeam) -> None:
        """See the base class."""
        receipts = ReceiversReceipts(seam, self._parts.channels.receipts)
        stream = _Stream(seam, ReturnDesk(self._parts.flow), receipts)

        def take(request: SeamRequest) -> None:
            if isinstance(request, DecodeFrame):
                for step in request.steps:
                    self._route(stream, step.handle, step)
            elif isinstance(request, Generate | OpenSession):
                stream.highest = max(stream.highest, request.handle)
                self._accept(stream, request)
            elif isinstance(request, ReturnedTokens):
                stream.returns.take(request.replies)
            elif isinstance(request, AttachReturn):
                stream.returns.attach(seam, request, self._sessions.get(request.key))
            elif isinstance(request, SignedWork):
                receipts.answered(request)
            else:
                self._route(stream, request.handle, request)

        try:
            await seam.consume(take)
        finally:
            for session in list(stream.sessions.values()):
                session.cancel("the opener of its stream is gone")
            receipts.close()
            self._places.drop_of(seam)

    def _accept(self, stream: _Stream, request: Generate | OpenSession) -> None:
        seam, sessions = stream.seam, stream.sessions
        twin = sessions.get(request.handle)
        if twin is not None:
            # A failure names the handle alone, so the opener takes it for both.
            twin.fail(InvalidArgumentError("handle", f"{request.handle} is in use on this stream"))
            return
        try:
            self._check_terms(request.terms)
            session = self._session(request, seam)
            session.place = self._admit(request, seam)
        except MeshnetError as error:
            self._parts.stepper.figures.failed(error.code)
            seam.send(SessionFailed(request.handle, status_of(error)))
            return
        sessions[request.handle] = session
        self._sessions[session.key] = session
        stream.receipts.opened(request, session.counts)

        def ended(over: ShardSession) -> None:
            sessions.pop(over.handle, None)
            stream.receipts.ended(over.handle, over.engine_nanos)
            if self._sessions.get(over.key) is over:
                del self._sessions[over.key]
            self._quiet.pop(over.key, None)
            if over.keeps:
                prefix = over.prefix if isinstance(over, HeadSession) else None
                keepsake = Keepsake(seam, over.handle, over.give_up, prefix)
                self._places.keep(over.key, keepsake)
            else:
                self._places.leave(over.key)

        session.start(ended)

    def _session(self, request: Generate | OpenSession, seam: ServerSeam) -> ShardSession:
        if isinstance(request, Generate):
            return self._head_session(request, seam)
        if self._capability.is_head:
            raise LayerRangeError(
                f"node {self._capability.node_id} holds layer 0; it takes generations, no boundary"
            )
        return SeamSession(self._parts, request, seam)

    def _head_session(self, request: Generate, seam: ServerSeam) -> ShardSession:
        if not self._capability.is_head:
            raise LayerRangeError(
                f"a generation starts at the head, but this node holds layers "
                f"{self._capability.layers}"
            )
        ranges = [hop.layers for hop in request.terms.hops]
        require_chain(ranges, self._capability.total_layers)
        limit = self._capability.context_length
        if len(request.spec.prompt) >= limit:
            raise ContextLengthError(
                f"the prompt has {len(request.spec.prompt)} tokens; with room for an answer, the "
                f"context holds {limit}"
            )
        return HeadSession(self._parts, request, self._chunk_tokens, seam)

    def _check_terms(self, terms: SessionTerms) -> None:
        """Raise what speaks against this node's taking part in a session."""
        own = self._capability
        if self._draining:
            raise NodeNotReadyError(f"node {own.node_id} is draining and takes no new sessions")
        if terms.fingerprint not in self._parts.boundaries:
            own.fingerprint.require_equal(terms.fingerprint, "the opener of the session")
        hop = terms.hops[0]
        if hop.layers != own.layers:
            raise LayerRangeError(
                f"the route wants layers {hop.layers} here, but node {own.node_id} holds "
                f"{own.layers}"
            )
        if (len(terms.hops) == 1) != own.is_tail:
            raise LayerRangeError("a route ends with the node that holds the last layer")
        key = terms.key
        newest = self._epochs.get(key.session_id, key.route_epoch)
        if key.route_epoch < newest:
            raise StaleEpochError(f"session {key.session_id} is at epoch {newest} already")
        if key in self._sessions:
            raise InvalidArgumentError(
                "route_epoch", f"session {key} is open; a chain that changed has a higher epoch"
            )

    def _admit(self, request: Generate | OpenSession, seam: ServerSeam) -> Place:
        """Take a session in: in place of its older epoch, or if there is room."""
        own, key = self._capability, request.terms.key
        for older in [held for held in self._sessions if held.session_id == key.session_id]:
            self._sessions[older].fail(
                StaleEpochError(f"session {key.session_id} went on at epoch {key.route_epoch}")
            )
        try:
            place = self._places.admit(
                key, self._positions(request), self._reuse(request, seam), seam
            )
        except ResourceExhaustedError as full:
            problem = f"node {own.node_id} {full.message}"
            raise ResourceExhaustedError(problem, **full.details) from full
        self._epochs[key.session_id] = key.route_epoch
        self._epochs.move_to_end(key.session_id)
        while len(self._epochs) > REMEMBERED_EPOCHS:
            self._epochs.popitem(last=False)
        return place

    def _positions(self, request: Generate | OpenSession) -> int:
        """How many positions a session may come to hold."""
        limit = self._capability.context_length
        if isinstance(request, OpenSession):
            return min(request.positions, limit) or limit
        spec = request.spec
        asked = limit if spec.max_new_tokens is None else len(spec.prompt) + spec.max_new_tokens
        return min(asked, limit)

    def _reuse(self, request: Generate | OpenSession, seam: ServerSeam) -> Reuse | None:
        """The kept cache that a session may begin with."""
        if isinstance(request, Generate):
            route = Route(request.terms.hops, request.terms.fingerprint)
            kept = self._places.prefixes(seam)
            return best_reuse(request.spec.asked, kept, route, self._chunk_tokens)
        begin = request.begin
        if begin is None or begin.source is None:
            return None
        return Reuse(begin.source, begin.expected_past_len)

    def _sweep(self) -> None:
        """End the sessions whose upstream has said nothing for too long, and come back later."""
        loop, patience = asyncio.get_running_loop(), self._parts.idle_seconds
        for key, session in list(self._sessions.items()):
            if not session.waits_for_upstream:
                self._quiet.pop(key, None)
                continue
            since = max(self._quiet.setdefault(key, loop.time()), session.heard)
            # A node behind leaves it to the head to say so.
            allowed = patience if isinstance(session, HeadSession) else 2 * patience
            if loop.time() - since >= allowed:
                session.fail(
                    DeadlineExceededError(f"nothing was heard of session {key} for {allowed:g} s")
                )
        self._next_sweep = loop.call_later(patience / 4, self._sweep)

    def _route(
        self,
        stream: _Stream,
        handle: int,
        frame: PrefillChunk | DecodeStep | GrantTokens | Cancel | Release,
    ) -> None:
        """Bring a frame to its session. One for a session that just ended is only counted."""
        session = stream.sessions.get(handle)
        if session is None:
            if handle > stream.highest:
                unknown = SessionNotFoundError(f"no session with handle {handle} on this stream")
                stream.seam.send(SessionFailed(handle, status_of(unknown)))
                return
            stream.receipts.late(handle, frame)
            if isinstance(frame, Release | Cancel):
                self._places.drop_handle(stream.seam, handle)
            return
        match frame, session:
            case Cancel(), _:
                stream.receipts.said_last(handle)
                session.cancel(frame.reason)
            case Release(), SeamSession():
                stream.receipts.said_last(handle)
                session.push(frame)
            case GrantTokens(), HeadSession():
                session.grant(frame.tokens)
            case _, SeamSession() if not isinstance(frame, GrantTokens):
                session.push(frame)
            case _:
                session.fail(
                    InvalidArgumentError("frame", f"a {type(frame).__name__} has no place here")
                )


def _why(error: MeshnetError | TimeoutError) -> StructuredStatus:
    if isinstance(error, MeshnetError):
        return status_of(error)
    return status_of(NodeNotReadyError("a probe step didn't end in time"))
