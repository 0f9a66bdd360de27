"""Answers what the gateway's process asks the tracker's."""

from __future__ import annotations

from collections.abc import Iterable

from meshnet.domain.errors import NodeNotReadyError
from meshnet.domain.ids import Digest, NodeId
from meshnet.tracker.asking import (
    MAX_RELAYED,
    HopMessage,
    RelayReply,
    RelayRequest,
    RouteReply,
    RouteRequest,
)
from meshnet.tracker.service import TrackerService


def answer_route(service: TrackerService, request: RouteRequest) -> RouteReply:
    """Take in how chains did, and choose the next; raises what else a route raises."""
    service.took(_ids(request.took))
    service.worked(_ids(request.worked))
    for node_id in _ids(request.erred):
        service.erred(node_id)
    for run in request.runs:
        service.ran(run)
    if request.model is None:
        return RouteReply()
    try:
        hops = service.route(Digest(request.model)).hops
    except NodeNotReadyError as error:
        return RouteReply(problem=error.message[:1000])
    return RouteReply(
        hops=tuple(
            HopMessage(
                node_id=hop.node_id,
                address=hop.address,
                start=hop.layers.start,
                end=hop.layers.end,
            )
            for hop in hops
        )
    )


def answer_relay(service: TrackerService, request: RelayRequest) -> RelayReply:
    """Take in who waits at the relay, and say who may."""
    service.reach.wait_at_relay(_ids(request.waiting), service.now)
    members = service.state.members.keys()
    return RelayReply(
        admitted=tuple(sorted(service.reach.relayed))[:MAX_RELAYED],
        members=tuple(node_id for node_id in request.carried if node_id in members),
    )


def _ids(texts: Iterable[str]) -> list[NodeId]:
    return [NodeId(text) for text in texts]
