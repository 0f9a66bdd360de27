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
from meshnet.domain.recipe import MAX_CHUNK_TOKENS, Machine, Recipe
from meshnet.engine.base import EngineLimits
from meshnet.engine.fixture import Fault
from meshnet.node.schedule import Pace
from meshnet.transport.identity_folder import IdentityFiles

CHUNK_TOKENS = 32
"""Tokens of a prompt that a node computes at once. More were no faster on a CPU, and a chunk that
can't be cut holds up others' tokens."""


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
    long_context: bool = False
    variables: tuple[str, ...] = ()
    """Environment variables that may switch kernels, as ``NAME=value``, sorted."""
    notes: Path | None = None
    """Folder that remembers which files were tried in a process of their own and passed, and what
    is exact in them; None loads the file untried and measures it every time."""
    kind: Literal["libllama"] = "libllama"

    def recipe(self, chunk_tokens: int) -> Recipe:
        """The recipe as far as it doesn't depend on the machine that computes."""
        return Recipe(
            self.model_digest,
            "libllama",
            engine_build="",
            kv_type_k=self.kv_type_k,
            kv_type_v=self.kv_type_v,
            flash_attention=self.flash_attention,
            chunk_tokens=chunk_tokens,
            long_context=self.long_context,
            machine=Machine(variables=self.variables),
        )


@dataclass(frozen=True, slots=True)
class FixtureEngineConfig:
    """The deterministic engine without a model; ``faults`` strike on schedule."""

    faults: tuple[Fault, ...] = ()
    step_seconds: float = 0.0
    kind: Literal["fixture"] = "fixture"


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """Where spans are sent to, and how many."""

    url: str
    """Base URL of an OTLP/HTTP collector."""
    tokens: bool = False
    """A span for every token's step as well."""


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
    chunk_tokens: int = CHUNK_TOKENS
    pace: Pace = field(default_factory=Pace)
    """How long a prompt may delay others' tokens."""
    prefix_cache: bool = True
    """Whether caches stay after their session, for others that begin alike, while there is room."""
    idle_seconds: float = 300.0
    """After which a session ends whose upstream says nothing, and a kept cache nobody used goes."""
    traces: TraceConfig | None = None
    """None sends no traces; what the node hands on keeps its place in one all the same."""
    identity: IdentityFiles | None = None
    """Where its key and certificate are, whose node id ``node_id`` must be. With them the node
    speaks mutual TLS and nothing else; None leaves its port open to all who reach it."""

    def __post_init__(self) -> None:
        if not self.node_id:
            raise InvalidArgumentError("node_id", "a node needs a name")
        LayerRange(self.shard_start, self.shard_end).within(self.total_layers)
        if not 1 <= self.chunk_tokens <= MAX_CHUNK_TOKENS:
            raise InvalidArgumentError(
                "chunk_tokens", f"{self.chunk_tokens} must be 1 to {MAX_CHUNK_TOKENS}"
            )
        if not 0 < self.idle_seconds < float("inf"):
            raise InvalidArgumentError(
                "idle_seconds", f"{self.idle_seconds} must be positive and finite"
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
