"""Whatever comes down a stream, in whatever order: a node answers, serves on, and frees it all."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.domain.frames import (
    Cancel,
    ChunkInfo,
    DecodeFrame,
    DecodeStep,
    Generate,
    GrantTokens,
    OpenSession,
    PrefillChunk,
    Release,
    SeamRequest,
)
from meshnet.domain.generation import GenerationSpec
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.nodes import FlowControl
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.fixture import N_EMBD
from tests.support.frames import requests
from tests.support.mesh import GREEDY, Mesh, Setup, alone, ask, mesh, prompt_of

PROMPT = prompt_of(12)
HANDLES = st.integers(1, 3)
KEYS = st.builds(SessionKey, st.sampled_from(["a", "b"]).map(RouteSessionId), st.integers(0, 2))
SMALL = st.integers(0, 3)


@st.composite
def tensors(draw: st.DrawFn, rows: int) -> EngineTensor:
    width = draw(st.sampled_from([N_EMBD, N_EMBD, N_EMBD, 1]))
    # Zeros, or NaN.
    byte = draw(st.sampled_from([b"\0", b"\xff"]))
    return EngineTensor(RESIDUAL, DType.FLOAT32, (rows, width), byte * (4 * rows * width))


@st.composite
def expectations(draw: st.DrawFn, position: int) -> CacheExpectation:
    mode, length = draw(st.sampled_from(CacheMode)), draw(st.sampled_from([position, 1]))
    if mode is CacheMode.FORK:
        return CacheExpectation(mode, max(length, 1), draw(KEYS))
    return CacheExpectation(mode, length)


@st.composite
def chunks(draw: st.DrawFn) -> PrefillChunk:
    rows, position = draw(st.integers(1, 3)), draw(SMALL)
    count = draw(st.integers(1, 2))
    return PrefillChunk(
        draw(HANDLES),
        draw(KEYS),
        ChunkInfo(draw(st.integers(0, count - 1)), count, rows, 6),
        position,
        draw(SMALL),
        draw(expectations(position)),
        BoundaryBundle((draw(tensors(rows)),)),
    )


@st.composite
def decode_steps(draw: st.DrawFn) -> DecodeStep:
    proposed = draw(st.sampled_from([(), (), (), (65,), (65, 999)]))
    return DecodeStep(
        draw(HANDLES),
        draw(SMALL),
        draw(SMALL),
        draw(tensors(1 + len(proposed))),
        proposed=proposed,
        truncate=draw(st.booleans()),
    )


decodes = st.lists(decode_steps(), min_size=1, max_size=3).map(
    lambda steps: DecodeFrame(tuple(steps))
)


@dataclass(frozen=True)
class Opening:
    """A session to open, whose terms are known once there are nodes."""

    handle: int
    key: SessionKey
    as_head: bool

    def request(self, chain: Mesh, place: int) -> SeamRequest:
        terms = chain.terms(place, key=self.key)
        if self.as_head:
            return Generate(self.handle, terms, GenerationSpec(PROMPT, GREEDY, 4), 100)
        return OpenSession(self.handle, terms, GREEDY, (), FlowControl())


frames: st.SearchStrategy[SeamRequest | Opening] = st.one_of(
    st.builds(Opening, HANDLES, KEYS, st.booleans()),
    st.builds(Opening, HANDLES, KEYS, st.booleans()),
    chunks(),
    decodes,
    st.builds(GrantTokens, HANDLES, st.sampled_from([0, 1, 2**32 - 1])),
    st.builds(Cancel, HANDLES, st.just("why not")),
    st.builds(Release, HANDLES),
    requests,
)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["head", "middle", "tail"])
@settings(max_examples=60, deadline=None)
@given(sent=st.lists(frames, max_size=14))
async def test_a_node_survives_any_frames(place, sent):
    with logged_errors() as errors:
        await play(place, sent)
    assert not errors, errors


async def play(place: int, sent: list[SeamRequest | Opening]) -> None:
    async with mesh((2, 4), Setup()) as chain:
        address = chain.nodes[place].hop.address
        seam = await chain.network.transport(None).peer(address).open_seam(1.0)
        for frame in sent:
            seam.send(frame.request(chain, place) if isinstance(frame, Opening) else frame)
        assert (await ask(await chain.model(), PROMPT, 4)).tokens == alone(PROMPT, 4)
        await seam.close()
        await chain.idle()


@contextmanager
def logged_errors() -> Iterator[list[str]]:
    """What is logged as an error: a fault in the node itself."""
    seen: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("meshnet").addHandler(handler)
    try:
        yield seen
    finally:
        logging.getLogger("meshnet").removeHandler(handler)
