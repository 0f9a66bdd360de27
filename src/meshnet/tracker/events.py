"""What can happen to a cluster, each as a value that is written down and never changed.

Events hold what must outlive the tracker. What a machine says of itself every two seconds isn't
among them: that is :mod:`meshnet.tracker.observed`, and is gone when the tracker ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter, ValidationError

from meshnet.domain.errors import InputError, InvalidArgumentError
from meshnet.domain.ids import Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker.leases import Hours
from meshnet.tracker.messages import Serving
from meshnet.tracker.placement import Demand, ModelShape

EVENT_VERSION: Final = 1
"""Of the way events are written; grows when a field changes its meaning."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What a machine lends, its owner's limits applied."""

    memory_bytes: int
    """For weights and caches, those of its own shard included."""
    bytes_per_second: float
    """Of weights, multiplied by one row."""
    hours: Hours | None = None
    """When it may be used; None: always."""

    def __post_init__(self) -> None:
        if self.memory_bytes < 0:
            raise InvalidArgumentError("memory_bytes", f"{self.memory_bytes} can't be negative")
        if not 0 < self.bytes_per_second < float("inf"):
            raise InvalidArgumentError(
                "bytes_per_second", f"{self.bytes_per_second} must be more than 0"
            )


@dataclass(frozen=True, slots=True)
class Seat:
    """Which layers of which model a node is to hold."""

    node_id: NodeId
    layers: LayerRange


@dataclass(frozen=True, slots=True)
class ClusterMade:
    """A cluster began."""

    name: str


@dataclass(frozen=True, slots=True)
class TokenIssued:
    """A join token was given out; of its secret only the SHA-256 is kept, in hexadecimal."""

    token_id: str
    secret_digest: str
    expires_unix: int
    uses: int
    """How many nodes may join with it."""


@dataclass(frozen=True, slots=True)
class TokenRevoked:
    """A join token is good no more: it was taken back, or its time is over."""

    token_id: str


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A machine became a node of the cluster; for one that is a node, it is called otherwise."""

    node_id: NodeId
    name: str
    """What people call it."""
    token_id: str = ""
    """The token it came with, one use of which is over; empty where none was needed."""


@dataclass(frozen=True, slots=True)
class NodeReincarnated:
    """A node's agent was started again; what an older one still says counts no more."""

    node_id: NodeId
    incarnation: int


@dataclass(frozen=True, slots=True)
class NodeReported:
    """What a node lends changed by enough to matter."""

    node_id: NodeId
    resources: Resources


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """A node is to be left by its sessions, and to get no new ones."""

    node_id: NodeId


@dataclass(frozen=True, slots=True)
class NodeUndrained:
    """A drained node is to be used again."""

    node_id: NodeId


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    """A node is no part of the cluster any more, and can't come back under its identity."""

    node_id: NodeId
    unix: int = 0
    """When; 0: not known, which counts as long ago."""


@dataclass(frozen=True, slots=True)
class NodeForgotten:
    """A node was away for so long that it isn't counted on; it may come back by itself."""

    node_id: NodeId


@dataclass(frozen=True, slots=True)
class ModelOffered:
    """The cluster is to serve a model. Offered again, its name and its figures are replaced."""

    digest: Digest
    name: str
    shape: ModelShape
    demand: Demand
    serving: Serving


@dataclass(frozen=True, slots=True)
class ModelWithdrawn:
    """The cluster is to serve a model no more."""

    digest: Digest


@dataclass(frozen=True, slots=True)
class Placed:
    """Who is to hold which layers of a model from now on; nodes not named hold none of it."""

    digest: Digest
    epoch: int
    """Greater than that of the placement before."""
    seats: tuple[Seat, ...]


Event = (
    ClusterMade
    | TokenIssued
    | TokenRevoked
    | NodeJoined
    | NodeReincarnated
    | NodeReported
    | NodeDrained
    | NodeUndrained
    | NodeRemoved
    | NodeForgotten
    | ModelOffered
    | ModelWithdrawn
    | Placed
)

KINDS: Final[Mapping[str, type[Event]]] = {
    "cluster_made": ClusterMade,
    "token_issued": TokenIssued,
    "token_revoked": TokenRevoked,
    "node_joined": NodeJoined,
    "node_reincarnated": NodeReincarnated,
    "node_reported": NodeReported,
    "node_drained": NodeDrained,
    "node_undrained": NodeUndrained,
    "node_removed": NodeRemoved,
    "node_forgotten": NodeForgotten,
    "model_offered": ModelOffered,
    "model_withdrawn": ModelWithdrawn,
    "placed": Placed,
}
"""The name under which each kind is written down; never changed, never used for another."""

_ADAPTERS: Final[dict[str, TypeAdapter[Event]]] = {}
"""Made when they are first asked for: making all takes a tenth of a second."""
_NAMES: Final = {kind: name for name, kind in KINDS.items()}


def event_to_json(event: Event) -> str:
    """The event as a JSON object with its kind and the version of the format."""
    kind = _NAMES[type(event)]
    fields = _adapter(kind).dump_python(event, mode="json")
    return json.dumps({"kind": kind, "version": EVENT_VERSION, **fields}, allow_nan=False)


def event_from_json(text: str) -> Event:
    """The event of :func:`event_to_json`.

    Raises :class:`~meshnet.domain.errors.InvalidArgumentError` for text that isn't one, and for one
    that a newer Meshnet wrote.
    """
    try:
        fields = json.loads(text)
        kind, version = fields.pop("kind"), fields.pop("version")
    except (ValueError, AttributeError, KeyError, TypeError):
        raise InvalidArgumentError("event", "it isn't an object with kind and version") from None
    if version != EVENT_VERSION or not isinstance(kind, str) or kind not in KINDS:
        raise InvalidArgumentError(
            "event", f"{kind!r} of version {version!r} isn't known; a newer Meshnet wrote it"
        )
    try:
        return _adapter(kind).validate_json(json.dumps(fields))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or kind
        raise InvalidArgumentError(f"event.{kind}.{field}", first["msg"]) from None
    except InputError as error:
        raise InvalidArgumentError(f"event.{kind}", error.message) from None


def _adapter(name: str) -> TypeAdapter[Event]:
    if name not in _ADAPTERS:
        _ADAPTERS[name] = TypeAdapter(KINDS[name])
    return _ADAPTERS[name]
