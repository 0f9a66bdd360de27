"""A node dies under a generation: what its reader gets is what nobody's death would have given."""

import asyncio
import math
import time
from dataclasses import replace

import httpx
import pytest

from meshnet.domain.generation import FinishReason, Speculation
from meshnet.domain.sampling import SamplingParams
from meshnet.engine import fixture
from meshnet.gateway.app import create_app
from meshnet.gateway.config import GatewayConfig
from meshnet.node.head import HeadSession
from meshnet.session.generate import ChainModel
from meshnet.session.service import Opened, Recovered, TextRequest
from tests.support.dying import CUTS, QUICK, dying
from tests.support.mesh import GREEDY, PENALISED, Mesh, Setup, mesh, prompt_of, until
from tests.support.reading import read, undisturbed

NODES = range(len(CUTS) + 1)
PLACES = pytest.mark.parametrize("place", NODES, ids=["head", "middle", "tail"])
PROMPT = prompt_of(11)
TOKENS = 9
STEPS = 2 + TOKENS
"""Of a node: two chunks, a row for each token but the last, and one more that never comes."""
BIASED = SamplingParams(
    temperature=0.7,
    top_p=0.9,
    seed=5,
    presence_penalty=0.5,
    penalty_last_n=-1,
    logit_bias={72: 3.0, 101: -math.inf},
    logprobs=True,
    top_logprobs=3,
)
SAMPLINGS = {
    "greedy": replace(GREEDY, logprobs=True, top_logprobs=2),
    "penalised": replace(PENALISED, logprobs=True),
    "biased": BIASED,
}


@pytest.mark.parametrize(
    ("kind", "guess"),
    [
        ("biased", Speculation.OFF),
        ("penalised", Speculation.ON),
        pytest.param("greedy", Speculation.OFF, marks=pytest.mark.slow),
        pytest.param("greedy", Speculation.ON, marks=pytest.mark.slow),
        pytest.param("penalised", Speculation.OFF, marks=pytest.mark.slow),
        pytest.param("biased", Speculation.ON, marks=pytest.mark.slow),
    ],
)
async def test_whenever_any_node_dies_the_reader_gets_the_same(kind, guess):
    request = TextRequest(PROMPT, SAMPLINGS[kind], TOKENS, speculation=guess)
    async with dying() as nodes:
        expected = await undisturbed(nodes, request)
        assert len(expected.tokens) == TOKENS
        recovered = 0
        for place in NODES:
            for step in range(STEPS):
                nodes.begin()
                nodes.doom.kill(place, step)
                told, summary = await read(nodes.model, request)
                assert told == expected, (place, step, nodes.doom.ran)
                assert all(0 < pause < QUICK.seconds for pause in summary.pauses)
                recovered += len(summary.pauses)
                await nodes.mesh.idle()
        # Where the last row is the one that is lost, all tokens may be there.
        least = 2 * len(NODES) if guess is Speculation.ON else len(NODES) * (STEPS - 2)
        assert recovered >= least


@PLACES
async def test_a_stop_string_across_the_seam_ends_the_text(place):
    request = TextRequest(PROMPT, PENALISED, 40)
    async with dying() as nodes:
        whole = await undisturbed(nodes, request)
        stop = whole.text[5:8]
        assert whole.text.index(stop) == 5
        stopped = replace(request, stop=(stop, "never"))
        expected = await undisturbed(nodes, stopped)
        assert (expected.text, expected.stop_string) == (whole.text[:5], stop)
        recovered = 0
        for step in range(4, 10):
            nodes.begin()
            nodes.doom.kill(place, step)
            told, summary = await read(nodes.model, stopped)
            assert told == expected, step
            recovered += len(summary.pauses)
            await nodes.mesh.idle()
        # At the last steps the stop string may be there before the loss.
        assert recovered >= 3


@PLACES
async def test_all_choices_of_a_request_go_on_each_with_its_own_tokens(place):
    requests = [TextRequest(PROMPT, replace(PENALISED, seed=seed), 12) for seed in range(4)]
    async with dying() as nodes:
        expected = [await undisturbed(nodes, request) for request in requests]
        assert len({each.text for each in expected}) == 4
        nodes.begin()
        nodes.doom.kill(place, 14)
        told = await asyncio.gather(*(read(nodes.model, request) for request in requests))
        assert [each for each, _ in told] == expected
        assert any(summary.pauses for _, summary in told)


