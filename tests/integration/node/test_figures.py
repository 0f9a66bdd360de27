"""What nodes count over a generation, and how a worker's supervisor gets to know it."""

import sys

import pytest

from meshnet.domain.errors import NodeLostError, NodeNotReadyError
from meshnet.domain.frames import Cancel, SessionFailed, TokenReply
from meshnet.domain.generation import GenerationSpec
from meshnet.domain.ids import NodeId
from meshnet.domain.metrics import Distribution
from meshnet.domain.status import StatusCode
from meshnet.engine.base import EngineLimits
from meshnet.engine.fixture import Fault, FaultKind
from meshnet.node.config import FixtureEngineConfig, NodeConfig
from meshnet.node.figures import Phase
from meshnet.node.metrics import NODE_METRICS, NodeReading, node_samples
from meshnet.node.snapshot import UPSTREAM, NodeObserver, NodeSnapshot
from meshnet.node.supervisor import NodeProcess
from meshnet.node.worker import WorkerEvent
from meshnet.transport.traffic import Traffic
from tests.support.mesh import LAYERS, Mesh, Setup, ask, mesh, prompt_of, start

PROMPT = prompt_of(20)
"""Three chunks of the mesh's eight tokens."""
WORKER = (sys.executable, "-m", "meshnet.cli.worker")


async def read(chain: Mesh, place: int) -> NodeSnapshot:
    node = chain.nodes[place]
    upstream = node.server.traffic if node.server is not None else Traffic()
    return await NodeObserver(node.shard, {}, upstream).read()


async def test_every_node_counts_its_steps_by_phase():
    async with mesh((3,), Setup(grpc=True)) as chain:
        await ask(await chain.model(), PROMPT, 6)
        for place in (0, 1):
            found = await read(chain, place)
            prefill, decode = found.steps[Phase.PREFILL], found.steps[Phase.DECODE]
            assert (prefill.rows.count, prefill.rows.total) == (3, 20)
            assert (decode.rows.count, decode.rows.total) == (5, 5)
            assert decode.sessions.total == 5
            assert decode.seconds.count == decode.queued_seconds.count == 5
            assert (found.cache_hits, found.cache_misses, found.duplicates) == (8, 0, 0)
            assert found.engine.engine_nanos > 0


async def test_bytes_are_counted_by_seam():
    async with mesh((3,), Setup(grpc=True)) as chain:
        await ask(await chain.model(), PROMPT, 6)
        head, tail = [node.server.traffic for node in chain.nodes if node.server is not None]
        assert tail.received_messages >= 3 + 5
        assert tail.received_bytes > head.received_bytes, "boundaries are larger than a prompt"
        assert head.sent_bytes > 0


async def test_what_an_open_session_holds_is_told_and_freed_with_it():
    async with mesh((3,), Setup(step_seconds={0: 0.005})) as chain:
        channel = await chain.channel()
        listener, handle = start(channel, chain.terms(), GenerationSpec(PROMPT), token_credits=2)
        await listener.until(TokenReply)
        held = await read(chain, 0)
        assert held.open_sessions == 1
        assert held.chunk_credits == chain.setup.flow.chunk_credits
        assert held.engine.positions >= len(PROMPT)
        assert held.positions_limit == 8 * 256
        channel.send(Cancel(handle, "enough"))
        await chain.idle()
        freed = await read(chain, 0)
        assert (freed.open_sessions, freed.chunk_credits, freed.engine.positions) == (0, 0, 0)


async def test_refused_and_failed_sessions_count_by_code():
    fault = Fault(FaultKind.EXCEPTION, at_step=1)
    async with mesh((), Setup(faults={0: (fault,)})) as chain:
        channel = await chain.channel()
        for prompt in (prompt_of(300), PROMPT):
            listener, _ = start(channel, chain.terms(), GenerationSpec(prompt))
            await listener.until(SessionFailed)
        assert (await read(chain, 0)).errors == {
            StatusCode.CONTEXT_LENGTH_EXCEEDED: 1,
            StatusCode.ENGINE_FAILED: 1,
        }


