"""What a node is made of, as its sessions see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshnet.domain.ids import NodeId
from meshnet.domain.nodes import FlowControl
from meshnet.domain.recipe import Fingerprint
from meshnet.domain.tensors import DType
from meshnet.domain.tracing import NO_TRACER, Tracer
from meshnet.engine.base import EngineCapabilities, ShardEngine
from meshnet.node.returns import DeadEnds
from meshnet.node.stepper import EngineStepper
from meshnet.transport.channel import ChannelPool
from meshnet.wire.narrow import dtypes_for


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What every session of a node works with."""

    node_id: NodeId
    engine: ShardEngine
    capabilities: EngineCapabilities
    stepper: EngineStepper
    channels: ChannelPool
    flow: FlowControl
    dead_ends: DeadEnds = field(default_factory=DeadEnds)
    boundaries: Mapping[Fingerprint, DType] = field(default_factory=dict)
    """What a seam may carry, by the fingerprint that a session names to have it; a fingerprint that
    isn't here means float32."""
    tracer: Tracer = NO_TRACER
    keep_seconds: float = 0.0
    """How long the cache of a session that has ended stays for others to begin with; 0: not."""
    idle_seconds: float = 300.0
    """After which a session ends whose upstream says nothing and gives no credits."""


def boundaries(float32: Fingerprint, n_embd: int) -> dict[Fingerprint, DType]:
    """Every boundary that a node can take and give beside its engine, by fingerprint.

    ``float32`` is the fingerprint of the node's recipe, whose boundary is that.
    """
    return {float32.with_boundary(dtype): dtype for dtype in dtypes_for(n_embd)}
