"""The fixed chain of ``meshnet serve`` as the dashboard sees it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import Hop
from meshnet.gateway.machines import (
    LinkView,
    Machines,
    NetworkView,
    NodeState,
    NodeView,
    Operation,
    Work,
)
from meshnet.gateway.whatif import PlanView, WhatIf, plan_of
from meshnet.node.figures import Phase
from meshnet.node.metrics import NodeReading
from meshnet.node.snapshot import NodeSnapshot, StepReading
from meshnet.session.census import Census, NodeAnswer
from meshnet.tracker.forecast import Link
from meshnet.tracker.placement import Demand, Machine, ModelShape

ASK_SECONDS: Final = 2.0
"""A node that takes longer is shown as down; figures a second old are of no use to a live page."""
UNKNOWN_MEMORY: Final = 8 << 30
UNKNOWN_SPEED: Final = 10e9
"""What a question begins with where nothing is measured yet, to be corrected by who asks."""

TakeCensus = Callable[[float], Awaitable[Census]]
ReadFigures = Callable[[], Awaitable[Sequence[NodeReading]]]


async def no_figures() -> Sequence[NodeReading]:
    """For nodes that run elsewhere: their figures are read there."""
    return ()


@dataclass(frozen=True, slots=True)
class Planner:
    """What what-if questions about a served model begin with."""

    shape: ModelShape
    demand: Demand
    memory_bytes: int | None = None
    """Free on this machine, for all nodes together; None where it isn't known, and where nodes run
    on machines of their own."""

    def question(self, view: NetworkView, round_trip_seconds: float | None) -> WhatIf:
        """The network as it is: speeds as measured, where there was anything to measure.

        ``round_trip_seconds`` is the shortest that was seen; others had a process to wait for.
        """
        held = [node for node in view.nodes if node.layers is not None]
        share = UNKNOWN_MEMORY if self.memory_bytes is None else self.memory_bytes // len(held)
        machines = tuple(
            Machine(it.node_id, self._memory(it, share), self._speed(it)) for it in held
        )
        link = Link() if round_trip_seconds is None else Link(round_trip_seconds / 2)
        return WhatIf(machines, link, self.demand)

    def _memory(self, node: NodeView, share: int) -> int:
        if node.memory_limit_bytes is not None:
            return node.memory_limit_bytes
        return share + (node.memory_bytes or 0 if self.memory_bytes is not None else 0)

    def _speed(self, node: NodeView) -> float:
        work = node.decode
        if work is None or node.layers is None or not work.steps or not work.step_seconds:
            return UNKNOWN_SPEED
        return self._bytes_read(node.layers) * work.steps / work.step_seconds

    def _bytes_read(self, layers: LayerRange) -> int:
        """In one decode step."""
        read = sum(self.shape.layer_bytes[layers.start : layers.end])
        tail = layers.is_tail(len(self.shape.layer_bytes))
        return read + (self.shape.output_bytes if tail else 0)


class ChainMachines(Machines):
    """Nodes that were given once and don't change; none can be added, drained or removed."""

    def __init__(
        self,
        model: str,
        census: TakeCensus,
        figures: ReadFigures = no_figures,
        planner: Planner | None = None,
    ) -> None:
        """``planner`` is needed for what-if questions, which else aren't offered."""
        self._model = model
        self._census = census
        self._figures = figures
        self._planner = planner
        self._seen: NetworkView | None = None
        self._quickest: float | None = None
        self.operations = frozenset() if planner is None else frozenset({Operation.WHAT_IF})

    async def look(self) -> NetworkView:
        """Ask the nodes, and this process's own workers for their figures."""
        census, readings = await asyncio.gather(self._census(ASK_SECONDS), self._figures())
        self._seen = view_of(self._model, census, readings)
        trips = [it.round_trip_seconds for it in census.nodes if it.round_trip_seconds is not None]
        known = [] if self._quickest is None else [self._quickest]
        self._quickest = min([*trips, *known], default=None)
        return self._seen

    async def plan(self) -> WhatIf:
        """See :class:`Machines`."""
        if self._planner is None:
            return await super().plan()
        view = self._seen or await self.look()
        return self._planner.question(view, self._quickest)

    async def what_if(self, question: WhatIf) -> PlanView:
        """See :class:`Machines`; computed beside the event loop."""
        if self._planner is None:
            return await super().what_if(question)
        return await asyncio.to_thread(plan_of, self._planner.shape, question)


def view_of(model: str, census: Census, readings: Sequence[NodeReading]) -> NetworkView:
    """Put together what the nodes said of themselves and what their figures are. Pure."""
    told = {str(reading.node_id): reading for reading in readings}
    chain = census.chain
    answered = [it.capability for it in census.nodes if it.capability is not None]
    return NetworkView(
        model,
        chain.hops[-1].layers.end,
        tuple(_node(answer, told.get(str(answer.hop.node_id))) for answer in census.nodes),
        (*_gateway_links(census.nodes), *_seams(chain.hops, told)),
        chain.architecture,
        min((it.context_length for it in answered), default=chain.context_length),
        chain.boundary_dtype.value,
    )


def _node(answer: NodeAnswer, reading: NodeReading | None) -> NodeView:
    hop, capability, health = answer.hop, answer.capability, answer.health
    snapshot = None if reading is None else reading.snapshot
    steps: Mapping[Phase, StepReading] = {} if snapshot is None else snapshot.steps
    return NodeView(
        node_id=str(hop.node_id),
        state=NodeState.DOWN if health is None else NodeState(health.state.value),
        address=str(hop.address),
        layers=hop.layers,
        reason=answer.problem if health is None else health.status.message,
        open_sessions=None if health is None else health.open_sessions,
        max_sessions=None if capability is None else capability.flow.max_sessions,
        deaths=None if reading is None else reading.deaths,
        queued_steps=None if snapshot is None else snapshot.queued_steps,
        kv_used=None if snapshot is None else snapshot.engine.positions,
        kv_limit=None if snapshot is None else snapshot.positions_limit,
        memory_bytes=None if snapshot is None else snapshot.resident_bytes,
        prefill=_work(steps.get(Phase.PREFILL)),
        decode=_work(steps.get(Phase.DECODE)),
    )


def _work(steps: StepReading | None) -> Work | None:
    if steps is None:
        return None
    return Work(
        steps.seconds.count,
        steps.seconds.total,
        steps.queued_seconds.count,
        steps.queued_seconds.total,
        int(steps.rows.total),
    )


def _gateway_links(answers: Sequence[NodeAnswer]) -> tuple[LinkView, ...]:
    return tuple(
        LinkView("", str(answer.hop.node_id), answer.round_trip_seconds) for answer in answers
    )


def _seams(hops: Sequence[Hop], told: Mapping[str, NodeReading]) -> tuple[LinkView, ...]:
    """From each node to the next one, as far as nodes tell what they sent."""
    links = []
    for hop, following in itertools.pairwise(hops):
        reading = told.get(str(hop.node_id))
        sent = _sent(reading.snapshot if reading is not None else None, following)
        links.append(LinkView(str(hop.node_id), str(following.node_id), sent_bytes=sent))
    return tuple(links)


def _sent(snapshot: NodeSnapshot | None, to: Hop) -> int | None:
    traffic = None if snapshot is None else snapshot.traffic.get(str(to.address))
    return None if traffic is None else traffic.sent_bytes