async def test_a_second_death_while_the_tokens_are_computed_once_more():
    request = TextRequest(PROMPT, BIASED, 30)
    async with dying() as nodes:
        expected = await undisturbed(nodes, request)
        for step in range(5):
            nodes.begin()
            nodes.doom.kill(1, 20)
            # Its twin dies in turn, at the prompt or among the tokens it computes again.
            nodes.doom.kill(4, step)
            reading = asyncio.create_task(read(nodes.model, request))
            await until(lambda: nodes.doom.dead == [1, 4])
            nodes.doom.revive()
            nodes.routes.avoided.clear()
            told, summary = await reading
            assert told == expected
            # Two if a new token came between.
            assert len(summary.pauses) in (1, 2)
            await nodes.mesh.idle()


@pytest.mark.parametrize("exact", [1, 4, 32])
async def test_rows_have_the_shapes_that_are_exact(exact, monkeypatch):
    monkeypatch.setattr(fixture, "EXACT_STEP_TOKENS", exact)
    request = TextRequest(PROMPT, PENALISED, 30, speculation=Speculation.OFF)
    async with dying() as nodes:
        expected = await undisturbed(nodes, request)
        first = [(it.position, it.rows) for it in nodes.doom.ran if it.prefill]
        nodes.begin()
        nodes.doom.kill(2, 25)
        told, _ = await read(nodes.model, request)
        assert told == expected
        keys = sorted({it.key for it in nodes.doom.ran}, key=lambda key: key.route_epoch)
        assert [key.route_epoch for key in keys] == [0, 1]
        again = [it for it in nodes.doom.ran if it.key == keys[1]]
        assert sorted((it.position, it.rows) for it in again if it.prefill) == sorted(first)
        rows = [it.rows for it in again if not it.prefill]
        assert max(rows) == min(exact, 16)
        for node in {it.node for it in again}:
            own = [it for it in again if it.node == node]
            positions = [p for it in own for p in range(it.position, it.position + it.rows)]
            assert positions == list(range(len(PROMPT) + 29))


async def test_known_tokens_wait_for_no_choice():
    request = TextRequest(PROMPT, GREEDY, 40, speculation=Speculation.OFF)
    async with dying() as nodes:
        expected = await undisturbed(nodes, request)
        nodes.begin()
        nodes.doom.kill(1, 30)
        tail = nodes.mesh.nodes[2].shard.parts.stepper
        reading = asyncio.create_task(read(nodes.model, request))
        await until(lambda: nodes.doom.dead == [1])
        # The tail computes nothing for a while; the head has everything that it knows by then.
        blocked = asyncio.create_task(tail.call(time.sleep, 0.3))
        head = nodes.mesh.head.engine
        before = nodes.doom.steps[0]
        await until(lambda: nodes.doom.steps[0] >= before + 4)
        assert not blocked.done(), head.metrics()
        await blocked
        told, _ = await reading
        assert told == expected


async def test_where_steps_cant_be_taken_back_known_tokens_go_one_by_one():
    class Forward(Mesh):
        def _engine(self, *args, **kwargs):
            engine = super()._engine(*args, **kwargs)
            held = replace(engine.capabilities(), supports_rollback=False, exact_step_tokens=1)
            engine._capabilities = held
            return engine

    request = TextRequest(PROMPT, PENALISED, 20)
    async with dying(Forward(Setup())) as nodes:
        expected = await undisturbed(nodes, request)
        for place in NODES:
            nodes.begin()
            nodes.doom.kill(place, 12)
            told, summary = await read(nodes.model, request)
            assert told == expected
            assert len(summary.pauses) == 1
            assert {it.rows for it in nodes.doom.ran if not it.prefill} == {1}
            await nodes.mesh.idle()


@PLACES
async def test_a_prompt_that_began_with_a_kept_cache_goes_on_without_it(place):
    made = Mesh(Setup(keep_seconds=60.0))
    long = prompt_of(40)
    request = TextRequest(long, PENALISED, 12)
    async with dying(made) as nodes:
        await undisturbed(nodes, request)
        cached = await undisturbed(nodes, request)
        assert cached.usage[2] > 0
        nodes.begin()
        nodes.doom.kill(place, 6)
        told, summary = await read(nodes.model, request)
        # What was saved at the beginning stays saved, for who pays.
        assert told == cached
        assert len(summary.pauses) == 1
        # What is kept goes with the stream that it came on.
        await nodes.mesh.channels.close()


