"""What a node says about itself, and how a chain of nodes is written down."""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import LifecycleState
from meshnet.domain.recipe import Fingerprint
from meshnet.domain.status import OK, StructuredStatus
from meshnet.domain.tensors import DType


@dataclass(frozen=True, slots=True)
class Hop:
    """One shard of a route: who holds it, where, and which of its layers the route uses."""

    node_id: NodeId
    address: Address
    layers: LayerRange

    def __str__(self) -> str:
        return f"{self.node_id} (layers {self.layers}, {self.address})"


@dataclass(frozen=True, slots=True)
class FlowControl:
    """Bounds a receiver puts on a sender; the stricter of both peers' holds."""

    chunk_credits: int = 4
    """Prefill chunks of one session that may be unacknowledged; each ack returns one."""
    max_chunk_bytes: int = 64 * 2**20
    """Largest frame the receiver takes."""
    max_queued_work: int = 256
    """Steps that may wait for the engine, over all sessions."""
    max_sessions: int = 8
    """Sessions that may be open at once."""
    max_positions: int = 0
    """Positions that sessions may hold together; 0 means as many as the sessions' contexts."""

    def __post_init__(self) -> None:
        if self.max_positions < 0:
            raise InvalidArgumentError("max_positions", f"{self.max_positions} can't be negative")
        for name in ("chunk_credits", "max_chunk_bytes", "max_queued_work", "max_sessions"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(name, f"{getattr(self, name)} must be at least 1")

    def strictest(self, other: FlowControl) -> FlowControl:
        """The bounds that satisfy both peers."""
        return FlowControl(
            min(self.chunk_credits, other.chunk_credits),
            min(self.max_chunk_bytes, other.max_chunk_bytes),
            min(self.max_queued_work, other.max_queued_work),
            min(self.max_sessions, other.max_sessions),
            min(bounds) if (bounds := _stated(self.max_positions, other.max_positions)) else 0,
        )


def _stated(*bounds: int) -> list[int]:
    return [bound for bound in bounds if bound]


@dataclass(frozen=True, slots=True)
class Capability:
    """What a node holds and can do."""

    node_id: NodeId
    layers: LayerRange
    total_layers: int
    fingerprint: Fingerprint
    slice_digest: Digest
    architecture: str
    context_length: int
    """Positions one session may hold."""
    flow: FlowControl
    dtypes: tuple[DType, ...] = (DType.FLOAT32,)
    next_address: Address | None = None
    """Where this node forwards to when a route doesn't say; None on a tail or when not set."""
    grammars: bool = False
    """Whether it can keep the tokens that it chooses to a grammar; False on all but tails."""

    @property
    def is_head(self) -> bool:
        """Whether the node holds layer 0."""
        return self.layers.is_head()

    @property
    def is_tail(self) -> bool:
        """Whether the node holds the last layer."""
        return self.layers.is_tail(self.total_layers)


@dataclass(frozen=True, slots=True)
class HealthReport:
    """A node's state with its reason; READY means an engine step succeeded recently."""

    state: LifecycleState
    status: StructuredStatus = OK
    open_sessions: int = 0
    steps_done: int = 0


@dataclass(frozen=True, slots=True)
class HopTimings:
    """Where one session's time went on one node, in nanoseconds summed over its steps."""

    node_id: NodeId
    layers: LayerRange
    prefill_tokens: int = 0
    prefill_engine_nanos: int = 0
    decode_steps: int = 0
    decode_engine_nanos: int = 0
    """Inside the engine's step."""
    decode_queue_nanos: int = 0
    """From the step's arrival to its start: waiting for the engine."""
    decode_downstream_nanos: int = 0
    """From handing the step on to the token's return; contains all later nodes' time. 0 on a node
    that tokens don't come back through."""
    prefill_queue_nanos: int = 0
    """From a chunk's arrival to its start."""
    prefill_codec_nanos: int = 0
    """Packing and handing on what chunks gave."""
    prefill_began_nanos: int = 0
    """From accepting the session to the first chunk's arrival."""
    prefill_span_nanos: int = 0
    """From the first chunk's arrival to handing on what the last one gave."""
    decode_codec_nanos: int = 0
    """Packing and handing on what decode steps gave."""
    proposed_tokens: int = 0
    """Guesses at coming tokens that rows were computed for; the head counts them for the chain."""
    accepted_tokens: int = 0
    """Those of them that were right."""
    boundary_bytes: int = 0
    """Of the boundaries handed on to the next node, before any compression; 0 on a tail."""
