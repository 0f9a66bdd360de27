"""The worker: a gRPC server and its engine in one process.

The engine lives here because some input makes libllama end the whole process; the supervisor that
started the worker survives that. The worker reads its configuration from the supervisor, says what
happens in events, and ends when its stop event is set.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from pydantic import TypeAdapter

from meshnet.domain.errors import EngineError, InvalidArgumentError, MeshnetError, status_of
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import Capability
from meshnet.domain.recipe import Recipe
from meshnet.domain.status import OK, StructuredStatus
from meshnet.domain.tracing import Tracer
from meshnet.engine.base import LoadRequest, ShardEngine
from meshnet.engine.fixture import FixtureEngine
from meshnet.model.check import check_loadable
from meshnet.node.config import FixtureEngineConfig, LlamaEngineConfig, NodeConfig
from meshnet.node.parts import NodeParts, boundaries
from meshnet.node.probe import probe
from meshnet.node.shard import ShardNode
from meshnet.node.snapshot import NodeObserver, NodeSnapshot
from meshnet.node.stepper import EngineStepper
from meshnet.transport.certificates import PeerIdentity, Role
from meshnet.transport.channel import ChannelPool
from meshnet.transport.options import GrpcOptions
from meshnet.transport.receipts import ReceiptBook, Signer
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.seam_server import GrpcNodeServer

STOP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """One line that a worker writes: it serves, or failed to, or the figures it was asked for."""

    event: Literal["ready", "failed", "figures"]
    address: str = ""
    status: StructuredStatus = field(default=OK)
    figures: NodeSnapshot | None = None

    def to_json(self) -> bytes:
        """One line, without its end."""
        return _EVENTS.dump_json(self)

    @staticmethod
    def from_json(line: bytes) -> WorkerEvent:
        """Read a line; raises ``ValueError`` if it is none of a worker's."""
        return _EVENTS.validate_json(line)


_EVENTS = TypeAdapter(WorkerEvent)


async def run_worker(
    config: NodeConfig,
    stop: asyncio.Event,
    report: Callable[[WorkerEvent], None],
    asked: asyncio.Event,
    tracer: Tracer,
) -> bool:
    """Load, serve until ``stop``; whether it came to serving. Failures are reported, not raised.

    Each time ``asked`` is set, the node's figures are reported. ``tracer`` gets a session's spans
    when it is over.
    """
    try:
        options = _grpc_options(config)
        transport = GrpcTransport(config.flow, options)
        node = await load_node(config, transport, tracer)
    except MeshnetError as error:
        report(WorkerEvent("failed", status=status_of(error)))
        return False
    server = GrpcNodeServer(node, config.listen, config.flow, options)
    try:
        address = await server.start()
    except MeshnetError as error:
        await node.close()
        report(WorkerEvent("failed", status=status_of(error)))
        return False
    observer = NodeObserver(node, transport.traffic, server.traffic)
    telling = asyncio.create_task(_tell(observer, asked, report), name="figures")
    report(WorkerEvent("ready", address=address))
    await stop.wait()
    telling.cancel()
    await server.stop(STOP_SECONDS)
    await node.close()
    return True


async def _tell(
    observer: NodeObserver, asked: asyncio.Event, report: Callable[[WorkerEvent], None]
) -> None:
    while await asked.wait():
        asked.clear()
        report(WorkerEvent("figures", figures=await observer.read()))


def _receipts(config: NodeConfig) -> ReceiptBook | None:
    if config.identity is None:
        return None
    return ReceiptBook(Signer(config.identity.load()))


def _grpc_options(config: NodeConfig) -> GrpcOptions:
    if config.identity is None:
        return GrpcOptions()
    identity = config.identity.load()
    identity.require_valid(time.time())
    if identity.peer != PeerIdentity(config.node_id, Role.NODE):
        raise InvalidArgumentError(
            "identity", f"the certificate is that of {identity.peer}, not of node {config.node_id}"
        )
    return GrpcOptions(tls=config.identity)


async def load_node(config: NodeConfig, transport: GrpcTransport, tracer: Tracer) -> ShardNode:
    """Load the engine and prove with one step that it computes."""
    engine, recipe, slice_digest, architecture = _engine(config)
    path = config.engine.slice_path if isinstance(config.engine, LlamaEngineConfig) else None
    stepper = EngineStepper(engine, config.flow.max_queued_work, config.pace)
    request = LoadRequest(
        path,
        config.shard_start,
        config.shard_end,
        config.total_layers,
        recipe,
        config.limits,
    )
    try:
        await _try_out(config, request)
        loaded = await stepper.call(engine.load, request)
        parts = NodeParts(
            config.node_id,
            engine,
            loaded.capabilities,
            stepper,
            ChannelPool(transport, _receipts(config)),
            config.flow,
            boundaries=boundaries(recipe.fingerprint(), loaded.capabilities.n_embd),
            tracer=tracer,
            keep_seconds=config.idle_seconds if config.prefix_cache else 0.0,
            idle_seconds=config.idle_seconds,
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
        tuple(parts.boundaries.values()),
        config.next_address,
        loaded.capabilities.supports_grammar,
    )
    return ShardNode(parts, capability, config.chunk_tokens)


async def _try_out(config: NodeConfig, request: LoadRequest) -> None:
    """See that the file doesn't end a process; this one is to live."""
    if isinstance(config.engine, LlamaEngineConfig) and config.engine.notes is not None:
        from meshnet.engine.llamacpp.trial import try_out

        # Whether an architecture is proven was settled when the file was chosen.
        check = partial(check_loadable, allow_unverified=True)
        await try_out(request, config.engine.notes, check)


def _engine(config: NodeConfig) -> tuple[ShardEngine, Recipe, Digest, str]:
    held, chunk_tokens = config.engine, config.chunk_tokens
    if isinstance(held, FixtureEngineConfig):
        digest = Digest("sha256:" + "0" * 64)
        engine = FixtureEngine(held.faults, step_seconds=held.step_seconds)
        return engine, Recipe(digest, "fixture", "1", chunk_tokens=chunk_tokens), digest, "fixture"
    try:
        from meshnet.engine.llamacpp.engine import LlamaShardEngine
        from meshnet.engine.llamacpp.machine import on_this_machine
    except (ImportError, OSError) as error:
        raise EngineError(f"llama-cpp-python can't be loaded: {error}") from error
    own_layers = config.shard_end - config.shard_start
    recipe = on_this_machine(held.recipe(chunk_tokens), config.limits, own_layers)
    return LlamaShardEngine(held.notes), recipe, held.slice_digest, held.architecture
