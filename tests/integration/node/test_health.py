"""Health tells whether the engine computes, not whether the process is there."""

import asyncio

import pytest

from meshnet.domain.errors import EngineError
from meshnet.domain.frames import TokenReply
from meshnet.domain.generation import GenerationSpec
from meshnet.domain.lifecycle import LifecycleState
from meshnet.domain.nodes import HealthReport
from meshnet.domain.status import StatusCode
from meshnet.engine.fixture import Fault, FaultKind
from meshnet.node import shard
from tests.support.mesh import GREEDY, Mesh, Setup, ask, mesh, prompt_of, start


async def health(chain: Mesh, place: int = 0) -> HealthReport:
    return await chain.channels.peer(chain.nodes[place].hop.address).health(2.0)


async def test_an_idle_node_proves_itself_with_a_step_that_leaves_nothing():
    async with mesh((3,)) as chain:
        for place in (0, 1):
            report = await health(chain, place)
            assert report.state is LifecycleState.READY
            assert chain.nodes[place].engine.metrics().steps == 1
            await health(chain, place)
            assert chain.nodes[place].engine.metrics().steps == 1, "a recent step is proof enough"
            assert chain.nodes[place].engine.metrics().open_sessions == 0


async def test_proof_that_is_old_is_renewed(monkeypatch):
    async with mesh((3,)) as chain:
        await health(chain)
        monkeypatch.setattr(shard, "READY_SECONDS", 0.0)
        await health(chain)
        assert chain.head.engine.metrics().steps == 2


async def test_it_counts_sessions_and_steps():
    async with mesh((3,), Setup(step_seconds={0: 0.002})) as chain:
        spec = GenerationSpec(prompt_of(9), GREEDY, 50)
        listener, _ = start(await chain.channel(), chain.terms(), spec)
        await listener.until(TokenReply)
        report = await health(chain, 1)
        assert (report.open_sessions, report.state) == (1, LifecycleState.READY)
        assert report.steps_done >= 2


@pytest.mark.parametrize("place", [0, 1])
async def test_a_failed_engine_is_failed_until_a_step_succeeds(place):
    faults = tuple(Fault(FaultKind.EXCEPTION, step) for step in (3, 4))
    async with mesh((3,), Setup(faults={place: faults})) as chain:
        model = await chain.model()
        assert (await health(chain, place)).state is LifecycleState.READY
        with pytest.raises(EngineError):
            await ask(model, prompt_of(9))
        report = await health(chain, place)
        assert report.state is LifecycleState.FAILED
        assert report.status.code is StatusCode.ENGINE_FAILED
        assert "told to fail" in report.status.message
        assert (await health(chain, place)).state is LifecycleState.READY


async def test_a_hanging_engine_is_failed(monkeypatch):
    monkeypatch.setattr(shard, "PROBE_TIMEOUT_SECONDS", 0.2)
    async with mesh((3,), Setup(faults={0: (Fault(FaultKind.HANG, 0),)})) as chain:
        report = await health(chain)
        assert report.state is LifecycleState.FAILED
        assert "didn't end in time" in report.status.message


async def test_a_full_node_that_cant_probe_is_ready(monkeypatch):
    async with mesh((3,), Setup(engine_sessions=1, step_seconds={0: 0.002})) as chain:
        spec = GenerationSpec(prompt_of(9), GREEDY, 50)
        listener, _ = start(await chain.channel(), chain.terms(), spec)
        await listener.until(TokenReply)
        monkeypatch.setattr(shard, "READY_SECONDS", 0.0)
        assert (await health(chain)).state is LifecycleState.READY


async def test_it_answers_while_the_engine_is_busy():
    async with mesh((3,), Setup(step_seconds={0: 0.5})) as chain:
        await health(chain)
        asking = asyncio.create_task(ask(await chain.model(), prompt_of(9), 1))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(0.2):
            assert (await health(chain)).state is LifecycleState.READY
        await asking
