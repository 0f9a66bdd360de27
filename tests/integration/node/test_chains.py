"""Any chain gives the tokens of one engine that holds all layers."""

import asyncio
import itertools

import pytest

from meshnet.domain.generation import FinishReason
from meshnet.domain.nodes import FlowControl
from tests.support.mesh import (
    GREEDY,
    LAYERS,
    PENALISED,
    Setup,
    alone,
    ask,
    mesh,
    prompt_of,
)

ANY_CUT = [
    cuts for count in range(LAYERS) for cuts in itertools.combinations(range(1, LAYERS), count)
]


async def test_every_cut_gives_the_same_tokens():
    prompt = prompt_of(21)
    expected = alone(prompt, sampling=PENALISED)
    for cuts in ANY_CUT:
        async with mesh(cuts) as chain:
            answer = await ask(await chain.model(), prompt, sampling=PENALISED)
        assert answer.tokens == expected, cuts


@pytest.mark.parametrize("cuts", [(), (3,), (2, 4), (1, 2, 3, 4)], ids=lambda cuts: len(cuts) + 1)
@pytest.mark.parametrize("grpc", [False, True], ids=["loopback", "grpc"])
@pytest.mark.parametrize("sampling", [GREEDY, PENALISED], ids=["greedy", "penalised"])
async def test_a_chain_equals_one_engine(cuts, grpc, sampling):
    prompt = prompt_of(30)
    async with mesh(cuts, Setup(grpc=grpc)) as chain:
        answer = await ask(await chain.model(), prompt, 20, sampling)
    assert answer.tokens == alone(prompt, 20, sampling)
    assert answer.summary.finish_reason is FinishReason.LENGTH
    assert answer.summary.completion_tokens == 20


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 40])
@pytest.mark.parametrize("chunk_credits", [1, 4])
async def test_prompts_of_any_length_pass_in_chunks(length, chunk_credits):
    prompt = prompt_of(length)
    setup = Setup(flow=FlowControl(chunk_credits=chunk_credits))
    async with mesh((2, 4), setup) as chain:
        answer = await ask(await chain.model(), prompt, 4)
    assert answer.tokens == alone(prompt, 4)


@pytest.mark.parametrize("grpc", [False, True], ids=["loopback", "grpc"])
async def test_concurrent_generations_equal_each_alone(grpc):
    prompts = [prompt_of(3 + 5 * i, seed=i) for i in range(8)]
    async with mesh((2, 4), Setup(grpc=grpc)) as chain:
        model = await chain.model()
        answers = await asyncio.gather(*(ask(model, prompt, 16, PENALISED) for prompt in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == alone(prompt, 16, PENALISED)


async def test_one_chain_serves_generation_after_generation():
    async with mesh((3,)) as chain:
        model = await chain.model()
        for seed in range(20):
            prompt = prompt_of(9, seed)
            assert (await ask(model, prompt, 3)).tokens == alone(prompt, 3)


async def test_timings_name_every_hop_in_order_and_count_its_work():
    async with mesh((2, 4), Setup(step_seconds={1: 0.002})) as chain:
        summary = (await ask(await chain.model(), prompt_of(20), 6)).summary
        hops = [(hop.node_id, hop.layers) for hop in chain.hops]
    assert [(timing.node_id, timing.layers) for timing in summary.timings] == hops
    for timing in summary.timings:
        assert (timing.prefill_tokens, timing.decode_steps) == (20, 5)
    first, second, last = summary.timings
    assert second.decode_engine_nanos >= 5 * 2_000_000
    assert first.decode_downstream_nanos >= second.decode_engine_nanos
    assert last.decode_downstream_nanos == 0


async def test_the_context_end_finishes_with_length():
    setup = Setup(context_length=32)
    async with mesh((3,), setup) as chain:
        model = await chain.model()
        answer = await ask(model, prompt_of(30), 100)
        assert (len(answer.tokens), answer.summary.finish_reason) == (2, FinishReason.LENGTH)
        full = await ask(model, prompt_of(31), 100)
        assert len(full.tokens) == 1
