"""What a placement means for people: speed, what limits it, what another machine would bring."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshnet.domain.errors import InvalidArgumentError, ResourceExhaustedError
from meshnet.model.description import ModelInfo, free_cuts, legal_cuts, require_cuttable
from meshnet.tracker.messages import PROMPT_TOKENS
from meshnet.tracker.observed import LINK_RATE, LINK_SECONDS
from meshnet.tracker.placement import (
    Demand,
    Machine,
    Matrix,
    ModelShape,
    Placement,
    uniform_links,
)
from meshnet.tracker.search import place
from meshnet.tracker.speeds import Hop, first_token_seconds, parts_of

_KV_ITEM_BYTES = 2
"""The cache's float16."""
_BOUNDARY_ITEM_BYTES = 4
"""The boundary's float32."""


@dataclass(frozen=True, slots=True)
class Link(Hop):
    """What connects any two machines: a switched local network unless stated."""

    latency_seconds: float = LINK_SECONDS
    bytes_per_second: float = LINK_RATE

    def __post_init__(self) -> None:
        if not 0 <= self.latency_seconds < float("inf"):
            raise InvalidArgumentError("link", f"a delay of {self.latency_seconds} s is none")
        if not self.bytes_per_second > 0:
            raise InvalidArgumentError("link", f"{self.bytes_per_second} bytes/s carry nothing")


@dataclass(frozen=True, slots=True)
class Network:
    """What connects machines: measured links by their indices, and what stands for all others."""

    others: Link
    measured: Mapping[tuple[int, int], Hop]

    def hop(self, sender: int, receiver: int) -> Hop:
        """From one machine to another."""
        known = self.measured.get((sender, receiver)) or self.measured.get((receiver, sender))
        return known or self.others

    def matrix(self, machines: int, row_bytes: int) -> Matrix:
        """How long a row takes, in seconds, shape (machines, machines)."""
        links = uniform_links(machines, self.others.seconds(row_bytes))
        for sender, receiver in self.measured:
            links[receiver, sender] = self.hop(receiver, sender).seconds(row_bytes)
            links[sender, receiver] = self.hop(sender, receiver).seconds(row_bytes)
        return links


@dataclass(frozen=True, slots=True)
class OneMore:
    """What another machine like ``machine`` would bring."""

    machine: Machine
    token_seconds: float
    bottleneck_seconds: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """A placement, what limits it, and what one more machine of each kind would bring."""

    placement: Placement
    limit: str
    """The part of the way that takes longest, in words."""
    limit_share: float
    """Its share of a token's time."""
    one_more: tuple[OneMore, ...]
    first_token_seconds: float | None = None
    """Of a prompt of :data:`PROMPT_TOKENS`; None where a machine wasn't measured with prompts."""


def shape_of(info: ModelInfo, *, allow_unverified: bool = False) -> ModelShape:
    """The sizes that placement works with.

    Its cuts are those that cost no layers of zeros, or all legal ones where there are none such.
    Raises :class:`~meshnet.domain.errors.ModelUnsupportedError` for a model that mustn't be cut.
    """
    require_cuttable(info, allow_unverified=allow_unverified)
    cuts = legal_cuts(info, allow_unverified=allow_unverified)
    values = info.kv_heads * (info.key_size + info.value_size)
    return ModelShape(
        info.layer_bytes,
        info.embedding_bytes,
        info.output_bytes,
        info.other_bytes,
        values * _KV_ITEM_BYTES,
        info.n_embd * _BOUNDARY_ITEM_BYTES,
        free_cuts(info, cuts) or cuts,
        tied=info.tied_embeddings,
    )


def forecast(
    shape: ModelShape, machines: Sequence[Machine], link: Link | Network, demand: Demand
) -> Forecast:
    """Place the model and say what that means; raises ``ResourceExhaustedError`` if it can't be.

    ``link`` is that between any two machines, or those that there are.
    """
    placement = _place(shape, machines, link, demand)
    limit, seconds = max(_parts(placement, machines), key=lambda part: part[1])
    share = seconds / placement.token_seconds if placement.token_seconds else 0.0
    kinds = list(dict.fromkeys(machines))
    more = tuple(_one_more(shape, machines, kind, link, demand) for kind in kinds)
    first = _first_token(shape, placement, machines, _network(link))
    return Forecast(placement, limit, share, more, first)


def smallest_addition(
    shape: ModelShape,
    machines: Sequence[Machine],
    link: Link | Network,
    demand: Demand,
    most: int = 64,
) -> tuple[Machine, int] | None:
    """The machine of the given kinds of which the fewest more make the model fit, and how many.

    None if ``most`` of none are enough.
    """
    for count in range(1, most + 1):
        for kind in dict.fromkeys(machines):
            try:
                _place(shape, [*machines, *[kind] * count], link, demand)
            except ResourceExhaustedError:
                continue
            return kind, count
    return None


def _network(link: Link | Network) -> Network:
    return link if isinstance(link, Network) else Network(link, {})


def _place(
    shape: ModelShape, machines: Sequence[Machine], link: Link | Network, demand: Demand
) -> Placement:
    links = _network(link).matrix(len(machines), shape.boundary_bytes)
    return place(shape, machines, links, demand)


def _first_token(
    shape: ModelShape, placement: Placement, machines: Sequence[Machine], network: Network
) -> float | None:
    stages = placement.stages
    held = [(stage.layers, machines[stage.machine].speed) for stage in stages]
    parts = parts_of(shape.layer_bytes, shape.output_bytes, held)
    ring = itertools.pairwise([*(stage.machine for stage in stages), stages[0].machine])
    hops = [network.hop(one, other) for one, other in ring] if len(stages) > 1 else []
    return first_token_seconds(parts, hops, shape.boundary_bytes, PROMPT_TOKENS)


def _one_more(
    shape: ModelShape,
    machines: Sequence[Machine],
    kind: Machine,
    link: Link | Network,
    demand: Demand,
) -> OneMore:
    better = _place(shape, [*machines, replace(kind)], link, demand)
    return OneMore(kind, better.token_seconds, better.bottleneck_seconds)


def _parts(placement: Placement, machines: Sequence[Machine]) -> list[tuple[str, float]]:
    parts = [
        (f"{machines[stage.machine].name} computing layers {stage.layers}", stage.seconds)
        for stage in placement.stages
    ]
    hops = float(np.sum(placement.hop_seconds))
    return [*parts, (f"{len(placement.hop_seconds)} hops between machines", hops)]
