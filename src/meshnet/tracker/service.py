"""The tracker: what a cluster is, who is there, who is to hold what. The one place that writes.

Belongs to one thread. Writing an event waits for the disk; heartbeats, which come every few seconds
from every machine, mostly write nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshnet.domain.errors import InvalidArgumentError, MeshnetError, UnauthenticatedError
from meshnet.domain.ids import Digest, NodeId
from meshnet.domain.nodes import Hop
from meshnet.tracker import events as ev
from meshnet.tracker import messages as msg
from meshnet.tracker.clocks import Clocks
from meshnet.tracker.leases import Policy
from meshnet.tracker.observed import Observed
from meshnet.tracker.pace import Pace
from meshnet.tracker.plan import Draft
from meshnet.tracker.reach import Reach
from meshnet.tracker.routing import Route, missing_layers, route_for
from meshnet.tracker.state import (
    Assignment,
    ClusterState,
    Member,
    Offer,
    assignment_of,
    facts_of,
    free_name,
    removed_since,
    require_token,
)
from meshnet.tracker.store.base import EventStore
from meshnet.transport.certificates import CERTIFICATE_DAYS, Authority, Role, node_id_of
from meshnet.transport.jointoken import new_secret, require_join_proof, secret_digest

LOGGER = logging.getLogger(__name__)
_TOKEN_ID_DIGITS = 12


class TrackerService:
    """One cluster."""

    def __init__(
        self,
        store: EventStore,
        authority: Authority,
        clocks: Clocks | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._store = store
        self._authority = authority
        clocks = clocks or Clocks()
        self._clock, self._wall = clocks.steady, clocks.wall
        self._state, _ = store.load()
        self._observed = Observed(self._clock(), policy)
        self._awake_at = self._clock()
        self._pace = Pace()
        self._beats: dict[NodeId, msg.HeartbeatRequest] = {}
        self.reach = Reach()
        """How others get to the nodes; replaced where there is a relay."""

    @property
    def state(self) -> ClusterState:
        """What is written down."""
        return self._state

    @property
    def now(self) -> float:
        """What its steady clock says."""
        return self._clock()

    @property
    def observed(self) -> Observed:
        """Who is there now."""
        return self._observed

    def found(self, name: str) -> None:
        """Name the cluster, unless it has a name."""
        if not self._state.name:
            self._write(ev.ClusterMade(name))

    def offer(self, *offered: ev.ModelOffered) -> None:
        """Serve these models, and no other."""
        wanted = {it.digest: it for it in offered}
        for digest in self._state.models:
            if digest not in wanted:
                self._write(ev.ModelWithdrawn(digest))
        for digest, it in wanted.items():
            known = self._state.models.get(digest)
            offer = Offer(it.name, it.shape, it.demand, it.serving)
            if known is None or _without_epoch(known) != offer:
                self._write(it)

    def admit(self, public_key_pem: bytes, name: str, role: Role) -> tuple[NodeId, bytes]:
        """A certificate for a process of the tracker's own machine, which needs no token."""
        node_id = node_id_of(public_key_pem)
        if role is Role.NODE and node_id in self._state.removed:
            raise UnauthenticatedError(f"{node_id} was removed from the cluster; use a new key")
        certificate = self._certificate(public_key_pem, node_id, role)
        if role is Role.NODE:
            self._let_in(node_id, name)
        return node_id, certificate

    def join(self, request: msg.JoinRequest) -> msg.JoinReply:
        """Let a machine in that has a token.

        Raises :class:`UnauthenticatedError` for a token that isn't good, for a key that was removed
        and for one that the machine doesn't prove to have, ``InvalidArgumentError`` for what is no
        key.
        """
        digest = secret_digest(request.secret)
        token_id = digest[:_TOKEN_ID_DIGITS]
        try:
            require_token(self._state, token_id, digest, self._wall())
        except InvalidArgumentError as error:
            raise UnauthenticatedError(error.message, field="token") from error
        public_key = request.public_key.encode()
        require_join_proof(public_key, request.secret, request.name, request.proof)
        node_id = node_id_of(public_key)
        if node_id in self._state.removed:
            raise UnauthenticatedError(
                f"machine {node_id} was removed from the cluster; it needs a new key", field="node"
            )
        certificate = self._certificate(public_key, node_id, Role.NODE)
        self._let_in(node_id, request.name, token_id)
        return self._joined(node_id, certificate)

    def renew(self, node_id: NodeId, request: msg.RenewRequest) -> msg.JoinReply:
        """Another certificate for a machine's key; raises like :meth:`join`."""
        self.require_known(node_id)
        certificate = self._certificate(request.public_key.encode(), node_id, Role.NODE)
        return self._joined(node_id, certificate)

    def require_known(self, node_id: NodeId) -> None:
        """Raise :class:`UnauthenticatedError` for a machine that was removed."""
        if node_id in self._state.removed:
            raise UnauthenticatedError(
                "this machine was removed from the cluster; join with a new token", field="node"
            )

    def heartbeat(self, node_id: NodeId, beat: msg.HeartbeatRequest) -> msg.HeartbeatReply:
        """Take in what a machine says, and say what it is to do.

        Raises :class:`UnauthenticatedError` for one that was removed, ``StaleEpochError`` for an
        agent that has since been started again, ``ResourceExhaustedError`` for one that says it too
        often.
        """
        self.require_known(node_id)
        now = self._listening()
        self._pace.require(node_id, now)
        self._write(*facts_of(self._state, node_id, beat))
        share = self._state.members[node_id].share
        self._observed.heard(node_id, self._about_offered(beat), now, share)
        self._beats[node_id] = beat
        self.reach.stated(node_id, beat.worker_address, now)
        told = assignment_of(self._state, node_id)
        policy = self._observed.policy
        certified = self._wall() - CERTIFICATE_DAYS * 86_400
        return msg.HeartbeatReply(
            assignment=None if told is None else _assignment(told),
            drain=self._state.members[node_id].drained,
            lease_seconds=policy.lease_seconds,
            heartbeat_seconds=policy.heartbeat_seconds,
            relay=self.reach.relay_of(node_id),
            removed=removed_since(self._state, certified, msg.MAX_REMOVED),
        )

    def tick(self) -> tuple[ev.Event, ...]:
        """Change what is to be changed by now; call it every second or so. Gives what changed."""
        draft = self.draft()
        planned = draft.events()
        self.settle(draft, planned)
        return planned

    def draft(self) -> Draft:
        """The cluster of now, to be planned for on another thread."""
        now = self._listening()
        self._observed.sweep(now)
        self._pace.sweep(now)
        seen, unreachable = self._observed.snapshot(), self.reach.out_of_reach
        return Draft(self._state, seen, now, self._wall(), unreachable)

    def settle(self, draft: Draft, planned: Sequence[ev.Event]) -> bool:
        """Do what was planned; False, and nothing, if the cluster has been changed meanwhile."""
        if self._state is not draft.state:
            return False
        self._write(*planned)
        for event in planned:
            if isinstance(event, ev.NodeForgotten):
                self._drop(event.node_id)
        return True

    def route(self, digest: Digest) -> Route:
        """The chain for the next generation; raises ``NodeNotReadyError`` naming missing layers."""
        return self._route(digest, self._listening())

    def took(self, node_ids: Sequence[NodeId]) -> None:
        """A generation begins on these nodes."""
        self._observed.took(node_ids, self._clock())

    def erred(self, node_id: NodeId) -> None:
        """A generation failed by this node: others are chosen for a while."""
        self._observed.erred(node_id, self._clock())

    def worked(self, node_ids: Sequence[NodeId]) -> None:
        """A generation went well."""
        self._observed.worked(node_ids)

    def drain(self, node_id: NodeId) -> None:
        """Let a machine finish what it has; raises ``InvalidArgumentError`` for none of these."""
        self._member(node_id)
        self._write(ev.NodeDrained(node_id))

    def undrain(self, node_id: NodeId) -> None:
        """Use a drained machine again; raises like :meth:`drain`."""
        self._member(node_id)
        self._write(ev.NodeUndrained(node_id))

    def remove(self, node_id: NodeId) -> None:
        """Let a machine in no more; raises like :meth:`drain`."""
        self._member(node_id)
        self._write(ev.NodeRemoved(node_id, int(self._wall())))
        self._drop(node_id)

    def issue_token(self, request: msg.TokenRequest) -> msg.TokenReply:
        """A new join token; its secret is told this once."""
        secret = new_secret()
        digest = secret_digest(secret)
        expires = int(self._wall()) + request.seconds
        token_id = digest[:_TOKEN_ID_DIGITS]
        self._write(ev.TokenIssued(token_id, digest, expires, request.uses))
        return msg.TokenReply(token_id=token_id, secret=secret, expires_unix=expires)

    def revoke_token(self, token_id: str) -> None:
        """Let nobody join with a token; raises ``InvalidArgumentError`` if there is none such."""
        if token_id not in self._state.tokens:
            raise InvalidArgumentError("token_id", f"there is no token {token_id!r}")
        self._write(ev.TokenRevoked(token_id))

    def status(self) -> msg.StatusReply:
        """The cluster of now."""
        now, unix = self._listening(), self._wall()
        return msg.StatusReply(
            cluster=self._state.name,
            machines=tuple(
                self._machine(node_id, member, now)
                for node_id, member in sorted(self._state.members.items(), key=_by_layers)
            ),
            models=tuple(
                self._model(digest, offer, now) for digest, offer in self._state.models.items()
            ),
            tokens=tuple(
                msg.TokenStatus(token_id=token_id, expires_unix=token.expires_unix, uses=token.uses)
                for token_id, token in self._state.tokens.items()
                if unix < token.expires_unix and token.uses
            ),
        )

    def _machine(self, node_id: NodeId, member: Member, now: float) -> msg.MachineStatus:
        beat, record = self._beats.get(node_id), self._observed.record(node_id)
        live = self._observed.is_live(node_id, now)
        told = member.share
        return msg.MachineStatus(
            node_id=node_id,
            name=member.name,
            state=beat.state if live and beat is not None else msg.MachineState.DOWN,
            drained=member.drained,
            silent_seconds=None if record is None else max(now - record.heard_at, 0.0),
            told=None if told is None else msg.Span(start=told.layers.start, end=told.layers.end),
            told_model=None if told is None else told.digest,
            work=() if beat is None else beat.work,
            machine=None if beat is None else beat.machine,
            load=None if beat is None else beat.load,
            round_trip_seconds=0.0 if beat is None else beat.round_trip_seconds,
            way=self.reach.way(node_id) if beat is not None and beat.worker_address else None,
        )

    def _model(self, digest: Digest, offer: Offer, now: float) -> msg.ModelStatus:
        route: tuple[Hop, ...] = ()
        problem = ""
        try:
            route = self._route(digest, now).hops
        except MeshnetError as error:
            problem = error.message
        avoid = self.reach.out_of_reach
        missing = missing_layers(self._state, self._observed, digest, now, avoid)
        return msg.ModelStatus(
            digest=digest,
            name=offer.name,
            total_layers=offer.total_layers,
            epoch=offer.epoch,
            ready=bool(route),
            route=tuple(hop.node_id for hop in route),
            missing=tuple(msg.Span(start=span.start, end=span.end) for span in missing),
            problem=problem[:1000],
        )

    def _route(self, digest: Digest, now: float) -> Route:
        """The best chain over nodes that can be reached, by the addresses at which they are."""
        avoid = self.reach.out_of_reach
        route = route_for(self._state, self._observed, digest, now, avoid)
        hops = tuple(
            replace(hop, address=self.reach.address(hop.node_id, hop.address)) for hop in route.hops
        )
        return replace(route, hops=hops)

    def _listening(self) -> float:
        """What the steady clock says; when it was long ago that it was asked, nobody listened.

        Then machines could have said what they wanted, and aren't taken for gone because of it.
        """
        before, now = self._awake_at, self._clock()
        self._awake_at = now
        if now - before > self._observed.policy.lease_seconds / 2:
            LOGGER.warning("the tracker stood still for %.1f s", now - before)
            self._observed.excuse(before, now)
        return now

    def _let_in(self, node_id: NodeId, wanted: str, token_id: str = "") -> None:
        """Make a machine a member, under a name that no other has."""
        name = free_name(self._state, node_id, wanted)
        known = self._state.members.get(node_id)
        if token_id or known is None or known.name != name:
            self._write(ev.NodeJoined(node_id, name, token_id))
        self._observed.joined(node_id, self._clock())

    def _drop(self, node_id: NodeId) -> None:
        """Keep nothing in memory of a machine that is no member any more."""
        self._observed.forget(node_id)
        self._beats.pop(node_id, None)
        self.reach.forget(node_id)

    def _about_offered(self, beat: msg.HeartbeatRequest) -> msg.HeartbeatRequest:
        """A heartbeat without work for models that nobody offers, of which nothing is kept."""
        work = tuple(each for each in beat.work if Digest(each.model) in self._state.models)
        return beat if work == beat.work else beat.model_copy(update={"work": work})

    def _member(self, node_id: NodeId) -> Member:
        member = self._state.members.get(node_id)
        if member is None:
            known = ", ".join(_named(self._state)) or "none"
            raise InvalidArgumentError("node", f"there is no machine {node_id!r}; known: {known}")
        return member

    def _certificate(self, public_key_pem: bytes, node_id: NodeId, role: Role) -> bytes:
        return self._authority.issue(
            public_key_pem, node_id, role=role, days=CERTIFICATE_DAYS, now=self._wall()
        )

    def _joined(self, node_id: NodeId, certificate: bytes) -> msg.JoinReply:
        return msg.JoinReply(
            node_id=node_id, cluster=self._state.name, certificate=certificate.decode()
        )

    def _write(self, *events: ev.Event) -> None:
        if not events:
            return
        self._state = self._store.append(events)
        for event in events:
            LOGGER.info("%s", event)


def _named(state: ClusterState) -> Iterator[str]:
    return (f"{node_id} ({member.name})" for node_id, member in state.members.items())


def _by_layers(item: tuple[NodeId, Member]) -> tuple[int, str, str]:
    node_id, member = item
    first = member.share.layers.start if member.share is not None else 2**31
    return first, member.name, node_id


def _without_epoch(offer: Offer) -> Offer:
    return Offer(offer.name, offer.shape, offer.demand, offer.serving)


def _assignment(told: Assignment) -> msg.AssignmentReply:
    return msg.AssignmentReply(
        model=told.digest,
        name=told.name,
        start=told.layers.start,
        end=told.layers.end,
        total_layers=told.total_layers,
        epoch=told.epoch,
        serving=told.serving,
    )