async def test_the_reader_is_told_of_the_new_chain_and_the_pause():
    opened: list[Opened] = []
    told: list[Recovered] = []
    request = TextRequest(
        PROMPT,
        GREEDY,
        10,
        on_open=opened.append,
        on_recovery=told.append,
        speculation=Speculation.OFF,
    )
    async with dying() as nodes:
        nodes.begin()
        nodes.doom.kill(1, 6)
        _, summary = await read(nodes.model, request)
        (recovered,) = told
        assert (recovered.pause_seconds,) == summary.pauses
        assert "node-2" in recovered.lost
        assert [hop.node_id for hop in recovered.hops] == ["node-1", "node-5", "node-3"]
        assert recovered.key.route_epoch == 1
        assert 0 < recovered.replayed_tokens < 10
        assert [each.session_id for each in opened] == [recovered.key.session_id] * 2
        assert [each.hops[1].node_id for each in opened] == ["node-2", "node-5"]
        assert nodes.routes.avoided == {"node-2"}


async def test_with_all_tokens_there_no_chain_is_needed_any_more(monkeypatch):
    request = TextRequest(PROMPT, GREEDY, TOKENS)
    async with dying() as nodes:
        expected = await undisturbed(nodes, request)
        assert expected.finish is FinishReason.LENGTH
        nodes.begin()

        async def dies(_: HeadSession) -> None:
            nodes.doom.dead.append(0)
            nodes.mesh.network.drop(nodes.mesh.head.hop.address)
            await asyncio.Event().wait()

        # All that the head has yet to say is that it is done.
        monkeypatch.setattr(HeadSession, "_timings_behind", dies)
        asked = nodes.routes.asked
        told, summary = await read(nodes.model, request)
        assert nodes.doom.dead == [0]
        assert (told, summary.pauses) == (expected, ())
        assert nodes.routes.asked == asked + 1


async def test_how_long_an_answer_took_is_told_of_chains_that_lived():
    timed: list[list[str]] = []
    request = TextRequest(PROMPT, GREEDY, 10, speculation=Speculation.OFF)
    async with dying() as nodes:
        nodes.model.timed = lambda hops, _: timed.append([hop.node_id for hop in hops])
        nodes.begin()
        nodes.doom.kill(1, 6)
        _, summary = await read(nodes.model, request)
        assert summary.pauses
        assert timed == []
        await undisturbed(nodes, request)
        assert timed == [["node-1", "node-2", "node-3"]]


@PLACES
async def test_a_static_chain_goes_on_when_its_node_is_back(place):
    async with mesh(CUTS, Setup(step_seconds=dict.fromkeys(NODES, 0.001))) as nodes:
        chain = await nodes.chain()
        steady = await nodes.model()
        model = ChainModel("fixture", steady.tokenizer, chain, nodes.channels, policy=QUICK)
        request = TextRequest(PROMPT, PENALISED, 30)
        expected, _ = await read(steady, request)
        reading = asyncio.create_task(read(model, request))
        tail = nodes.nodes[2].engine
        before = tail.metrics().steps
        await until(lambda: tail.metrics().steps >= before + 5)
        await nodes.lose(place)
        await asyncio.sleep(0.05)
        nodes.network.register(nodes.nodes[place].hop.address, nodes.nodes[place].shard)
        told, summary = await reading
        assert told == expected
        assert len(summary.pauses) == 1


async def test_a_gateways_client_sees_a_pause_and_its_operator_what_it_was(caplog):
    body = {"model": "dying", "prompt": "hello", "max_tokens": 20, "temperature": 0, "n": 2}
    headers = {"x-meshnet-timings": "1", "x-request-id": "mine"}
    async with dying() as nodes:
        app = create_app([nodes.model], GatewayConfig())
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            nodes.begin()
            expected = (await client.post("/v1/completions", json=body, headers=headers)).json()
            assert expected["meshnet_timings"]["pauses_ms"] == []
            nodes.begin()
            nodes.doom.kill(1, 12)
            told = (await client.post("/v1/completions", json=body, headers=headers)).json()
            page = (await client.get("/metrics")).text
    assert told["choices"] == expected["choices"]
    assert told["usage"] == expected["usage"]
    pauses = told["meshnet_timings"]["pauses_ms"]
    assert len(pauses) in (1, 2) and all(pause > 0 for pause in pauses)
    assert f'meshnet_gateway_recoveries_total{{model="dying"}} {len(pauses)}' in page
    assert f'recovery_pause_seconds_count{{model="dying"}} {len(pauses)}' in page
    lines = [line for line in caplog.messages if "went on after" in line]
    assert len(lines) == len(pauses)
    assert all(line.startswith("[mine] cmpl-") and "node-2" in line for line in lines)
