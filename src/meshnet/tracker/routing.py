"""Which chain of nodes should serve the next request. Pure.

A chain's cost is what a token is expected to take: at each node its measured step, once for every
session and step that waits there, and between nodes what the link takes, the way back to the head
included. Of every range the few quickest nodes are looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from meshnet.domain.errors import ModelNotFoundError, NodeNotReadyError
from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.domain.layers import LayerRange, require_chain
from meshnet.domain.nodes import Hop
from meshnet.tracker.observed import Observed, Ranked
from meshnet.tracker.state import ClusterState, Offer, Share

CHOICES: Final = 4
"""Nodes of each range that are looked at. With more, links alone could make a difference."""


@dataclass(frozen=True, slots=True)
class Route:
    """A chain for one request, head first."""

    digest: Digest
    epoch: int
    """Of the placement it was chosen from; a greater one means: ask again."""
    hops: tuple[Hop, ...]
    recipe: str
    """Which all its nodes have."""
    seconds: float
    """What a token is expected to take."""

    @property
    def node_ids(self) -> tuple[NodeId, ...]:
        """Its nodes, head first."""
        return tuple(hop.node_id for hop in self.hops)


@dataclass(frozen=True, slots=True)
class _Terms:
    """Which nodes may be chosen."""

    state: ClusterState
    observed: Observed
    digest: Digest
    now: float
    avoid: Collection[NodeId] = ()
    erring: bool = False
    """Whether nodes that erred lately may be."""
    leaving: bool = False
    """Whether nodes may be that are drained, or are to hold other layers by now."""

    def allow(self, node_id: NodeId, layers: LayerRange) -> bool:
        """Whether a node that serves ``layers`` may be in the chain."""
        member = self.state.members.get(node_id)
        if member is None or node_id in self.avoid:
            return False
        stays = not member.drained and member.share == Share(self.digest, layers)
        return (
            (self.leaving or stays)
            and self.observed.is_live(node_id, self.now)
            and (self.erring or not self.observed.is_avoided(node_id, self.now))
        )


@dataclass(frozen=True, slots=True)
class _Way:
    """A chain up to some layer."""

    seconds: float
    node_id: NodeId
    layers: LayerRange
    head: NodeId
    before: _Way | None

    def hops(self, observed: Observed) -> tuple[Hop, ...]:
        """From the head to this node."""
        record = observed.record(self.node_id)
        address = Address("") if record is None or record.address is None else record.address
        before = () if self.before is None else self.before.hops(observed)
        return (*before, Hop(self.node_id, address, self.layers))


_Ways = dict[NodeId, _Way]
"""The best ways to one node, by their heads."""


def route_for(
    state: ClusterState,
    observed: Observed,
    digest: Digest,
    now: float,
    avoid: Collection[NodeId] = (),
) -> Route:
    """The best chain for a request; nodes in ``avoid`` are in none.

    Nodes that erred lately are chosen only where there is no chain without them, and so are, after
    those, nodes that serve on though they are drained or told to hold other layers. Tell
    ``observed.took`` when it is used. Raises ``ModelNotFoundError`` for a model that isn't offered,
    and ``NodeNotReadyError`` that says which layers nobody has ready.
    """
    offer = _offer_of(state, digest)
    for erring, leaving in ((False, False), (True, False), (True, True)):
        terms = _Terms(state, observed, digest, now, avoid, erring, leaving)
        found = [
            (way, recipe)
            for recipe, ranges in observed.ranked(digest).items()
            if (way := _best(terms, ranges, offer)) is not None
        ]
        if found:
            way, recipe = min(found, key=lambda each: each[0].seconds)
            hops = way.hops(observed)
            require_chain([hop.layers for hop in hops], offer.total_layers)
            return Route(digest, offer.epoch, hops, recipe, way.seconds)
    raise _not_ready(state, observed, digest, now, avoid)


def missing_layers(
    state: ClusterState,
    observed: Observed,
    digest: Digest,
    now: float,
    avoid: Collection[NodeId] = (),
) -> tuple[LayerRange, ...]:
    """The layers that no live node has ready, in order; raises ``ModelNotFoundError``."""
    total = _offer_of(state, digest).total_layers
    terms = _Terms(state, observed, digest, now, avoid, erring=True, leaving=True)
    there = {
        layers
        for ranges in observed.ranked(digest).values()
        for layers, ranked in ranges.items()
        if any(terms.allow(node_id, layers) for _, node_id in ranked)
    }
    return _gaps(there, total)


def _offer_of(state: ClusterState, digest: Digest) -> Offer:
    offer = state.models.get(digest)
    if offer is None:
        raise ModelNotFoundError(f"no model {digest} is offered here", model=digest)
    return offer


def _gaps(there: Iterable[LayerRange], total: int) -> tuple[LayerRange, ...]:
    reached, gaps = 0, []
    for held in sorted(there):
        if held.start > reached:
            gaps.append(LayerRange(reached, held.start))
        reached = max(reached, held.end)
    if reached < total:
        gaps.append(LayerRange(reached, total))
    return tuple(gaps)


def _best(terms: _Terms, ranges: Mapping[LayerRange, Ranked], offer: Offer) -> _Way | None:
    """The best chain over nodes of one recipe; None if there is none."""
    total_layers, row_bytes = offer.total_layers, offer.shape.boundary_bytes
    ways: dict[int, list[_Ways]] = {}
    for layers in sorted(ranges):
        before = ways.get(layers.start, [])
        if layers.start > 0 and not before:
            continue
        for seconds, node_id in _choices(terms, layers, ranges[layers]):
            if layers.start == 0:
                here = {node_id: _Way(seconds, node_id, layers, node_id, None)}
            else:
                here = _extended(before, seconds, node_id, layers, terms.observed, row_bytes)
            ways.setdefault(layers.end, []).append(here)
    there = (way for here in ways.get(total_layers, []) for way in here.values())
    closed = (_closed(way, terms.observed) for way in there)
    return min(closed, key=lambda way: way.seconds, default=None)


def _extended(
    before: Iterable[_Ways],
    seconds: float,
    node_id: NodeId,
    layers: LayerRange,
    observed: Observed,
    row_bytes: int,
) -> _Ways:
    """The best ways to a node, one for each head, since a token goes back to it."""
    here: _Ways = {}
    for there in before:
        link = observed.link_seconds(next(iter(there.values())).node_id, node_id, row_bytes)
        for head, way in there.items():
            total = way.seconds + link + seconds
            known = here.get(head)
            if known is None or total < known.seconds:
                here[head] = _Way(total, node_id, layers, head, way)
    return here


def _choices(terms: _Terms, layers: LayerRange, ranked: Ranked) -> Iterator[tuple[float, NodeId]]:
    allowed = (each for each in ranked if terms.allow(each[1], layers))
    return itertools.islice(allowed, CHOICES)


def _closed(way: _Way, observed: Observed) -> _Way:
    """The whole chain with the way of a token back to the head."""
    if way.before is None:
        return way
    back = observed.link_seconds(way.node_id, way.head)
    return _Way(way.seconds + back, way.node_id, way.layers, way.head, way.before)


def _not_ready(
    state: ClusterState,
    observed: Observed,
    digest: Digest,
    now: float,
    avoid: Collection[NodeId],
) -> NodeNotReadyError:
    name = state.models[digest].name
    missing = ", ".join(map(str, missing_layers(state, observed, digest, now, avoid)))
    if missing:
        return NodeNotReadyError(
            f"{name}: no node is ready with layers {missing}", model=digest, missing=missing
        )
    return NodeNotReadyError(
        f"{name}: all layers are held, but not by nodes of one recipe whose ranges join",
        model=digest,
    )
