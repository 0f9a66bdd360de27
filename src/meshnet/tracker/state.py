"""What a cluster is: a value that events are applied to. Pure and total."""

from __future__ import annotations

import functools
import heapq
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from meshnet.domain.errors import InvalidArgumentError, StaleEpochError
from meshnet.domain.ids import Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker import events as ev
from meshnet.tracker.leases import parse_hours
from meshnet.tracker.messages import HeartbeatRequest, MachineReport, Serving
from meshnet.tracker.placement import Demand, ModelShape

Key = TypeVar("Key")
Value = TypeVar("Value")

CHANGE = 0.1
"""A machine's figures are written down again when one changed by more than this share."""


@dataclass(frozen=True, slots=True)
class Token:
    """A join token that is good, expired ones aside."""

    secret_digest: str
    expires_unix: int
    uses: int
    """How many nodes may still join with it."""


@dataclass(frozen=True, slots=True)
class Share:
    """The layers that a node is to hold."""

    digest: Digest
    layers: LayerRange


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the cluster."""

    name: str
    incarnation: int = 0
    resources: ev.Resources | None = None
    """None until it says what it has."""
    drained: bool = False
    share: Share | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that the cluster is to serve."""

    name: str
    shape: ModelShape
    demand: Demand
    serving: Serving
    epoch: int = 0
    """Of its placement; 0 before the first one."""

    @property
    def total_layers(self) -> int:
        """How many layers the model has."""
        return len(self.shape.layer_bytes)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All that outlives the tracker's process. Mappings are never changed in place."""

    name: str = ""
    tokens: Mapping[str, Token] = field(default_factory=dict)
    members: Mapping[NodeId, Member] = field(default_factory=dict)
    removed: frozenset[NodeId] = frozenset()
    """Nodes that aren't let in any more."""
    removed_unix: Mapping[NodeId, int] = field(default_factory=dict)
    """When, for those of which it is known."""
    models: Mapping[Digest, Offer] = field(default_factory=dict)
    epoch: int = 0
    """The greatest of any placement so far, so that epochs grow also where a model comes again."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a node is told to hold."""

    digest: Digest
    name: str
    layers: LayerRange
    total_layers: int
    epoch: int
    serving: Serving


def assignment_of(state: ClusterState, node_id: NodeId) -> Assignment | None:
    """What a node is to hold; None: nothing, also for one that isn't a member."""
    member = state.members.get(node_id)
    if member is None or member.share is None:
        return None
    offer = state.models[member.share.digest]
    return Assignment(
        member.share.digest,
        offer.name,
        member.share.layers,
        offer.total_layers,
        offer.epoch,
        offer.serving,
    )


def seats_of(state: ClusterState, digest: Digest) -> dict[NodeId, LayerRange]:
    """Who is to hold which layers of a model."""
    return {
        node_id: member.share.layers
        for node_id, member in state.members.items()
        if member.share is not None and member.share.digest == digest
    }


def require_token(state: ClusterState, token_id: str, secret_digest: str, now: float) -> None:
    """Raise ``InvalidArgumentError`` unless a node may join with a token now."""
    token = state.tokens.get(token_id)
    known = token is not None and hmac.compare_digest(token.secret_digest, secret_digest)
    if token is None or not known:
        raise InvalidArgumentError("token", "it isn't known here; ask for a new one")
    if now >= token.expires_unix:
        raise InvalidArgumentError("token", "its time is over; ask for a new one")
    if token.uses < 1:
        raise InvalidArgumentError("token", "it has been used as often as it may; ask for another")


def facts_of(
    state: ClusterState, node_id: NodeId, beat: HeartbeatRequest
) -> tuple[ev.NodeJoined | ev.NodeReincarnated | ev.NodeReported, ...]:
    """What of a heartbeat has to be written down; mostly nothing.

    Raises ``InvalidArgumentError`` for a node that was removed, and ``StaleEpochError`` for the
    heartbeat of an agent that has since been started again.
    """
    if node_id in state.removed:
        raise InvalidArgumentError(
            "node", f"{node_id} was removed from the cluster; join with a new token"
        )
    # One that was forgotten while it was away has its certificate still.
    member = state.members.get(node_id, Member(name=str(node_id)))
    name = member.name if beat.name is None else free_name(state, node_id, beat.name)
    if beat.incarnation < member.incarnation:
        raise StaleEpochError(f"node {node_id} was started again since; end this agent")
    facts: list[ev.NodeJoined | ev.NodeReincarnated | ev.NodeReported] = []
    if node_id not in state.members or name != member.name:
        facts.append(ev.NodeJoined(node_id, name))
    if beat.incarnation > member.incarnation:
        facts.append(ev.NodeReincarnated(node_id, beat.incarnation))
    resources = resources_of(beat.machine)
    if member.resources is None or _matters(member.resources, resources):
        facts.append(ev.NodeReported(node_id, resources))
    return tuple(facts)


def free_name(state: ClusterState, node_id: NodeId, wanted: str) -> str:
    """What a node is called that wants a name: just this, unless another has it.

    Then as much of the node's id is added as makes it the only one; no node is called by the id of
    another.
    """
    others = state.members.keys() - {node_id}
    taken = others | {state.members[other].name for other in others}
    tries = (wanted, f"{wanted[:58]}-{node_id[:4]}", f"{wanted[:46]}-{node_id}")
    return next((name for name in tries if name not in taken), str(node_id))


def removed_since(state: ClusterState, unix: float, at_most: int) -> tuple[NodeId, ...]:
    """Nodes that were removed after a moment, the last ones first."""
    late = [(moment, node) for node, moment in state.removed_unix.items() if moment > unix]
    return tuple(node for _, node in heapq.nlargest(at_most, late))


