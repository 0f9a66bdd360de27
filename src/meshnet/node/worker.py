"""The worker: a gRPC server and its engine in one process.

The engine lives here because some input makes libllama end the whole process; the supervisor that
started the worker survives that. The worker reads its configuration from the supervisor, says what
happens in events, and ends when its stop event is set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pydantic import TypeAdapter

from meshnet.domain.errors import EngineError, MeshnetError, status_of
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import Capability
from meshnet.domain.recipe import Recipe
from meshnet.domain.status import OK, StructuredStatus
from meshnet.engine.base import LoadRequest, ShardEngine
from meshnet.engine.fixture import FixtureEngine
from meshnet.node.config import FixtureEngineConfig, LlamaEngineConfig, NodeConfig
from meshnet.node.probe import probe
from meshnet.node.session import NodeParts
from meshnet.node.shard import ShardNode
from meshnet.node.stepper import EngineStepper
from meshnet.transport.channel import ChannelPool
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.seam_server import GrpcNodeServer

STOP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """One line that a worker writes: it serves, or it failed to."""

    event: Literal["ready", "failed"]
    address: str = ""
    status: StructuredStatus = field(default=OK)

    def to_json(self) -> bytes:
        """One line, without its end."""
        return _EVENTS.dump_json(self)

    @staticmethod
    def from_json(line: bytes) -> WorkerEvent:
        """Read a line; raises ``ValueError`` if it is none of a worker's."""
        return _EVENTS.validate_json(line)


_EVENTS = TypeAdapter(WorkerEvent)


async def run_worker(
    config: NodeConfig, stop: asyncio.Event, report: Callable[[WorkerEvent], None]
) -> bool:
    """Load, serve until ``stop``; whether it came to serving. Failures are reported, not raised."""
    try:
        node = await load_node(config)
    except MeshnetError as error:
        report(WorkerEvent("failed", status=status_of(error)))
        return False
    server = GrpcNodeServer(node, config.listen, config.flow)
    try:
        address = await server.start()
    except MeshnetError as error:
        await node.close()
        report(WorkerEvent("failed", status=status_of(error)))
        return False
    report(WorkerEvent("ready", address=address))
    await stop.wait()
    await server.stop(STOP_SECONDS)
    await node.close()
    return True


async def load_node(config: NodeConfig) -> ShardNode:
    """Load the engine and prove with one step that it computes."""
    engine, recipe, slice_digest, architecture = _engine(config.engine, config.chunk_tokens)
    path = config.engine.slice_path if isinstance(config.engine, LlamaEngineConfig) else None
    stepper = EngineStepper(engine, config.flow.max_queued_work)
    request = LoadRequest(
        path,
        config.shard_start,
        config.shard_end,
        config.total_layers,
        recipe,
        config.limits,
    )
    try:
        loaded = await stepper.call(engine.load, request)
        parts = NodeParts(
            config.node_id,
            engine,
            loaded.capabilities,
            stepper,
            ChannelPool(GrpcTransport(config.flow)),
            config.flow,
        )
        await probe(engine, stepper)
    except MeshnetError:
        stepper.close()
        raise
    capability = Capability(
        config.node_id,
        LayerRange(config.shard_start, config.shard_end),
        config.total_layers,
        recipe.fingerprint(),
        slice_digest,
        architecture,
        config.limits.context_length,
        config.flow,
        loaded.capabilities.dtypes,
        config.next_address,
    )
    return ShardNode(parts, capability, config.chunk_tokens)


def _engine(
    config: LlamaEngineConfig | FixtureEngineConfig, chunk_tokens: int
) -> tuple[ShardEngine, Recipe, Digest, str]:
    if isinstance(config, FixtureEngineConfig):
        digest = Digest("sha256:" + "0" * 64)
        engine = FixtureEngine(config.faults, step_seconds=config.step_seconds)
        return engine, Recipe(digest, "fixture", "1", chunk_tokens=chunk_tokens), digest, "fixture"
    try:
        from meshnet.engine.llamacpp.engine import LlamaShardEngine
        from meshnet.engine.llamacpp.library import library_identity
    except (ImportError, OSError) as error:
        raise EngineError(f"llama-cpp-python can't be loaded: {error}") from error
    recipe = Recipe(
        config.model_digest,
        "libllama",
        library_identity(),
        kv_type_k=config.kv_type_k,
        kv_type_v=config.kv_type_v,
        flash_attention=config.flash_attention,
        chunk_tokens=chunk_tokens,
    )
    return LlamaShardEngine(), recipe, config.slice_digest, config.architecture
