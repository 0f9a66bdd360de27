"""A node process's configuration: frozen, validated, handed in whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import FlowControl
from meshnet.domain.recipe import MAX_CHUNK_TOKENS
from meshnet.engine.base import EngineLimits
from meshnet.engine.fixture import Fault


@dataclass(frozen=True, slots=True)
class LlamaEngineConfig:
    """A slice of a GGUF model on libllama."""

    slice_path: Path
    model_digest: Digest
    slice_digest: Digest
    architecture: str
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    flash_attention: bool = False
    kind: Literal["libllama"] = "libllama"


@dataclass(frozen=True, slots=True)
class FixtureEngineConfig:
    """The deterministic engine without a model; ``faults`` strike on schedule."""

    faults: tuple[Fault, ...] = ()
    step_seconds: float = 0.0
    kind: Literal["fixture"] = "fixture"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """One node: which layers, where it listens, what it may use.

    Raises :class:`InvalidArgumentError` or :class:`LayerRangeError` for values that can't be.
    """

    node_id: NodeId
    shard_start: int
    shard_end: int
    total_layers: int
    engine: LlamaEngineConfig | FixtureEngineConfig
    listen: str = "127.0.0.1:0"
    """``host:port``; port 0 takes a free one."""
    next_address: Address | None = None
    limits: EngineLimits = field(default_factory=EngineLimits)
    flow: FlowControl = field(default_factory=FlowControl)
    chunk_tokens: int = 128

    def __post_init__(self) -> None:
        if not self.node_id:
            raise InvalidArgumentError("node_id", "a node needs a name")
        LayerRange(self.shard_start, self.shard_end).within(self.total_layers)
        if not 1 <= self.chunk_tokens <= MAX_CHUNK_TOKENS:
            raise InvalidArgumentError(
                "chunk_tokens", f"{self.chunk_tokens} must be 1 to {MAX_CHUNK_TOKENS}"
            )
        if self.flow.max_sessions > self.limits.max_sessions:
            raise InvalidArgumentError(
                "max_sessions",
                f"the node would accept {self.flow.max_sessions} sessions, but the engine has "
                f"room for {self.limits.max_sessions}",
            )

    def to_json(self) -> bytes:
        """For the worker process's standard input: one line."""
        return _ADAPTER.dump_json(self)

    @staticmethod
    def from_json(text: bytes) -> NodeConfig:
        """Read what :meth:`to_json` wrote; raises :class:`InvalidArgumentError`."""
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            raise InvalidArgumentError("node configuration", str(error)) from error


_ADAPTER = TypeAdapter(NodeConfig)
