"""Prefill chunks overlap along the chain, and credits bound what anybody sends ahead."""

import asyncio
import itertools

import pytest

from meshnet.domain.errors import ResourceExhaustedError, error_from
from meshnet.domain.frames import (
    ChunkInfo,
    GenerationDone,
    GrantTokens,
    OpenSession,
    PrefillChunk,
    SessionFailed,
    SessionOpened,
    TokenReply,
)
from meshnet.domain.generation import GenerationSpec
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.nodes import FlowControl
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.fixture import N_EMBD
from meshnet.node.schedule import Pace
from meshnet.session.generate import ChainModel
from meshnet.session.service import TextDelta, TextRequest
from tests.support.mesh import GREEDY, Listener, Setup, alone, ask, mesh, prompt_of, start

CHUNKS = 10
STEP_SECONDS = 0.02


@pytest.mark.parametrize("chunk_credits", [1, 2, 4])
async def test_a_node_computes_a_chunk_while_the_one_before_computes_the_next(chunk_credits):
    setup = Setup(
        step_seconds=dict.fromkeys(range(3), STEP_SECONDS),
        flow=FlowControl(chunk_credits=chunk_credits),
    )
    prompt = prompt_of(CHUNKS * setup.chunk_tokens)
    async with mesh((2, 4), setup) as chain:
        answer = await ask(await chain.model(), prompt, 1)
        naps = [node.naps for node in chain.nodes]
    assert answer.tokens == alone(prompt, 1)
    for before, after in itertools.pairwise(naps):
        # With any later chunk: a node that was held up once stays behind by more than one.
        overlaps = [
            any(later[0] < ended and began < later[1] for later in before[chunk + 1 :])
            for chunk, (began, ended) in enumerate(after)
        ]
        assert sum(overlaps) >= CHUNKS - 3, overlaps


@pytest.mark.parametrize("chunk_credits", [1, 3])
async def test_a_node_is_never_more_chunks_ahead_than_the_next_one_grants(chunk_credits):
    setup = Setup(step_seconds={1: STEP_SECONDS / 2}, flow=FlowControl(chunk_credits=chunk_credits))
    prompt = prompt_of(CHUNKS * setup.chunk_tokens)
    async with mesh((3,), setup) as chain:
        asking = asyncio.create_task(ask(await chain.model(), prompt, 1))
        ahead = 0
        while not asking.done():
            head, tail = (node.engine.metrics() for node in chain.nodes)
            ahead = max(ahead, head.steps - tail.steps)
            await asyncio.sleep(0.001)
        assert (await asking).tokens == alone(prompt, 1)
    # A chunk that is computed and waits for its credit, and the one the tail has begun.
    assert chunk_credits <= ahead <= chunk_credits + 2


async def test_a_reader_that_takes_nothing_stalls_the_head():
    async with mesh((3,)) as chain:
        channel = await chain.channel()
        spec = GenerationSpec(prompt_of(5), GREEDY, 50)
        listener, handle = start(channel, chain.terms(), spec, token_credits=4)
        assert isinstance(await listener.next(), SessionOpened)
        tokens = [await listener.next() for _ in range(4)]
        await asyncio.sleep(0.05)
        assert listener.waiting() == 0
        assert [node.engine.metrics().steps for node in chain.nodes] == [5, 5]

        channel.send(GrantTokens(handle, 2))
        tokens += [await listener.next() for _ in range(2)]
        await asyncio.sleep(0.02)
        assert listener.waiting() == 0

        channel.send(GrantTokens(handle, 2**32 - 1))
        while isinstance(reply := await listener.next(), TokenReply):
            tokens.append(reply)
        assert isinstance(reply, GenerationDone)
        chosen = [reply.token.token_id for reply in tokens if isinstance(reply, TokenReply)]
        assert chosen == alone(prompt_of(5), 50)


async def test_a_slow_reader_of_text_gets_every_token():
    async with mesh((3,)) as chain:
        model = await chain.model()
        answer = await ask(model, prompt_of(5), 200)
        assert answer.tokens == alone(prompt_of(5), 200)


async def test_a_sender_that_ignores_its_chunk_credits_is_cut_off():
    flow = FlowControl(chunk_credits=2)
    async with mesh((3,), Setup(step_seconds={1: 0.02}, flow=flow)) as chain:
        channel = await chain.channel(1)
        listener = Listener()
        handle = channel.attach(listener)
        terms = chain.terms(1)
        channel.send(OpenSession(handle, terms, GREEDY, (), flow))
        await listener.until(SessionOpened)
        row = EngineTensor(RESIDUAL, DType.FLOAT32, (1, N_EMBD), bytes(4 * N_EMBD))
        for index in range(20):
            mode = CacheMode.EXACT if index else CacheMode.FRESH
            channel.send(
                PrefillChunk(
                    handle,
                    terms.key,
                    ChunkInfo(index, 20, 1, 20),
                    index,
                    index,
                    CacheExpectation(mode, index),
                    BoundaryBundle((row,)),
                )
            )
        failed = await listener.until(SessionFailed)
        assert isinstance(failed, SessionFailed)
        error = error_from(failed.status)
        assert isinstance(error, ResourceExhaustedError)
        assert "2 unanswered chunks" in error.message
        await chain.idle()


async def tokens_of(model: ChainModel, count: int, seen: list[int]) -> None:
    async for event in model.generate(TextRequest(prompt_of(4), GREEDY, count)):
        if isinstance(event, TextDelta):
            seen += [token.token_id for token in event.tokens]


async def test_long_prompts_leave_every_second_turn_to_others_tokens():
    setup = Setup(step_seconds={0: 0.003}, context_length=1024, pace=Pace(max_gap_seconds=1.0))
    async with mesh((), setup) as chain:
        model = await chain.model()
        seen: list[int] = []
        talking = asyncio.create_task(tokens_of(model, 200, seen))
        await asyncio.sleep(0.03)
        before = len(seen)
        # Two of them, so that a chunk waits at every turn.
        prompts = [prompt_of(20 * setup.chunk_tokens, seed) for seed in range(2)]
        await asyncio.gather(*(ask(model, prompt, 1) for prompt in prompts))
        assert 25 <= len(seen) - before <= 45
        talking.cancel()
        await asyncio.wait({talking})


async def test_others_tokens_leave_every_second_turn_to_a_long_prompt():
    setup = Setup(step_seconds={0: 0.003}, context_length=1024, pace=Pace(max_gap_seconds=1.0))
    async with mesh((), setup) as chain:
        model = await chain.model()
        seen: list[int] = []
        # They don't fall into step: one waits while the other's token is computed.
        talking = [asyncio.create_task(tokens_of(model, 400, seen)) for _ in range(2)]
        await asyncio.sleep(0.03)
        before = len(seen)
        await ask(model, prompt_of(20 * setup.chunk_tokens), 1)
        assert len(seen) - before <= 50
        for each in talking:
            each.cancel()
        await asyncio.wait(talking)
