"""A node's figures at one moment: plain values, which a worker tells its supervisor when asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from meshnet.domain.ids import Address, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.metrics import Distribution
from meshnet.domain.receipts import Receipt, ReceiptState
from meshnet.domain.status import StatusCode
from meshnet.engine.base import MetricsResult
from meshnet.node.figures import NodeFigures, Phase
from meshnet.node.resident import resident_bytes
from meshnet.node.shard import ShardNode
from meshnet.transport.traffic import Traffic

ENGINE_SECONDS = 0.25
"""How long the engine's own counts may take: it answers between steps. Then the last ones hold."""
RECEIPTS_AT_ONCE = 24
"""More would make a line longer than the pipe to the supervisor takes at once."""
UPSTREAM = "upstream"
"""The name of the seams that others opened to this node."""


@dataclass(frozen=True, slots=True)
class StepReading:
    """The steps of one phase."""

    rows: Distribution
    sessions: Distribution
    seconds: Distribution
    queued_seconds: Distribution


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """What a node counted since it started, and what it holds now."""

    node_id: NodeId
    layers: LayerRange
    queued_steps: int
    open_sessions: int
    max_sessions: int
    chunk_credits: int
    """Chunks that the next node takes now, over all open sessions."""
    positions_reserved: int
    """Positions that open sessions and kept prefixes may come to hold."""
    positions_limit: int
    """Positions that sessions may hold together."""
    engine: MetricsResult
    steps: Mapping[Phase, StepReading]
    cache_hits: int
    cache_misses: int
    duplicates: int
    kept_prefixes: int
    prefix_hits: int
    prefix_misses: int
    prefix_tokens: int
    """Prompt tokens that needn't be computed."""
    proposed_tokens: int
    accepted_tokens: int
    errors: Mapping[StatusCode, int]
    traffic: Mapping[str, Traffic]
    """By seam: the address of the node that this one opened it to, or :data:`UPSTREAM`."""
    receipts: tuple[Receipt, ...] = ()
    """Those that weren't told before, some at a time; only who asks knows of them from now on."""
    receipt_counts: Mapping[ReceiptState, int] = field(default_factory=dict)
    receipts_dropped: int = 0
    """Those that nobody asked for in time."""
    resident_bytes: int | None = None
    """Memory that the process has now, mapped weights included; None where the system doesn't
    say."""


class NodeObserver:
    """Reads a node's figures. Nothing is computed before somebody asks."""

    def __init__(
        self, node: ShardNode, downstream: Mapping[Address, Traffic], upstream: Traffic
    ) -> None:
        self._node = node
        self._downstream = downstream
        self._upstream = upstream
        self._engine = MetricsResult()

    async def read(self) -> NodeSnapshot:
        """The figures of now."""
        node, parts = self._node, self._node.parts
        self._engine = await self._ask_engine()
        figures = parts.stepper.figures
        sessions, limits = node.sessions, parts.capabilities.limits
        held, book = parts.capabilities, parts.channels.receipts
        return NodeSnapshot(
            node_id=parts.node_id,
            layers=LayerRange(held.shard_start, held.shard_end),
            queued_steps=parts.stepper.queued,
            open_sessions=len(sessions),
            max_sessions=parts.flow.max_sessions,
            chunk_credits=sum(session.chunk_credits for session in sessions),
            positions_reserved=node.places.reserved_positions,
            positions_limit=parts.flow.max_positions or limits.max_sessions * limits.context_length,
            engine=self._engine,
            steps=_read_steps(figures),
            cache_hits=figures.cache_hits,
            cache_misses=figures.cache_misses,
            duplicates=figures.duplicates,
            kept_prefixes=node.places.kept,
            prefix_hits=figures.prefix_hits,
            prefix_misses=figures.prefix_misses,
            prefix_tokens=figures.prefix_tokens,
            proposed_tokens=figures.proposed_tokens,
            accepted_tokens=figures.accepted_tokens,
            errors=dict(figures.errors),
            traffic={name: replace(each) for name, each in self._seams()},
            receipts=() if book is None else book.take(RECEIPTS_AT_ONCE),
            receipt_counts={} if book is None else dict(book.counts),
            receipts_dropped=0 if book is None else book.dropped,
            resident_bytes=resident_bytes(),
        )

    def _seams(self) -> Iterator[tuple[str, Traffic]]:
        yield UPSTREAM, self._upstream
        yield from self._downstream.items()

    async def _ask_engine(self) -> MetricsResult:
        parts = self._node.parts
        try:
            async with asyncio.timeout(ENGINE_SECONDS):
                return await parts.stepper.call(parts.engine.metrics)
        except TimeoutError:
            return self._engine


def _read_steps(figures: NodeFigures) -> dict[Phase, StepReading]:
    return {
        phase: StepReading(
            each.rows.read(),
            each.sessions.read(),
            each.seconds.read(),
            each.queued_seconds.read(),
        )
        for phase, each in ((Phase.PREFILL, figures.prefill), (Phase.DECODE, figures.decode))
    }