async def test_every_metric_of_a_node_is_among_its_samples():
    async with mesh((3,), Setup(grpc=True)) as chain:
        await ask(await chain.model(), PROMPT, 6)
        listener, _ = start(await chain.channel(), chain.terms(), GenerationSpec(prompt_of(300)))
        await listener.until(SessionFailed)
        snapshot = await read(chain, 0)
    samples = list(node_samples(NodeReading(NodeId("node-1"), 0, snapshot)))
    assert {sample.metric for sample in samples} == set(NODE_METRICS)
    assert {sample.labels[0] for sample in samples} == {"node-1"}
    for sample in samples:
        if isinstance(sample.value, Distribution):
            assert sample.value.count > 0, sample.metric.name


def test_a_node_that_told_nothing_is_down_and_nothing_else():
    samples = list(node_samples(NodeReading(NodeId("node-1"), 3, None)))
    assert [(sample.metric.name, sample.value) for sample in samples] == [
        ("meshnet_node_up", 0),
        ("meshnet_node_worker_deaths_total", 3),
    ]


async def test_a_snapshot_survives_the_pipe_between_worker_and_supervisor():
    async with mesh((3,), Setup(grpc=True)) as chain:
        await ask(await chain.model(), PROMPT, 3)
        event = WorkerEvent("figures", figures=await read(chain, 1))
    line = event.to_json()
    assert b"\n" not in line
    assert len(line) < 16 * 2**10, "a supervisor reads lines of at most 64 KiB"
    assert WorkerEvent.from_json(line) == event


async def test_a_worker_tells_its_figures_as_often_as_it_is_asked():
    process = NodeProcess(WORKER, config())
    try:
        await process.start()
        for _ in range(3):
            figures = await process.figures(2.0)
            assert figures.node_id == "node-1"
            assert UPSTREAM in figures.traffic
    finally:
        await process.stop()


async def test_a_worker_that_is_dead_or_was_never_started_tells_nothing():
    process = NodeProcess(WORKER, config())
    with pytest.raises(NodeNotReadyError, match="doesn't serve"):
        await process.figures(1.0)
    try:
        await process.start()
        await process.stop()
        with pytest.raises(NodeLostError):
            await process.figures(1.0)
    finally:
        await process.stop()


SILENT = """
import sys
sys.stdin.readline()
print('{"event": "ready", "address": "127.0.0.1:1"}', flush=True)
sys.stdin.readline()
sys.stdin.readline()
"""


async def test_a_worker_that_says_nothing_is_waited_for_no_longer_than_asked():
    process = NodeProcess((sys.executable, "-c", SILENT), config())
    try:
        await process.start()
        for _ in range(2):
            with pytest.raises(NodeNotReadyError, match="didn't tell its figures"):
                await process.figures(0.05)
    finally:
        await process.stop()


def config() -> NodeConfig:
    limits = EngineLimits(256, 8)
    return NodeConfig(NodeId("node-1"), 0, LAYERS, LAYERS, FixtureEngineConfig(), limits=limits)


@pytest.mark.parametrize("grpc", [False, True], ids=["loopback", "grpc"])
async def test_timings_of_a_prompt_divide_its_span_on_every_hop(grpc):
    setup = Setup(grpc=grpc, step_seconds=dict.fromkeys(range(3), 0.002))
    async with mesh((2, 4), setup) as chain:
        timings = (await ask(await chain.model(), PROMPT, 6)).summary.timings
    assert [hop.prefill_tokens for hop in timings] == [20, 20, 20]
    assert all(hop.prefill_began_nanos > 0 for hop in timings)
    assert timings[2].prefill_began_nanos > 4_000_000, "two nodes compute before the tail can"
    for hop in timings:
        worked = hop.prefill_engine_nanos + hop.prefill_queue_nanos + hop.prefill_codec_nanos
        assert 3 * 2_000_000 <= hop.prefill_engine_nanos <= worked <= hop.prefill_span_nanos
        assert hop.prefill_codec_nanos > 0
        assert hop.decode_codec_nanos > 0


async def test_a_prompt_that_a_kept_prefix_stands_for_counts_as_a_hit_with_its_tokens():
    async with mesh((3,), Setup(keep_seconds=60.0)) as chain:
        model = await chain.model()
        answers = [await ask(model, PROMPT, 3) for _ in range(2)]
        saved = answers[1].summary.cached_tokens
        assert saved > 0
        found = await read(chain, 0)
        assert (found.prefix_misses, found.prefix_hits, found.prefix_tokens) == (1, 1, saved)
        assert found.kept_prefixes > 0
        assert found.positions_reserved >= len(PROMPT)
        # Kept prefixes go with the stream that their sessions came on.
        await chain.channels.close()
