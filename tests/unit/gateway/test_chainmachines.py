from collections.abc import Sequence
from dataclasses import replace

import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import LifecycleState
from meshnet.domain.metrics import SECONDS, SIZES, Histogram
from meshnet.domain.nodes import HealthReport, Hop
from meshnet.domain.status import StatusCode, StructuredStatus
from meshnet.engine.base import MetricsResult
from meshnet.gateway.chainmachines import UNKNOWN_SPEED, ChainMachines, Planner
from meshnet.gateway.machines import NodeState, Operation
from meshnet.node.figures import Phase
from meshnet.node.metrics import NodeReading
from meshnet.node.snapshot import NodeSnapshot, StepReading
from meshnet.session.census import Census, NodeAnswer
from meshnet.session.chain import Chain
from meshnet.tracker.placement import Demand, ModelShape
from meshnet.transport.traffic import Traffic
from tests.support.scripted_model import READY, scripted_node

CAPABILITIES = [
    scripted_node("head", LayerRange(0, 2), 4)[0],
    scripted_node("tail", LayerRange(2, 4), 4)[0],
]
HOPS = tuple(
    Hop(it.node_id, Address(f"10.0.0.{n}:7000"), it.layers)
    for n, it in enumerate(CAPABILITIES, start=1)
)
CHAIN = Chain(HOPS, CAPABILITIES[0].fingerprint, 1024, "llama")
SHAPE = ModelShape((100,) * 4, 10, 50, 0, 1, 4, (1, 2, 3))


def answers(*healths: HealthReport | str) -> tuple[NodeAnswer, ...]:
    return tuple(
        NodeAnswer(hop, problem=health)
        if isinstance(health, str)
        else NodeAnswer(hop, capability, health, 0.004)
        for hop, capability, health in zip(HOPS, CAPABILITIES, healths, strict=True)
    )


def snapshot(hop: Hop, step_seconds: Sequence[float] = ()) -> NodeSnapshot:
    seconds, sizes = Histogram(SECONDS), Histogram(SIZES)
    for each in step_seconds:
        seconds.observe(each)
        sizes.observe(2)
    steps = StepReading(sizes.read(), sizes.read(), seconds.read(), seconds.read())
    idle = StepReading(*(Histogram(SIZES).read(),) * 4)
    return NodeSnapshot(
        hop.node_id,
        hop.layers,
        queued_steps=3,
        open_sessions=1,
        max_sessions=8,
        chunk_credits=0,
        positions_reserved=0,
        positions_limit=4096,
        engine=MetricsResult(positions=64),
        steps={Phase.DECODE: steps, Phase.PREFILL: idle},
        cache_hits=0,
        cache_misses=0,
        duplicates=0,
        kept_prefixes=0,
        prefix_hits=0,
        prefix_misses=0,
        prefix_tokens=0,
        proposed_tokens=0,
        accepted_tokens=0,
        errors={},
        traffic={str(HOPS[1].address): Traffic(sent_bytes=777)},
        resident_bytes=1 << 20,
    )


def machines(
    nodes: tuple[NodeAnswer, ...],
    readings: Sequence[NodeReading] = (),
    planner: Planner | None = None,
) -> ChainMachines:
    async def census(_seconds: float) -> Census:
        return Census(CHAIN, nodes)

    async def figures() -> Sequence[NodeReading]:
        return readings

    return ChainMachines("m", census, figures, planner)


async def test_nodes_are_shown_with_what_they_say_and_what_was_counted() -> None:
    reading = NodeReading(NodeId("head"), 2, snapshot(HOPS[0], [0.01, 0.03]))
    view = await machines(answers(READY, READY), [reading]).look()
    head, tail = view.nodes
    assert (view.model, view.total_layers, view.architecture) == ("m", 4, "llama")
    assert (head.state, head.layers, head.queued_steps) == (NodeState.READY, LayerRange(0, 2), 3)
    assert (head.kv_used, head.kv_limit, head.memory_bytes, head.deaths) == (64, 4096, 1 << 20, 2)
    assert head.decode is not None
    assert (head.decode.steps, head.decode.rows) == (2, 4)
    assert head.decode.step_seconds == pytest.approx(0.04)
    assert (tail.kv_used, tail.decode) == (None, None)
    assert [(it.source, it.target, it.sent_bytes) for it in view.links] == [
        ("", "head", None),
        ("", "tail", None),
        ("head", "tail", 777),
    ]


async def test_a_node_that_cant_be_asked_is_down_and_the_others_arent() -> None:
    failed = HealthReport(LifecycleState.FAILED, StructuredStatus(StatusCode.INTERNAL, message="x"))
    view = await machines(answers(failed, "connection refused")).look()
    assert [node.state for node in view.nodes] == [NodeState.FAILED, NodeState.DOWN]
    assert [node.reason for node in view.nodes] == ["x", "connection refused"]
    assert view.nodes[1].layers == LayerRange(2, 4)
    assert view.missing_layers == (0, 1, 2, 3)
    assert view.links[1].round_trip_seconds is None


async def test_the_question_about_now_has_the_speeds_that_were_measured() -> None:
    planner = Planner(SHAPE, Demand(512, 2), memory_bytes=4000)
    readings = [
        NodeReading(NodeId("head"), 0, snapshot(HOPS[0])),
        NodeReading(NodeId("tail"), 0, snapshot(HOPS[1], [0.02, 0.03])),
    ]
    chain = machines(answers(READY, READY), readings, planner)
    question = await chain.plan()
    head, tail = question.machines
    assert head.bytes_per_second == UNKNOWN_SPEED
    # Two layers and the output matrix in 25 ms.
    assert tail.bytes_per_second == pytest.approx(250 / 0.025)
    assert head.memory_bytes == 2000 + (1 << 20)
    assert question.link.latency_seconds == 0.002
    assert question.demand == Demand(512, 2)
    easy = replace(question, demand=Demand(8, 1, headroom=0, overhead_bytes=0))
    assert (await chain.what_if(easy)).stages


async def test_only_what_can_be_done_is_offered() -> None:
    plain = machines(answers(READY, READY))
    assert plain.operations == frozenset()
    planner = Planner(SHAPE, Demand())
    assert machines(answers(READY, READY), planner=planner).operations == {Operation.WHAT_IF}
    for refused in (plain.join_line(), plain.drain("head"), plain.remove("head"), plain.plan()):
        with pytest.raises(InvalidArgumentError, match="doesn't offer"):
            await refused
