"""The network as the dashboard sees it: machines, their layers, and what can be asked of them.

Views are plain values of one moment. Counters among them only grow while a process lives, so that a
reader who looks twice knows the rate. What isn't known is None, and is shown as such.
"""

from __future__ import annotations

import abc
from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.layers import LayerRange
from meshnet.gateway.whatif import PlanView, WhatIf


class NodeState(StrEnum):
    """What a machine is good for now."""

    READY = "ready"
    LOADING = "loading"
    """It fetches or loads its layers."""
    DRAINING = "draining"
    """It finishes what it has and takes nothing new."""
    SPARE = "spare"
    """It is there and holds no layers."""
    FAILED = "failed"
    """It answers, and says that its engine doesn't work."""
    DOWN = "down"
    """It can't be reached."""


class Operation(StrEnum):
    """What some networks let be done from outside, and others don't."""

    JOIN = "join"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    REMOVE = "remove"
    WHAT_IF = "what_if"


@dataclass(frozen=True, slots=True)
class Work:
    """Steps of one phase that a node's engine computed since the node's process started."""

    steps: int = 0
    step_seconds: float = 0.0
    """Sum over steps, from handing one to the engine to its results being back."""
    waits: int = 0
    """Requests of sessions, of which one step may hold several."""
    wait_seconds: float = 0.0
    """Sum over those requests, from coming in to their step's start."""
    rows: int = 0
    """Positions computed."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One machine."""

    node_id: str
    """What tells it apart, and what operations take."""
    state: NodeState
    address: str = ""
    layers: LayerRange | None = None
    reason: str = ""
    """Why it isn't ready; empty where there is nothing to say."""
    open_sessions: int | None = None
    max_sessions: int | None = None
    queued_steps: int | None = None
    kv_used: int | None = None
    """Positions that its caches hold."""
    kv_limit: int | None = None
    """Positions that its sessions may hold together."""
    memory_bytes: int | None = None
    """Memory that its process has."""
    memory_limit_bytes: int | None = None
    deaths: int | None = None
    """How often its process ended that should have gone on."""
    prefill: Work | None = None
    decode: Work | None = None
    progress: float | None = None
    """Of loading, from 0 to 1."""
    name: str = ""
    """What people call it; empty where that is its id."""


@dataclass(frozen=True, slots=True)
class LinkView:
    """A connection between two machines, or from the gateway (an empty ``source``) to one."""

    source: str
    target: str
    round_trip_seconds: float | None = None
    """Of a small question and its answer; includes the asked process's share of a processor."""
    sent_bytes: int | None = None
    """From source to target since the source's process started."""

    def __post_init__(self) -> None:
        if not self.target or self.source == self.target:
            raise InvalidArgumentError("target", f"{self.source!r} has no link to {self.target!r}")


@dataclass(frozen=True, slots=True)
class NetworkView:
    """A model and the machines that hold it. Ranges may overlap where machines stand in for one
    another, and may leave gaps where some are missing."""

    model: str
    total_layers: int
    nodes: tuple[NodeView, ...]
    links: tuple[LinkView, ...] = ()
    architecture: str = ""
    context_length: int = 0
    boundary: str = ""
    """Type of what crosses a seam; empty where it isn't known."""
    note: str = ""
    """What people ought to know about the network as a whole; empty if there is nothing."""

    def __post_init__(self) -> None:
        if self.total_layers < 1:
            raise InvalidArgumentError("total_layers", f"{self.total_layers} must be at least 1")
        names = [node.node_id for node in self.nodes]
        if len(set(names)) != len(names):
            raise InvalidArgumentError("nodes", "two have the same name")
        for node in self.nodes:
            if node.layers is not None:
                node.layers.within(self.total_layers)

    @property
    def missing_layers(self) -> tuple[int, ...]:
        """Layers that no ready or draining machine holds, in order."""
        serving = (NodeState.READY, NodeState.DRAINING)
        held = {
            layer
            for node in self.nodes
            if node.layers is not None and node.state in serving
            for layer in node.layers
        }
        return tuple(layer for layer in range(self.total_layers) if layer not in held)


@dataclass(frozen=True, slots=True)
class HopShare:
    """One node's part of a request's time, in milliseconds: of the prompt as a whole, and of each
    generated token.

    ``wait`` is, while decoding, the way to the next node and back; in the prompt, what the node
    spent neither computing nor packing.
    """

    node_id: str
    layers: str
    prefill_start: float = 0.0
    prefill_queue: float = 0.0
    prefill_engine: float = 0.0
    prefill_codec: float = 0.0
    prefill_wait: float = 0.0
    decode_steps: int = 0
    decode_queue: float = 0.0
    decode_engine: float = 0.0
    decode_codec: float = 0.0
    decode_wait: float = 0.0


class RequestState(StrEnum):
    """Where a request stands."""

    WAITING = "waiting"
    """The nodes have no room for it yet."""
    PROMPT = "prompt"
    """No token has come yet."""
    ANSWER = "answer"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self not in (RequestState.WAITING, RequestState.PROMPT, RequestState.ANSWER)


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request at the gateway, under way or over. Holds no text of anybody's."""

    request_id: str
    """What ``DELETE /v1/requests/{id}`` takes."""
    model: str
    state: RequestState
    began_unix: float
    seconds: float
    """So far, or to its end."""
    prompt_tokens: int
    completion_tokens: int
    first_token_seconds: float | None = None
    choices: int = 1
    end: str = ""
    """How it ended: a finish reason or an error's code."""
    hops: tuple[HopShare, ...] = ()
    """Head first. While it is under way: means over the steps that its nodes computed meanwhile."""
    exact: bool = False
    """Whether ``hops`` are the request's own times."""


class Machines(abc.ABC):
    """A network that a gateway serves. :attr:`operations` says which others than looking it offers.

    Methods raise :class:`~meshnet.domain.errors.MeshnetError`; of an operation that isn't offered,
    ``InvalidArgumentError``.
    """

    operations: Set[Operation] = frozenset()

    @abc.abstractmethod
    async def look(self) -> NetworkView:
        """The network of now. A machine that can't be asked is shown as down, not raised.

        Called about once a second while somebody watches, and never twice at once.
        """

    async def join_line(self) -> str:
        """The command that a further machine is to run; it may hold a secret."""
        raise _not_offered(Operation.JOIN)

    async def drain(self, node_id: str) -> None:
        """Let a machine finish what it has and take nothing new."""
        raise _not_offered(Operation.DRAIN)

    async def undrain(self, node_id: str) -> None:
        """Use a drained machine again."""
        raise _not_offered(Operation.UNDRAIN)

    async def remove(self, node_id: str) -> None:
        """Take a machine out of the network, at once."""
        raise _not_offered(Operation.REMOVE)

    async def plan(self) -> WhatIf:
        """The question that stands for the network as it is, to be changed and asked."""
        raise _not_offered(Operation.WHAT_IF)

    async def what_if(self, question: WhatIf) -> PlanView:
        """How the model would be placed, and how fast; changes nothing."""
        raise _not_offered(Operation.WHAT_IF)


def _not_offered(operation: Operation) -> InvalidArgumentError:
    return InvalidArgumentError("operation", f"this network doesn't offer {operation.value}")
