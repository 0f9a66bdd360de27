"""The tracker: what a cluster is, who is there, who is to hold what. The one place that writes.

Belongs to one thread. Writing an event waits for the disk; heartbeats, which come every few seconds
from every machine, mostly write nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshnet.domain.errors import InvalidArgumentError, UnauthenticatedError
from meshnet.domain.ids import Digest, NodeId
from meshnet.tracker import events as ev
from meshnet.tracker import messages as msg
from meshnet.tracker.clocks import Clocks
from meshnet.tracker.holders import Holders
from meshnet.tracker.leases import Policy
from meshnet.tracker.logdesk import LogDesk
from meshnet.tracker.measurements import RunReport
from meshnet.tracker.neighbours import Neighbours
from meshnet.tracker.observed import Observed
from meshnet.tracker.pace import Pace
from meshnet.tracker.pairing import Pairing
from meshnet.tracker.plan import Draft
from meshnet.tracker.reach import Reach
from meshnet.tracker.receiptdesk import ReceiptDesk
from meshnet.tracker.receiptmessages import ReceiptsReply, ReceiptsReport
from meshnet.tracker.receipts import Roster
from meshnet.tracker.routing import Route, route_for
from meshnet.tracker.runs import Runs
from meshnet.tracker.state import (
    ClusterState,
    Member,
    Offer,
    assignment_of,
    facts_of,
    free_name,
    removed_since,
    require_token,
)
from meshnet.tracker.statusview import StatusView
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
        self._neighbours = Neighbours()
        self._runs = Runs()
        self._beats: dict[NodeId, msg.HeartbeatRequest] = {}
        self._gateways: set[NodeId] = set()
        self.receipts = ReceiptDesk()
        """Keeps what sessions took; replaced where there are accounts."""
        self.logs = LogDesk()
        self.reach = Reach()
        """How others get to the nodes; replaced where there is a relay."""
        self.pairing = Pairing(authority.fingerprint, self.issue_token, clocks.steady)
        """Lets machines in that have a short code."""

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
        elif role is Role.GATEWAY:
            self._gateways.add(node_id)
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
            assignment=None if told is None else self._holders().tell(node_id, told, now),
            drain=self._state.members[node_id].drained,
            lease_seconds=policy.lease_seconds,
            heartbeat_seconds=policy.heartbeat_seconds,
            relay=self.reach.relay_of(node_id),
            neighbours=self._neighbours.of(node_id, self._observed, now, self.reach.way_to),
            removed=removed_since(self._state, certified, msg.MAX_REMOVED),
            logs_after=self.logs.wanted_after(node_id, now),
        )

    async def take_receipts(self, reporter: NodeId, report: ReceiptsReport) -> ReceiptsReply:
        """Keep what sessions took, as a member reports it."""
        state = self._state
        roster = Roster(state.members, frozenset(self._gateways), state.removed_unix)
        kept = await self.receipts.take(reporter, report.receipts, roster, self._wall())
        return ReceiptsReply(kept=kept)

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

    def ran(self, run: RunReport) -> None:
        """How long a generation took."""
        self._runs.note(run, self._state, self._observed)

    def drain(self, node_id: NodeId) -> None:
        """Let a machine finish what it has; raises like :meth:`require_member`."""
        self.require_member(node_id)
        self._write(ev.NodeDrained(node_id))

    def undrain(self, node_id: NodeId) -> None:
        """Use a drained machine again; raises like :meth:`require_member`."""
        self.require_member(node_id)
        self._write(ev.NodeUndrained(node_id))

    def remove(self, node_id: NodeId) -> None:
        """Let a machine in no more; raises like :meth:`require_member`."""
        self.require_member(node_id)
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
        now = self._listening()
        seen = (self._observed, self._beats, self.reach, self._runs, self._route)
        about = StatusView(self._state, *seen)
        return about.told(now, self._wall())

    def _holders(self) -> Holders:
        return Holders(
            self._state,
            self._beats,
            self._observed,
            lambda: self.reach.relayed | self.reach.out_of_reach,
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

    def require_member(self, node_id: NodeId) -> Member:
        """A machine; raises ``InvalidArgumentError`` for none of these."""
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


def _without_epoch(offer: Offer) -> Offer:
    return Offer(offer.name, offer.shape, offer.demand, offer.serving)
