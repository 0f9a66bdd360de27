"""Which machines give another one the layers that it is to hold, before the first machine. Pure.

Bytes are checked against the model's digest wherever they come from, so that a bad choice costs
time alone. A few machines are chosen of all that have the layers: near ones first, and of those
that are equally near others for each machine that asks, so that they share the load.
"""

from __future__ import annotations

import ipaddress
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker import messages as msg
from meshnet.tracker.observed import LINK_SECONDS, Observed
from meshnet.tracker.state import Assignment, ClusterState
from meshnet.transport.address import parse_address

COPIES: Final = 3
"""How many machines are to have each layer, where there are so many."""
AGAIN: Final = 10
_IPV4_NETWORK, _IPV6_NETWORK = 24, 64
"""Bits of an address that machines of one local network usually share."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A machine that has a slice of the model, and gives it."""

    node_id: NodeId
    name: str
    address: str
    layers: LayerRange
    link_seconds: float
    """One way to the machine that asks, as far as it is known."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The layers that a machine is to get."""

    node_id: NodeId
    layers: LayerRange
    total_layers: int
    address: str | None
    """Where the machine is; None: not known."""


def choose_holders(wanted: Wanted, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Up to ``MAX_HOLDERS`` of the candidates, those to be asked first in front.

    As many as it takes for each layer (the embeddings and the output too) to be had from
    :data:`COPIES` of them, or from one at least.
    """
    parts = _parts(wanted.layers, wanted.total_layers)
    left = sorted(candidates, key=lambda it: _rank(wanted, it))
    copies = dict.fromkeys(parts, 0)
    chosen: list[Candidate] = []
    for most in range(1, COPIES + 1):
        for each in list(left):
            useful = _parts(each.layers, wanted.total_layers) & parts
            if len(chosen) < msg.MAX_HOLDERS and any(copies[part] < most for part in useful):
                chosen.append(each)
                left.remove(each)
                for part in useful:
                    copies[part] += 1
    return tuple(chosen)


def told_reply(told: Assignment, holders: Iterable[Candidate] = ()) -> msg.AssignmentReply:
    """What a machine is told to hold, and whom to ask for it."""
    return msg.AssignmentReply(
        model=told.digest,
        name=told.name,
        start=told.layers.start,
        end=told.layers.end,
        total_layers=told.total_layers,
        epoch=told.epoch,
        serving=told.serving,
        holders=tuple(
            msg.HolderReply(
                node_id=it.node_id,
                name=it.name,
                address=it.address,
                start=it.layers.start,
                end=it.layers.end,
            )
            for it in holders
        ),
    )


@dataclass(frozen=True, slots=True)
class Holders:
    """All machines of a cluster, any of which may hold weights."""

    state: ClusterState
    beats: Mapping[NodeId, msg.HeartbeatRequest]
    observed: Observed
    unreachable: Callable[[], Collection[NodeId]]
    """Gives those that others can't reach, or over the relay alone; not asked at most heartbeats,
    since it looks at all machines."""

    def tell(self, node_id: NodeId, told: Assignment, now: float) -> msg.AssignmentReply:
        """What a machine is told; whom to ask before it begins to fetch, and now and then later."""
        beat = self.beats[node_id]
        phases = {work.phase for work in beat.work if _is_of(work, told)}
        if not phases <= {msg.Phase.FAILED} and not (
            msg.Phase.FETCHING in phases and self._is_due(node_id, now)
        ):
            return told_reply(told)
        address = beat.weights.address or beat.worker_address
        wanted = Wanted(node_id, told.layers, told.total_layers, address)
        return told_reply(told, choose_holders(wanted, self._candidates(wanted, told, now)))

    def _is_due(self, node_id: NodeId, now: float) -> bool:
        """Whether a machine that fetches is told again: at one of :data:`AGAIN` heartbeats or so.

        Choosing looks at all machines, so it isn't done for all that fetch at once.
        """
        beats = int(now / self.observed.policy.heartbeat_seconds)
        return (beats + zlib.crc32(node_id.encode())) % AGAIN == 0

    def _candidates(self, wanted: Wanted, told: Assignment, now: float) -> Iterator[Candidate]:
        apart = {wanted.node_id, *self.unreachable()}
        for node_id, beat in self.beats.items():
            address, member = beat.weights.address, self.state.members.get(node_id)
            if address is None or member is None or node_id in apart:
                continue
            if not self.observed.is_live(node_id, now):
                continue
            for held in beat.weights.slices:
                if held.model == told.digest and held.end <= told.total_layers:
                    layers = LayerRange(held.start, held.end)
                    link = self.observed.link_seconds(node_id, wanted.node_id)
                    yield Candidate(node_id, member.name, address, layers, link)


def _is_of(work: msg.WorkReport, told: Assignment) -> bool:
    layers = told.layers
    return (work.model, work.start, work.end) == (told.digest, layers.start, layers.end)


def _parts(layers: LayerRange, total_layers: int) -> set[int]:
    """What a slice has: its layers, -1 for the embeddings, and one past the last for the output.

    And -2 for either of these, which may be one and the same tensor.
    """
    parts = set(layers)
    if layers.is_head():
        parts |= {-1, -2}
    if layers.is_tail(total_layers):
        parts |= {total_layers, -2}
    return parts


def _rank(wanted: Wanted, it: Candidate) -> tuple[bool, int, int]:
    """The nearest first; among equals an order that differs from one asking machine to the next."""
    near = wanted.address is not None and _network(it.address) == _network(wanted.address)
    doublings = round(math.log2(max(it.link_seconds / LINK_SECONDS, 1.0)))
    return not near, doublings, zlib.crc32(f"{wanted.node_id} {it.node_id}".encode())


def _network(address: str) -> str:
    """The local network of an address; of a name, the name."""
    host = ""
    try:
        host, _ = parse_address(address, "address")
        version = ipaddress.ip_address(host).version
    except (ValueError, InvalidArgumentError):
        return host
    bits = _IPV4_NETWORK if version == 4 else _IPV6_NETWORK
    return str(ipaddress.ip_network(f"{host}/{bits}", strict=False))
