"""Seams that carry narrower numbers than engines compute with."""

from collections.abc import Sequence

import pytest

from meshnet.domain.errors import MalformedFrameError, error_from
from meshnet.domain.frames import (
    ChunkInfo,
    DecodeFrame,
    DecodeStep,
    OpenSession,
    PrefillChunk,
    SessionFailed,
    SessionOpened,
    StepAck,
)
from meshnet.domain.ids import SessionKey, new_route_session_id
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.base import (
    DecodeRequest,
    EngineLimits,
    LoadRequest,
    PrefillRequest,
    StepRequest,
    TokenChoice,
)
from meshnet.engine.fixture import N_EMBD, FixtureEngine
from meshnet.engine.tokenizer import ByteTokenizer
from meshnet.session.generate import ChainModel
from meshnet.session.links import measure_links
from meshnet.wire.narrow import narrowed, widened
from tests.support.mesh import GREEDY, LAYERS, Listener, Mesh, Setup, alone, ask, mesh

PROMPT = tuple(b"a prompt of more than one chunk")
NEW_TOKENS = 6
CUTS = (2, 4)


def played(dtype: DType) -> list[int]:
    """What engines with this between them say, without any node."""
    setup, engines = Setup(), []
    for start, end in zip((0, *CUTS), (*CUTS, LAYERS), strict=True):
        engine = FixtureEngine()
        engine.load(LoadRequest(None, start, end, LAYERS, setup.recipe(), EngineLimits(4096)))
        engines.append(engine)
    key, tokens, step = SessionKey(new_route_session_id(), 0), list(PROMPT), 0
    position = 0
    while len(tokens) < len(PROMPT) + NEW_TOKENS:
        rows = tuple(tokens[position : position + setup.chunk_tokens])
        chosen = through(engines, key, position, step, rows, dtype)
        position, step = position + len(rows), step + 1
        if position == len(tokens):
            tokens.append(chosen)
    return tokens[len(PROMPT) :]


def through(
    engines: Sequence[FixtureEngine],
    key: SessionKey,
    position: int,
    step: int,
    rows: tuple[int, ...],
    dtype: DType,
) -> int:
    kind: type[StepRequest] = DecodeRequest if position >= len(PROMPT) else PrefillRequest
    expectation = CacheExpectation(CacheMode.EXACT if position else CacheMode.FRESH, position)
    result = engines[0].execute([kind(key, position, expectation, step, rows)])[0]
    for engine in engines[1:]:
        crossed = widened(narrowed(result.boundary(), dtype), dtype)
        request = kind(key, position, expectation, step, input=crossed, choice=TokenChoice(GREEDY))
        result = engine.execute([request])[0]
    return result.token().token_id


async def narrow_model(nodes: Mesh, dtype: DType) -> ChainModel:
    chain = (await nodes.chain()).with_boundary(dtype)
    return ChainModel("fixture", ByteTokenizer(), chain, nodes.channels)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
@pytest.mark.parametrize("grpc", [False, True])
async def test_a_chain_computes_on_what_crossed_its_seams(dtype, grpc):
    async with mesh(CUTS, Setup(grpc=grpc)) as nodes:
        answer = await ask(await narrow_model(nodes, dtype), PROMPT, NEW_TOKENS)
        assert answer.tokens == played(dtype)
        exact = answer.tokens == alone(PROMPT, NEW_TOKENS)
        assert exact == (dtype is DType.FLOAT32)


async def test_sessions_of_several_boundaries_share_a_chain():
    async with mesh(CUTS) as nodes:
        narrow, exact = [
            await narrow_model(nodes, dtype) for dtype in (DType.BFLOAT16, DType.FLOAT32)
        ]
        assert (await ask(narrow, PROMPT, NEW_TOKENS)).tokens == played(DType.BFLOAT16)
        assert (await ask(exact, PROMPT, NEW_TOKENS)).tokens == played(DType.FLOAT32)


async def test_every_link_of_a_chain_is_timed_and_one_node_has_none():
    async with mesh(CUTS, Setup(grpc=True)) as nodes:
        links = await measure_links(nodes.channels, await nodes.chain())
    assert len(links) == len(CUTS) + 1
    assert all(link.bytes_per_second > 1e5 and link.round_trip_seconds < 1.0 for link in links)
    async with mesh() as alone_in_it:
        assert await measure_links(alone_in_it.channels, await alone_in_it.chain()) == ()


@pytest.mark.parametrize("decode", [False, True])
async def test_a_boundary_of_another_type_than_agreed_is_malformed(decode):
    async with mesh((3,)) as nodes:
        agreed = nodes.setup.recipe().fingerprint().with_boundary(DType.BFLOAT16)
        terms = nodes.terms(1, fingerprint=agreed)
        channel, listener = await nodes.channel(1), Listener()
        handle = channel.attach(listener)
        channel.send(OpenSession(handle, terms, GREEDY, (), nodes.setup.flow))
        await listener.until(SessionOpened)
        exact = EngineTensor(RESIDUAL, DType.FLOAT32, (1, N_EMBD), bytes(4 * N_EMBD))
        bundle = BoundaryBundle((exact,))
        if decode:
            bundle = narrowed(bundle, DType.BFLOAT16)
        fresh = CacheExpectation(CacheMode.FRESH, 0)
        channel.send(PrefillChunk(handle, terms.key, ChunkInfo(0, 1, 1, 1), 0, 0, fresh, bundle))
        if decode:
            await listener.until(StepAck)
            channel.send(DecodeFrame((DecodeStep(handle, 1, 1, exact),)))
        failed = await listener.until(SessionFailed)
        assert isinstance(failed, SessionFailed)
        error = error_from(failed.status)
        assert isinstance(error, MalformedFrameError)
        assert error.details["field"] == "tensors.dtype"
        channel.detach(handle)
