"""What an answer used, who is charged for it, and who earns.

Work is counted in tokens times layers. A key pays for the tokens that had to be computed for its
request: those of the prompt that no kept cache stood for, and those of the answer but for its last
one, which is chosen and not computed. That follows from what the gateway has seen itself. A node
earns as much for each of its layers; where both sides of each seam sign what passed, it earns by
these receipts (``tracker/receipts.py``) instead, and the house gets what the key pays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.nodes import Hop, HopTimings
from meshnet.domain.seamcounts import decode_rows
from meshnet.tracker.ledger import Entry, entry_of, key_account, node_account

MOST = 2**45
"""Nanoseconds (nine hours) or bytes that a node is believed to have used for one choice."""


@dataclass(frozen=True, slots=True)
class NodeUse:
    """One node's part of an answer."""

    node_id: str
    token_layers: int
    """Tokens that the answer needed times the layers that the node gave to it."""
    engine_nanos: int = 0
    """Inside the engine's steps, as the node says; 0 where its timings didn't come."""
    boundary_bytes: int = 0
    """Of the boundaries that it handed on, before any compression; likewise."""
    signed: bool = False
    """Whether it earns by receipts, and so nothing by the gateway's word."""


@dataclass(frozen=True, slots=True)
class GenerationUse:
    """One choice of an answer, as far as it came."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    hops: tuple[Hop, ...]
    """Its chain; empty if no node let it in."""
    timings: tuple[HopTimings, ...] = ()
    """What the nodes counted; empty unless the generation ended at the head."""
    ended: bool = False
    """Whether the model ended it, by a token that isn't one of the answer's."""
    signed: bool = False
    """Whether there are receipts for what the nodes did."""

    @property
    def tokens(self) -> int:
        """Tokens that had to be computed; none if no node let it in."""
        if not self.hops:
            return 0
        prompt = max(self.prompt_tokens - self.cached_tokens, 0)
        return prompt + decode_rows(self.completion_tokens, ended=self.ended)

    @property
    def token_layers(self) -> int:
        """The same times the model's layers."""
        return self.tokens * sum(len(hop.layers) for hop in self.hops)

    def nodes(self) -> tuple[NodeUse, ...]:
        """Each node's part, head first."""
        told = {hop.node_id: hop for hop in self.timings}
        return tuple(self._node(hop, told.get(hop.node_id)) for hop in self.hops)

    def _node(self, hop: Hop, told: HopTimings | None) -> NodeUse:
        token_layers = self.tokens * len(hop.layers)
        if told is None:
            return NodeUse(hop.node_id, token_layers, signed=self.signed)
        nanos = min(told.prefill_engine_nanos + told.decode_engine_nanos, MOST)
        size = min(told.boundary_bytes, MOST)
        return NodeUse(hop.node_id, token_layers, nanos, size, self.signed)


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """One answer; raises :class:`InvalidArgumentError` for a count below 0."""

    entry_id: str
    """The answer's own id, which is never used twice."""
    request_id: str
    """The ``x-request-id``, which clients may choose."""
    key_id: str
    model: str
    began_unix: int
    seconds: float
    end: str
    """How the answer ended: ``done``, ``left``, or an error's code."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    token_layers: int
    """What the key pays for."""
    nodes: tuple[NodeUse, ...]

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "token_layers"):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(name, f"{getattr(self, name)} can't be negative")

    @property
    def tokens(self) -> int:
        """What counts for the key's limit: the prompt and the answer, as the client is told."""
        return self.prompt_tokens + self.completion_tokens

    def entry(self) -> Entry:
        """The ledger's entry for it."""
        earned = {
            node_account(node.node_id): node.token_layers for node in self.nodes if not node.signed
        }
        return entry_of(
            self.entry_id,
            self.began_unix,
            {key_account(self.key_id): -self.token_layers, **earned},
        )


def joined(parts: Sequence[GenerationUse]) -> tuple[NodeUse, ...]:
    """The nodes of all choices, each node once, in the order in which they first come."""
    found: dict[str, NodeUse] = {}
    for node in (node for part in parts for node in part.nodes()):
        before = found.get(node.node_id)
        found[node.node_id] = (
            node
            if before is None
            else NodeUse(
                node.node_id,
                before.token_layers + node.token_layers,
                before.engine_nanos + node.engine_nanos,
                before.boundary_bytes + node.boundary_bytes,
                before.signed or node.signed,
            )
        )
    return tuple(found.values())


class Grouping(StrEnum):
    """What use is summed by."""

    KEY = "key"
    NODE = "node"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class UsageSum:
    """The use of one key, model or node over a time."""

    name: str
    requests: int
    token_layers: int
    counts: Mapping[str, int]
    """``prompt_tokens``, ``cached_tokens`` and ``completion_tokens`` of a key or a model,
    ``engine_nanos`` and ``boundary_bytes`` of a node."""
