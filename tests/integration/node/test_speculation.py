"""Guessing ahead changes when tokens come, and never which."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from meshnet.domain.frames import (
    Cancel,
    ChunkInfo,
    DecodeFrame,
    DecodeStep,
    GenerationDone,
    OpenSession,
    PrefillChunk,
    SessionFailed,
    SessionOpened,
    StepAck,
    TokenReply,
)
from meshnet.domain.generation import GenerationSpec, Speculation
from meshnet.domain.ids import Address
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.nodes import FlowControl
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.fixture import N_EMBD
from meshnet.session.service import TextDelta, TextRequest
from tests.support.llama_mesh import llama_mesh
from tests.support.mesh import (
    GREEDY,
    Listener,
    Mesh,
    Node,
    Setup,
    alone,
    ask,
    mesh,
    prompt_of,
    start,
    until,
)
from tests.support.tcp_relay import TcpRelay
from tests.support.tiny_gguf import TinyModel, build

PROMPT = prompt_of(20)
TOKENS = 48
REPETITIVE = SamplingParams(temperature=0.0, logit_bias={65: 40.0})
"""The text is one letter, over and over."""
TORN = SamplingParams(
    seed=5,
    repeat_penalty=1.1,
    frequency_penalty=0.3,
    penalty_last_n=20,
    logit_bias={65: 30.0, 66: 30.0},
)
"""Of two letters, so that guesses are right and wrong in turn, and each depends on those before."""
SAMPLINGS = pytest.mark.parametrize(
    "sampling", [GREEDY, REPETITIVE, TORN], ids=["greedy", "repetitive", "torn"]
)
BOTH = pytest.mark.parametrize("grpc", [False, True], ids=["loopback", "grpc"])
CUTS = pytest.mark.parametrize("cuts", [(), (3,), (2, 4)], ids=["1", "2", "3"])
GUESSING = pytest.mark.parametrize("mode", [Speculation.AUTO, Speculation.ON], ids=["auto", "on"])


def hold(node: Node, **changed: object) -> None:
    """Let a node say something else of what its engine can do."""
    parts = node.shard.parts
    held = replace(parts.capabilities, **changed)  # type: ignore[arg-type]
    node.shard._parts = replace(parts, capabilities=held)


async def tokens_of(listener: Listener) -> tuple[list[int], GenerationDone]:
    tokens = []
    while not isinstance(reply := await listener.next(20), GenerationDone):
        assert not isinstance(reply, SessionFailed), reply
        if isinstance(reply, TokenReply):
            tokens.append(reply.token.token_id)
    return tokens, reply


@BOTH
@CUTS
@GUESSING
@SAMPLINGS
async def test_the_tokens_are_those_without_guesses(grpc, cuts, mode, sampling):
    setup = Setup(grpc=grpc, step_seconds=dict.fromkeys(range(3), 0.0005))
    async with mesh(cuts, setup) as chain:
        answer = await ask(await chain.model(), PROMPT, TOKENS, sampling, speculation=mode)
    assert answer.tokens == alone(PROMPT, TOKENS, sampling)
    head, *others = answer.summary.timings
    assert head.proposed_tokens >= head.accepted_tokens
    assert all((hop.proposed_tokens, hop.accepted_tokens) == (0, 0) for hop in others)
    if mode is Speculation.ON and sampling is TORN:
        assert 0 < head.accepted_tokens < head.proposed_tokens
    if mode is Speculation.ON and sampling is REPETITIVE:
        assert head.accepted_tokens == head.proposed_tokens > TOKENS / 2


@CUTS
async def test_an_ending_token_among_guesses_stops(cuts):
    expected = alone(PROMPT, TOKENS, TORN)
    ending = expected[-1]
    spec = GenerationSpec(PROMPT, TORN, 400, frozenset({ending}), Speculation.ON)
    async with mesh(cuts) as chain:
        listener, _ = start(await chain.channel(), chain.terms(), spec)
        tokens, _ = await tokens_of(listener)
    assert tokens == expected[: expected.index(ending)]


@CUTS
async def test_the_context_is_filled_to_its_end_and_no_further(cuts):
    setup = Setup(context_length=len(PROMPT) + 17)
    async with mesh(cuts, setup) as chain:
        answer = await ask(await chain.model(), PROMPT, 400, REPETITIVE, speculation=Speculation.ON)
        positions = [node.engine.metrics().rows for node in chain.nodes]
    assert len(answer.tokens) == 17
    assert positions == [len(PROMPT) + 16] * len(chain.nodes)


async def test_what_is_off_computes_a_row_a_token():
    async with mesh((3,)) as chain:
        answer = await ask(
            await chain.model(), PROMPT, TOKENS, REPETITIVE, speculation=Speculation.OFF
        )
    assert answer.summary.timings[0].proposed_tokens == 0
    assert [hop.decode_steps for hop in answer.summary.timings] == [TOKENS - 1] * 2


async def test_generations_at_once_equal_each_alone():
    prompts = [prompt_of(4 + i, seed=i) for i in range(8)]
    async with mesh((2, 4)) as chain:
        model = await chain.model()
        answers = await asyncio.gather(
            *(ask(model, prompt, TOKENS, TORN, speculation=Speculation.ON) for prompt in prompts)
        )
    assert [answer.tokens for answer in answers] == [alone(p, TOKENS, TORN) for p in prompts]


async def test_the_weakest_node_bounds_a_steps_rows():
    async with mesh((3,)) as chain:
        hold(chain.nodes[1], exact_step_tokens=1)
        answer = await ask(
            await chain.model(), PROMPT, TOKENS, REPETITIVE, speculation=Speculation.ON
        )
        steps = [hop.decode_steps for hop in answer.summary.timings]
    assert answer.tokens == alone(PROMPT, TOKENS, REPETITIVE)
    assert answer.summary.timings[0].proposed_tokens > TOKENS / 2
    assert steps == [TOKENS - 1] * 2


@pytest.mark.parametrize("rigid", [0, 1], ids=["head", "tail"])
async def test_a_node_that_cannot_take_steps_back_is_not_asked_to(rigid):
    async with mesh((3,)) as chain:
        hold(chain.nodes[rigid], supports_rollback=False)
        answer = await ask(
            await chain.model(), PROMPT, TOKENS, REPETITIVE, speculation=Speculation.ON
        )
    assert answer.tokens == alone(PROMPT, TOKENS, REPETITIVE)
    assert answer.summary.timings[0].proposed_tokens == 0


async def test_a_reader_who_takes_little_bounds_how_far_is_guessed():
    async with mesh((3,)) as chain:
        spec = GenerationSpec(PROMPT, REPETITIVE, 100, speculation=Speculation.ON)
        listener, _ = start(await chain.channel(), chain.terms(), spec, token_credits=10)
        await asyncio.sleep(0.3)
        rows = [node.engine.metrics().rows - len(PROMPT) for node in chain.nodes]
        assert listener.waiting() == 11  # the session's opening, and a token a credit
        assert all(10 <= count <= 12 for count in rows)
        await (await chain.channel()).close()


@BOTH
async def test_a_reader_who_leaves_amid_guesses_frees_every_node(grpc):
    async with mesh((2, 4), Setup(grpc=grpc, step_seconds={1: 0.002})) as chain:
        request = TextRequest(PROMPT, REPETITIVE, 200, speculation=Speculation.ON)
        events = (await chain.model()).generate(request)
        for _ in range(20):
            assert isinstance(await anext(events), TextDelta)
        await events.aclose()
        await chain.idle(0.5)


async def test_a_straight_way_that_breaks_amid_guesses_loses_no_token():
    setup = Setup(grpc=True, step_seconds={1: 0.002})
    async with mesh((2, 4), setup) as chain:
        relay = TcpRelay(chain.hops[0].address)
        head = replace(chain.hops[0], address=Address(await relay.start()))
        spec = GenerationSpec(PROMPT, TORN, 100, speculation=Speculation.ON)
        terms = chain.terms(hops=(head, *chain.hops[1:]))
        listener, _ = start(await chain.channel(), terms, spec)
        await until(lambda: listener.waiting() > 20)
        relay.fall_silent()
        await asyncio.sleep(0.02)
        await relay.cut()
        assert (await tokens_of(listener))[0] == alone(PROMPT, 100, TORN)


async def test_steps_that_are_taken_back_before_they_began_are_not_computed():
    async with mesh((3,), Setup(step_seconds={1: 0.03})) as chain:
        channel, listener, terms = await chain.channel(1), Listener(), chain.terms(1)
        handle = channel.attach(listener)
        channel.send(OpenSession(handle, terms, GREEDY, (), FlowControl()))
        opened = await listener.next()
        assert isinstance(opened, SessionOpened)
        assert opened.step_tokens > 1
        fresh = CacheExpectation(CacheMode.FRESH, 0)
        chunk = ChunkInfo(0, 1, 5, 5)
        channel.send(
            PrefillChunk(handle, terms.key, chunk, 0, 0, fresh, BoundaryBundle((rows(5),)))
        )
        await listener.until(StepAck)
        steps = [DecodeStep(handle, 5 + i, 1 + i, rows(1)) for i in range(4)]
        several = DecodeStep(handle, 6, 5, rows(3), proposed=(1, 2), truncate=True)
        for step in (*steps, several):
            channel.send(DecodeFrame((step,)))
        tokens = [await listener.until(TokenReply) for _ in range(4)]
        told = [(t.step, t.token.position) for t in tokens if isinstance(t, TokenReply)]
        assert told == [(1, 6), (5, 7), (5, 8), (5, 9)]
        channel.send(DecodeFrame((replace(steps[0], position=9, step=6),)))
        assert isinstance(await listener.next(), TokenReply)
        assert chain.nodes[1].engine.metrics().rows == 5 + 1 + 3 + 1
        channel.send(Cancel(handle, "done"))


def rows(count: int) -> EngineTensor:
    return EngineTensor(RESIDUAL, DType.FLOAT32, (count, N_EMBD), bytes(4 * count * N_EMBD))


async def seconds_over(
    chain: Mesh, relay: str, sampling: SamplingParams, mode: Speculation
) -> float:
    """How long a generation takes whose tail is behind a relay."""
    tail = replace(chain.hops[1], address=Address(relay))
    spec = GenerationSpec(PROMPT, sampling, 100, speculation=mode)
    terms = chain.terms(hops=(chain.hops[0], tail))
    began = time.perf_counter()
    listener, _ = start(await chain.channel(), terms, spec)
    tokens, _ = await tokens_of(listener)
    assert tokens == alone(PROMPT, 100, sampling)
    return time.perf_counter() - began


@pytest.mark.slow
@pytest.mark.parametrize("rows", [8, 1])
async def test_a_slow_links_way_leaves_the_critical_path(rows):
    async with mesh((3,), Setup(grpc=True)) as chain:
        hold(chain.nodes[1], exact_step_tokens=rows)
        relay = TcpRelay(chain.hops[1].address, delay_seconds=0.02)
        address = await relay.start()
        off = await seconds_over(chain, address, REPETITIVE, Speculation.OFF)
        auto = await seconds_over(chain, address, REPETITIVE, Speculation.AUTO)
        await chain.nodes[0].shard.parts.channels.close()
        await relay.cut()
    assert off / auto >= 3.0, (off, auto)


@CUTS
async def test_a_model_on_libllama_chooses_the_same_tokens(cuts, tmp_path: Path):
    path = build(tmp_path / "model.gguf", TinyModel("llama", layers=6))
    spec = GenerationSpec(
        tuple(range(3, 30)),
        SamplingParams(temperature=0.3, seed=3, repeat_penalty=1.05, penalty_last_n=16),
        80,
    )
    found: dict[Speculation, list[int]] = {}
    proposed = 0
    async with llama_mesh(path, tmp_path, cuts) as chain:
        for mode in Speculation:
            terms = chain.terms()
            listener, _ = start(await chain.channel(), terms, replace(spec, speculation=mode))
            tokens, done = await tokens_of(listener)
            found[mode] = tokens
            proposed = done.timings[0].proposed_tokens
    assert found[Speculation.ON] == found[Speculation.AUTO] == found[Speculation.OFF]
    assert chain.nodes[0].hop.layers == LayerRange(0, cuts[0] if cuts else 6)
    assert bool(proposed) is bool(cuts), "alone, a row at a time is best"
