"""What a head does with generations, and that languages mix within a chain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from meshnet.domain.errors import NodeLostError, StaleEpochError
from meshnet.domain.frames import (
    Cancel,
    Generate,
    GenerationDone,
    GrantTokens,
    SessionFailed,
    SessionOpened,
    StepAck,
    TokenReply,
)
from meshnet.domain.generation import FinishReason, GenerationSpec
from meshnet.domain.ids import Address, NodeId, SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import FlowControl, Hop
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.status import StatusCode
from meshnet.engine.tokenizer import ByteTokenizer
from meshnet.session.chain import find_chain
from meshnet.session.generate import ChainModel
from meshnet.transport.base import ClientSeam, Peer
from meshnet.transport.channel import ChannelPool
from meshnet.transport.seam_client import GrpcTransport
from tests.support.external_node import (
    LAYERS,
    ExternalNode,
    Language,
    NodeSetup,
    external_chain,
)
from tests.support.mesh import PENALISED, alone, ask, prompt_of
from tests.support.upstream import (
    GREEDY,
    Upstream,
    new_key,
    receive,
    terms_for,
    until_idle,
)

TIMEOUT = 5.0
PROMPT = prompt_of(19)
EXPECTED = alone(PROMPT, 12)

MIXED: list[tuple[Language, ...]] = [
    ("native",),
    ("python", "native"),
    ("native", "python"),
    ("python", "native", "python"),
    ("native", "python", "native"),
    ("native", "native", "native"),
]
CUTS: dict[int, tuple[int, ...]] = {1: (), 2: (3,), 3: (1, 4)}


def _generate(node: ExternalNode, handle: int = 1, tokens: int = 1000, **spec: object) -> Generate:
    values: dict[str, object] = {"prompt": PROMPT, "sampling": GREEDY, "max_new_tokens": 12}
    made = GenerationSpec(**(values | spec))  # type: ignore[arg-type]
    return Generate(handle, terms_for(node.setup, [node.hop]), made, tokens)


async def _tokens(seam: ClientSeam, count: int) -> list[int]:
    return [(await receive(seam, TokenReply)).token.token_id for _ in range(count)]


async def _refused(seam: ClientSeam, request: Generate, code: StatusCode) -> None:
    seam.send(request)
    failed = await receive(seam, SessionFailed)
    assert (failed.handle, failed.status.code) == (request.handle, code), failed


async def test_a_generation_waits_for_grants_and_ends_at_its_limit(
    whole: ExternalNode, whole_seam: ClientSeam, whole_peer: Peer
) -> None:
    whole_seam.send(_generate(whole, tokens=2))
    assert (await receive(whole_seam, SessionOpened)).flow == whole.setup.flow
    assert await _tokens(whole_seam, 2) == EXPECTED[:2]
    # The third token waits: an answer to something else comes first.
    await _refused(whole_seam, _generate(whole, 2, prompt=(0,) * 256), _TOO_LONG)
    whole_seam.send(GrantTokens(1, 1))
    assert await _tokens(whole_seam, 1) == EXPECTED[2:3]
    whole_seam.send(GrantTokens(1, 100))
    assert await _tokens(whole_seam, 9) == EXPECTED[3:]
    done = await receive(whole_seam, GenerationDone)
    (timing,) = done.timings
    assert (done.handle, done.finish_reason) == (1, FinishReason.LENGTH)
    assert (timing.prefill_tokens, timing.decode_steps) == (len(PROMPT), 11)
    assert (await whole_peer.health(TIMEOUT)).open_sessions == 0


async def test_an_end_token_ends_a_generation_and_is_not_reported(
    whole: ExternalNode, whole_seam: ClientSeam
) -> None:
    whole_seam.send(_generate(whole, end_ids=frozenset({EXPECTED[3]})))
    await receive(whole_seam, SessionOpened)
    assert await _tokens(whole_seam, 3) == EXPECTED[:3]
    assert (await receive(whole_seam, GenerationDone)).finish_reason is FinishReason.STOP


async def test_the_contexts_end_ends_a_generation(
    whole: ExternalNode, whole_seam: ClientSeam
) -> None:
    prompt = prompt_of(250)
    whole_seam.send(_generate(whole, prompt=prompt, max_new_tokens=None))
    await receive(whole_seam, SessionOpened)
    assert await _tokens(whole_seam, 6) == alone(prompt, 6)
    assert (await receive(whole_seam, GenerationDone)).finish_reason is FinishReason.LENGTH


async def test_generations_share_a_stream(whole: ExternalNode, whole_seam: ClientSeam) -> None:
    prompts = {handle: prompt_of(5 * handle, handle) for handle in range(1, 6)}
    for handle, prompt in prompts.items():
        whole_seam.send(_generate(whole, handle, prompt=prompt))
    found: dict[int, list[int]] = {handle: [] for handle in prompts}
    ended = 0
    while ended < len(prompts):
        reply = await whole_seam.receive()
        if isinstance(reply, TokenReply):
            found[reply.handle].append(reply.token.token_id)
        ended += isinstance(reply, GenerationDone)
    assert found == {handle: alone(prompt, 12) for handle, prompt in prompts.items()}


async def test_a_cancelled_generation_ends_with_an_error_or_in_silence(
    whole: ExternalNode, whole_seam: ClientSeam, whole_peer: Peer
) -> None:
    request = _generate(whole, tokens=1)
    whole_seam.send(request)
    await receive(whole_seam, SessionOpened)
    await _tokens(whole_seam, 1)
    await whole_peer.cancel(request.terms.key, "changed my mind", TIMEOUT)
    failed = await receive(whole_seam, SessionFailed)
    assert failed.status.code is StatusCode.CANCELLED
    whole_seam.send(_generate(whole, 2, tokens=1))
    await receive(whole_seam, SessionOpened)
    await _tokens(whole_seam, 1)
    whole_seam.send(Cancel(2, "gone"))
    whole_seam.send(GrantTokens(2, 5))
    await until_idle(whole_peer)
    whole_seam.send(_generate(whole, 3, tokens=1))
    await receive(whole_seam, SessionOpened)
    assert (await receive(whole_seam, TokenReply)).handle == 3


_TOO_LONG = StatusCode.CONTEXT_LENGTH_EXCEEDED


async def test_a_generation_that_cannot_be_is_refused(
    whole: ExternalNode, whole_seam: ClientSeam
) -> None:
    good = _generate(whole)
    gap = Hop(NodeId("late"), Address("127.0.0.1:1"), LayerRange(3, LAYERS))
    await _refused(
        whole_seam,
        replace(good, terms=replace(good.terms, hops=(gap,))),
        StatusCode.LAYER_RANGE_INVALID,
    )
    await _refused(whole_seam, _generate(whole, prompt=(0,) * 256), _TOO_LONG)
    boundary = Upstream(whole_seam, _tail_setup(), [whole.hop], handle=4)
    whole_seam.send(boundary.opening())
    failed = await receive(whole_seam, SessionFailed)
    assert failed.status.code is StatusCode.LAYER_RANGE_INVALID
    whole_seam.send(_generate(whole, 5, tokens=0))
    await receive(whole_seam, SessionOpened)
    chunk = replace(boundary.chunks(PROMPT)[0], handle=5)
    whole_seam.send(chunk)
    failed = await receive(whole_seam, SessionFailed)
    assert (failed.handle, failed.status.code) == (5, StatusCode.INVALID_ARGUMENT)


def _tail_setup() -> NodeSetup:
    return NodeSetup(LayerRange(3, LAYERS), NodeId("tail"))


@asynccontextmanager
async def _model(nodes: Sequence[ExternalNode]) -> AsyncIterator[ChainModel]:
    channels = ChannelPool(GrpcTransport())
    chain = await find_chain(channels, [node.address for node in nodes])
    yield ChainModel("fixture", ByteTokenizer(), chain, channels)
    await channels.close()


@pytest.mark.native
@pytest.mark.parametrize("languages", MIXED, ids="-".join)
async def test_a_mixed_chain_gives_the_tokens_of_one_engine(languages: Sequence[Language]) -> None:
    prompts = [prompt_of(length, length) for length in (1, 19, 50)]
    with external_chain(languages, CUTS[len(languages)]) as nodes:
        async with _model(nodes) as model:
            for prompt in prompts:
                answer = await ask(model, prompt, 20)
                assert answer.tokens == alone(prompt, 20)
                assert [t.node_id for t in answer.summary.timings] == [
                    n.setup.node_id for n in nodes
                ]
                for timing in answer.summary.timings:
                    assert (timing.prefill_tokens, timing.decode_steps) == (len(prompt), 19)


@pytest.mark.native
async def test_sampling_parameters_and_history_pass_through_native_nodes() -> None:
    with external_chain(("native", "native", "python"), (1, 4)) as nodes:
        async with _model(nodes) as model:
            answer = await ask(model, PROMPT, 20, PENALISED)
    assert answer.tokens == alone(PROMPT, 20, PENALISED)


@pytest.mark.native
@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        (PENALISED, "sampling"),
        (SamplingParams(temperature=0.0, grammar='root ::= "a"'), "grammar"),
    ],
)
async def test_a_native_tail_refuses_what_it_would_not_heed(
    sampling: SamplingParams, field: str
) -> None:
    with external_chain(("python", "native"), (3,)) as nodes:
        peer = GrpcTransport().peer(nodes[0].address)
        seam = await peer.open_seam(TIMEOUT)
        request = _generate(nodes[0], sampling=sampling)
        hops = tuple(node.hop for node in nodes)
        seam.send(replace(request, terms=replace(request.terms, hops=hops)))
        failed = await receive(seam, SessionFailed)
        assert failed.status.code is StatusCode.INVALID_ARGUMENT
        assert failed.status.details["field"] == field
        await seam.close()
        await peer.close()


@pytest.mark.native
@pytest.mark.parametrize("languages", [("python", "native"), ("native", "python")], ids="-".join)
async def test_the_loss_of_a_later_node_is_told_by_name(languages: Sequence[Language]) -> None:
    with external_chain(languages, (3,)) as nodes:
        peer = GrpcTransport().peer(nodes[0].address)
        seam = await peer.open_seam(TIMEOUT)
        request = _generate(nodes[0], tokens=1)
        hops = tuple(node.hop for node in nodes)
        terms = replace(request.terms, hops=hops, key=new_key(epoch=1))
        seam.send(replace(request, terms=terms))
        await receive(seam, SessionOpened)
        await _tokens(seam, 1)
        nodes[1].process.kill()
        failed = await receive(seam, SessionFailed)
        assert failed.status.code is NodeLostError.code
        assert failed.status.details["node"] == nodes[1].setup.node_id
        await until_idle(peer)
        older = replace(terms, key=SessionKey(terms.key.session_id, 0))
        seam.send(replace(request, handle=2, terms=older))
        failed = await receive(seam, SessionFailed)
        assert failed.status.code is StaleEpochError.code
        await seam.close()
        await peer.close()


@pytest.mark.parametrize("lane", ["python", pytest.param("native", marks=pytest.mark.native)])
async def test_chunks_that_come_again_use_no_credits_up(lane: Language) -> None:
    with external_chain((lane, lane, lane), (2, 4)) as nodes:
        peer = GrpcTransport().peer(nodes[1].address)
        seam = await peer.open_seam(TIMEOUT)
        session = Upstream(seam, nodes[1].setup, [node.hop for node in nodes[1:]])
        await session.open()
        first, *rest = session.chunks(PROMPT)
        for repeat in range(3 * FlowControl().chunk_credits):
            seam.send(first)
            assert (await receive(seam, StepAck)).duplicate == (repeat > 0)
        for chunk in rest:
            seam.send(chunk)
        found = [await seam.receive() for _ in range(3)]
        assert [r.token.token_id for r in found if isinstance(r, TokenReply)] == EXPECTED[:1]
        await seam.close()
        await peer.close()


@pytest.mark.native
@pytest.mark.parametrize("languages", [("python", "native"), ("native", "python")], ids="-".join)
async def test_a_cancel_at_the_head_frees_the_tail(languages: Sequence[Language]) -> None:
    with external_chain(languages, (3,)) as nodes:
        peers = [GrpcTransport().peer(node.address) for node in nodes]
        seam = await peers[0].open_seam(TIMEOUT)
        request = _generate(nodes[0], tokens=1)
        key = new_key()
        terms = replace(request.terms, hops=tuple(node.hop for node in nodes), key=key)
        seam.send(replace(request, terms=terms))
        await receive(seam, SessionOpened)
        assert (await peers[1].health(TIMEOUT)).open_sessions == 1
        await peers[0].cancel(key, "enough", TIMEOUT)
        for peer in peers:
            await until_idle(peer)
        await seam.close()
        for peer in peers:
            await peer.close()
