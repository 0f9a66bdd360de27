"""``ShardNode``: one shard in service: accepts sessions, refuses those that can't share a route.

Reading order: :meth:`ShardNode.serve_seam` takes a stream's frames; each session's work is in
``session.py`` (middle and tail) and ``head.py`` (the decode loop); ``stepper.py`` runs the engine.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from meshnet.domain.errors import (
    CancelledError,
    ContextLengthError,
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
    Cancel,
    DecodeFrame,
    DecodeStep,
    Generate,
    GrantTokens,
    OpenSession,
    PrefillChunk,
    Release,
    SessionFailed,
    SessionKey,
    SessionTerms,
)
from meshnet.domain.ids import RouteSessionId
from meshnet.domain.layers import require_chain
from meshnet.domain.lifecycle import LifecycleState, SessionState
from meshnet.domain.nodes import Capability, HealthReport
from meshnet.domain.status import StatusCode, StructuredStatus
from meshnet.node.head import HeadSession
from meshnet.node.probe import PROBE_TIMEOUT_SECONDS, probe
from meshnet.node.session import NodeParts, SeamSession, ShardSession
from meshnet.transport.base import ServerSeam, ShardService

REMEMBERED_EPOCHS = 4096
READY_SECONDS = 30.0
"""A node that computed a step within this time is ready; else a probe step is run first."""


class ShardNode(ShardService):
    """Serves one loaded engine. Make it on the event loop that will serve it."""

    def __init__(self, parts: NodeParts, capability: Capability, chunk_tokens: int) -> None:
        self._parts = parts
        self._capability = capability
        self._chunk_tokens = chunk_tokens
        self._sessions: dict[SessionKey, ShardSession] = {}
        self._epochs: OrderedDict[RouteSessionId, int] = OrderedDict()
        self._draining = False

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
        if session is not None:
            session.fail(CancelledError(f"session {key} was released from outside"))

    async def cancel(self, key: SessionKey, reason: str) -> None:
        """See the base class. A cancel that comes before its session's opening holds as well."""
        session = self._sessions.get(key)
        if session is not None:
            cancelled = CancelledError(f"session {key} was cancelled: {reason}")
            session.fail(cancelled, SessionState.CANCELLED)
        else:
            self._parts.stepper.post(self._parts.engine.cancel, key)

    def drain(self) -> None:
        """Take no new sessions; those that run go on."""
        self._draining = True

    async def close(self) -> None:
        """End every session and free the connections."""
        for session in list(self._sessions.values()):
            session.cancel("the node is shutting down")
        await self._parts.channels.close()
        self._parts.stepper.close()

    async def serve_seam(self, seam: ServerSeam) -> None:
        """See the base class."""
        sessions: dict[int, ShardSession] = {}
        highest = 0
        try:
            while (request := await seam.receive()) is not None:
                if isinstance(request, Generate | OpenSession):
                    highest = max(highest, request.handle)
                    self._accept(seam, sessions, request)
                elif isinstance(request, DecodeFrame):
                    for step in request.steps:
                        self._route(seam, sessions, step.handle, step, highest)
                else:
                    self._route(seam, sessions, request.handle, request, highest)
        finally:
            for session in list(sessions.values()):
                session.cancel("the opener of its stream is gone")

    def _accept(
        self,
        seam: ServerSeam,
        sessions: dict[int, ShardSession],
        request: Generate | OpenSession,
    ) -> None:
        twin = sessions.get(request.handle)
        if twin is not None:
            # A failure names the handle alone, so the opener takes it for both.
            twin.fail(InvalidArgumentError("handle", f"{request.handle} is in use on this stream"))
            return
        try:
            self._check_terms(request.terms)
            session = self._session(request, seam)
            self._admit(request.terms.key)
        except MeshnetError as error:
            seam.send(SessionFailed(request.handle, status_of(error)))
            return
        sessions[request.handle] = session
        self._sessions[session.key] = session

        def ended(over: ShardSession) -> None:
            sessions.pop(over.handle, None)
            if self._sessions.get(over.key) is over:
                del self._sessions[over.key]

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

    def _admit(self, key: SessionKey) -> None:
        """Take a session in: in place of its older epoch, or if there is room."""
        own = self._capability
        for older in [held for held in self._sessions if held.session_id == key.session_id]:
            self._sessions[older].fail(
                StaleEpochError(f"session {key.session_id} went on at epoch {key.route_epoch}")
            )
        if len(self._sessions) >= own.flow.max_sessions:
            raise ResourceExhaustedError(
                f"node {own.node_id} serves {len(self._sessions)} sessions, as many as it may"
            )
        self._epochs[key.session_id] = key.route_epoch
        self._epochs.move_to_end(key.session_id)
        while len(self._epochs) > REMEMBERED_EPOCHS:
            self._epochs.popitem(last=False)

    def _route(
        self,
        seam: ServerSeam,
        sessions: dict[int, ShardSession],
        handle: int,
        frame: PrefillChunk | DecodeStep | GrantTokens | Cancel | Release,
        highest: int,
    ) -> None:
        """Bring a frame to its session. One for a session that just ended is dropped."""
        session = sessions.get(handle)
        if session is None:
            if handle > highest:
                unknown = SessionNotFoundError(f"no session with handle {handle} on this stream")
                seam.send(SessionFailed(handle, status_of(unknown)))
            return
        match frame, session:
            case Cancel(), _:
                session.cancel(frame.reason)
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