def resources_of(machine: MachineReport) -> ev.Resources:
    """What a machine says it lends."""
    hours = parse_hours(machine.hours) if machine.hours else None
    return ev.Resources(machine.memory_bytes, machine.bytes_per_second, hours)


def _matters(before: ev.Resources, after: ev.Resources) -> bool:
    return (
        before.hours != after.hours
        or abs(after.memory_bytes - before.memory_bytes) > CHANGE * before.memory_bytes
        or abs(after.bytes_per_second - before.bytes_per_second) > CHANGE * before.bytes_per_second
    )


def apply_all(state: ClusterState, happened: Iterable[ev.Event]) -> ClusterState:
    """The state after several events."""
    return functools.reduce(apply, happened, state)


def apply(state: ClusterState, event: ev.Event) -> ClusterState:
    """The state after an event. One about something that isn't there changes nothing."""
    match event:
        case ev.ClusterMade():
            return replace(state, name=event.name)
        case ev.TokenIssued() | ev.TokenRevoked():
            return replace(state, tokens=_tokens_after(state.tokens, event))
        case ev.ModelOffered() | ev.ModelWithdrawn() | ev.Placed():
            return _with_models(state, event)
        case _:
            return _with_members(state, event)


def _with_models(
    state: ClusterState, event: ev.ModelOffered | ev.ModelWithdrawn | ev.Placed
) -> ClusterState:
    match event:
        case ev.ModelOffered():
            return _offered(state, event)
        case ev.Placed():
            return _placed(state, event)
        case ev.ModelWithdrawn():
            members = _seated(state.members, event.digest, {})
            return replace(state, members=members, models=_without(state.models, event.digest))


_MemberEvent = ev.NodeReincarnated | ev.NodeReported | ev.NodeDrained | ev.NodeUndrained


def _with_members(
    state: ClusterState,
    event: ev.NodeJoined | ev.NodeRemoved | ev.NodeForgotten | _MemberEvent,
) -> ClusterState:
    match event:
        case ev.NodeJoined():
            return _joined(state, event)
        case ev.NodeRemoved():
            members = _without(state.members, event.node_id)
            removed = state.removed | {event.node_id}
            moments = {**state.removed_unix, event.node_id: event.unix}
            return replace(state, members=members, removed=removed, removed_unix=moments)
        case ev.NodeForgotten():
            return replace(state, members=_without(state.members, event.node_id))
        case _:
            member = state.members.get(event.node_id)
            if member is None:
                return state
            changed = {event.node_id: _member_after(member, event)}
            return replace(state, members={**state.members, **changed})


def _tokens_after(
    tokens: Mapping[str, Token], event: ev.TokenIssued | ev.TokenRevoked
) -> Mapping[str, Token]:
    if isinstance(event, ev.TokenRevoked):
        return _without(tokens, event.token_id)
    token = Token(event.secret_digest, event.expires_unix, event.uses)
    return {**tokens, event.token_id: token}


def _member_after(
    member: Member,
    event: _MemberEvent,
) -> Member:
    match event:
        case ev.NodeReincarnated():
            return replace(member, incarnation=max(member.incarnation, event.incarnation))
        case ev.NodeReported():
            return replace(member, resources=event.resources)
        case ev.NodeDrained():
            return replace(member, drained=True)
        case ev.NodeUndrained():
            return replace(member, drained=False)


def _joined(state: ClusterState, event: ev.NodeJoined) -> ClusterState:
    if event.node_id in state.removed:
        return state
    known = state.members.get(event.node_id, Member(event.name))
    members = {**state.members, event.node_id: replace(known, name=event.name)}
    token = state.tokens.get(event.token_id)
    if token is None:
        return replace(state, members=members)
    used = replace(token, uses=max(token.uses - 1, 0))
    return replace(state, members=members, tokens={**state.tokens, event.token_id: used})


def _offered(state: ClusterState, event: ev.ModelOffered) -> ClusterState:
    before = state.models.get(event.digest)
    epoch = 0 if before is None else before.epoch
    offer = Offer(event.name, event.shape, event.demand, event.serving, epoch)
    models = {**state.models, event.digest: offer}
    if before is None or before.total_layers == offer.total_layers:
        return replace(state, models=models)
    return replace(state, models=models, members=_seated(state.members, event.digest, {}))


def _placed(state: ClusterState, event: ev.Placed) -> ClusterState:
    offer = state.models.get(event.digest)
    if offer is None or event.epoch <= offer.epoch:
        return state
    seats = {
        seat.node_id: seat.layers for seat in event.seats if seat.layers.end <= offer.total_layers
    }
    return replace(
        state,
        members=_seated(state.members, event.digest, seats),
        models={**state.models, event.digest: replace(offer, epoch=event.epoch)},
        epoch=max(state.epoch, event.epoch),
    )


def _seated(
    members: Mapping[NodeId, Member], digest: Digest, seats: Mapping[NodeId, LayerRange]
) -> dict[NodeId, Member]:
    """The members, of whom just those in ``seats`` hold layers of the model."""
    after = dict(members)
    for node_id, member in members.items():
        layers = seats.get(node_id)
        if layers is not None:
            after[node_id] = replace(member, share=Share(digest, layers))
        elif member.share is not None and member.share.digest == digest:
            after[node_id] = replace(member, share=None)
    return after


def _without(mapping: Mapping[Key, Value], key: Key) -> dict[Key, Value]:
    return {each: value for each, value in mapping.items() if each != key}
