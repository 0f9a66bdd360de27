"""Frames for tests: one of every type, and strategies that make any valid one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from meshnet.domain.frames import (
    AttachReturn,
    Cancel,
    ChunkInfo,
    DecodeFrame,
    DecodeStep,
    Generate,
    GenerationDone,
    GrantTokens,
    OpenSession,
    PrefillChunk,
    Release,
    ReturnedTokens,
    ReturnPath,
    SeamReply,
    SeamRequest,
    SessionFailed,
    SessionOpened,
    SessionReleased,
    SessionTerms,
    SignedWork,
    StepAck,
    TokenReply,
)
from meshnet.domain.generation import FinishReason, GeneratedToken, GenerationSpec, Speculation
from meshnet.domain.ids import Address, Digest, NodeId, RouteSessionId, SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import CacheExpectation, CacheMode, CacheResult
from meshnet.domain.nodes import Capability, FlowControl, Hop, HopTimings
from meshnet.domain.receipts import MOST, SeamEnd, SeamWork, Statement
from meshnet.domain.recipe import Fingerprint
from meshnet.domain.sampling import MAX_TOP_LOGPROBS, SamplingParams, TokenLogprob
from meshnet.domain.status import StatusCode, StructuredStatus
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.domain.tracing import TraceContext

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For tests over these strategies: how long an example takes depends on what else runs."""

KEY = SessionKey(RouteSessionId("gen-0123456789abcdef01234567"), 3)
FINGERPRINT = Fingerprint(
    Digest("sha256:" + "0f" * 32), Digest("sha256:" + "a1" * 32), "llama-cpp-float32-0badcafe"
)
HOPS = (
    Hop(NodeId("middle"), Address("10.0.0.2:50051"), LayerRange(8, 20)),
    Hop(NodeId("tail"), Address("[fe80::1]:50051"), LayerRange(20, 30)),
)
TRACE = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
TERMS = SessionTerms(KEY, FINGERPRINT, HOPS, 1_800_000_000_000_000_000, TRACE)
SAMPLING = SamplingParams(
    temperature=0.0,
    top_k=40,
    top_p=0.95,
    min_p=0.05,
    repeat_penalty=1.1,
    presence_penalty=-0.5,
    frequency_penalty=0.25,
    penalty_last_n=-1,
    seed=2**64 - 1,
    logit_bias={0: -100.0, 11: float("-inf"), 7: 0.5},
    top_logprobs=5,
    logprobs=True,
    grammar='root ::= "\u00e9" [a-z]*',
)
TIMINGS = (
    HopTimings(
        *(
            NodeId("middle"),
            LayerRange(8, 20),
            300,
            5_000_000,
            7,
            70_000,
            900,
            2**40,
            1,
            2,
            3,
            4,
            5,
        ),
        boundary_bytes=2**41,
    ),
    HopTimings(NodeId("tail"), LayerRange(20, 30)),
)
CAPABILITY = Capability(
    node_id=NodeId("middle"),
    layers=LayerRange(8, 20),
    total_layers=30,
    fingerprint=FINGERPRINT,
    slice_digest=Digest("sha256:" + "77" * 32),
    architecture="llama",
    context_length=8192,
    flow=FlowControl(2, 2**20, 17, 3),
    dtypes=(DType.FLOAT32, DType.Q8_0),
    next_address=Address("10.0.0.3:50051"),
    grammars=True,
)
RICH_TOKEN = GeneratedToken(301, 0, -0.25, (TokenLogprob(0, -0.25), TokenLogprob(9, -3.0)))


def residual(rows: int, width: int, fill: int = 1) -> EngineTensor:
    """A float32 residual of rows by width, every byte ``fill``."""
    return EngineTensor(RESIDUAL, DType.FLOAT32, (rows, width), bytes([fill]) * (rows * width * 4))


def decode_step(handle: int, position: int, width: int = 8) -> DecodeStep:
    """A decode step; its step number is its position."""
    return DecodeStep(handle, position, position, residual(1, width, fill=position % 256))


def prefill_chunk(rows: int = 3, width: int = 8) -> PrefillChunk:
    """The last chunk of a prompt."""
    return PrefillChunk(
        handle=5,
        key=KEY,
        chunk=ChunkInfo(index=2, count=3, token_count=rows, total_tokens=256 + rows),
        position=256,
        step=2,
        expectation=CacheExpectation(CacheMode.EXACT, 256),
        boundary=BoundaryBundle((residual(rows, width),), token_id_sideband=(1, 0, 2)),
    )


FORK = CacheExpectation(CacheMode.FORK, 256, SessionKey(RouteSessionId("gen-earlier"), 3))
OPENED = OpenSession(3, TERMS, SAMPLING, (), FlowControl())
STATEMENT = Statement(SeamWork(262, 9, 0, 270, 1000, 36, 5, 100, 105), "6b6579", "aabb")
REQUESTS: tuple[SeamRequest, ...] = (
    Generate(1, TERMS, GenerationSpec((1, 2, 3), SAMPLING, 64, frozenset({2, 0}), generated=2), 16),
    Generate(2, TERMS, GenerationSpec((1,), speculation=Speculation.ON), 16),
    Generate(3, TERMS, GenerationSpec((1,), speculation=Speculation.OFF), 16),
    OpenSession(0, TERMS, SAMPLING, (4, 5, 6), FlowControl(1, 2**31, 5, 2), generated=1),
    OpenSession(
        1,
        TERMS,
        SAMPLING,
        (),
        FlowControl(),
        return_path=ReturnPath(Address("10.0.0.1:50051"), bytes(range(16)), NodeId("head")),
    ),
    OpenSession(2, TERMS, SAMPLING, (), FlowControl(max_positions=9), positions=300, begin=FORK),
    replace(prefill_chunk(), expectation=FORK, position=256),
    prefill_chunk(),
    DecodeFrame((decode_step(1, 300), decode_step(2, 0))),
    GrantTokens(0, 0),
    DecodeFrame((replace(decode_step(1, 301), tensor=residual(3, 8), proposed=(7, 0)),)),
    Cancel(0, ""),
    DecodeFrame((replace(decode_step(1, 302), truncate=True),)),
    Cancel(2**32 - 1, "the client went away"),
    Release(0),
    Release(1, keep=True),
    AttachReturn(3, KEY, bytes(range(64))),
    ReturnedTokens((TokenReply(3, 9, GeneratedToken(301, 7)), TokenReply(4, 2, RICH_TOKEN))),
    Generate(4, TERMS, GenerationSpec((1,)), 16, SeamEnd(NodeId("gateway"))),
    replace(OPENED, opener=SeamEnd(NodeId("head"), LayerRange(0, 8))),
    SignedWork(7, STATEMENT),
)
REPLIES: tuple[SeamReply, ...] = (
    SessionOpened(0, FlowControl()),
    SessionOpened(1, FlowControl(), 32),
    SessionOpened(1, FlowControl(), pieces=(1, 32), cached_tokens=256),
    SessionOpened(1, FlowControl(), replayed_tokens=7),
    StepAck(1, 0, True, CacheResult(False, 0)),
    TokenReply(2, 9, RICH_TOKEN),
    TokenReply(0, 0, GeneratedToken(0, 0)),
    SessionFailed(
        3, StructuredStatus(StatusCode.CACHE_MISS, True, "position 4, 3 held", {"held": "3"})
    ),
    SessionReleased(4, TIMINGS),
    SessionReleased(0, ()),
    GenerationDone(5, FinishReason.LENGTH, TIMINGS),
    GenerationDone(0, FinishReason.STOP, ()),
    SignedWork(2**32 - 1, STATEMENT),
)

_U32 = st.integers(0, 2**32 - 1)
_U64 = st.integers(0, 2**64 - 1)
_NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
_TOKENS = st.lists(_U32, max_size=8).map(tuple)
_FINITE = st.floats(allow_nan=False, allow_infinity=False)

_keys = st.builds(SessionKey, _NAMES.map(RouteSessionId), _U64)
_layers = st.integers(0, 2**32 - 2).flatmap(
    lambda start: st.builds(LayerRange, st.just(start), st.integers(start + 1, 2**32 - 1))
)
_hops = st.builds(Hop, _NAMES.map(NodeId), _NAMES.map(Address), _layers)
_fingerprints = st.builds(Fingerprint, _TEXTS.map(Digest), _TEXTS.map(Digest), _TEXTS, _U32, _U32)
traces = st.builds(
    TraceContext,
    st.integers(1, 2**128 - 1).map(lambda number: f"{number:032x}"),
    st.integers(1, 2**64 - 1).map(lambda number: f"{number:016x}"),
    st.integers(0, 255),
)
_terms = st.builds(
    SessionTerms,
    _keys,
    _fingerprints,
    st.lists(_hops, min_size=1, max_size=3).map(tuple),
    st.integers(0, 2**63 - 1),
    st.none() | traces,
)
_flows = st.builds(
    FlowControl,
    st.integers(1, 2**32 - 1),
    st.integers(1, 2**64 - 1),
    st.integers(1, 2**32 - 1),
    st.integers(1, 2**32 - 1),
)
_sampling = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    repeat_penalty=st.floats(0, 1e300, exclude_min=True),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    penalty_last_n=st.integers(-1, 2**31 - 1),
    seed=_U64,
    logit_bias=st.dictionaries(_U32, st.one_of(_FINITE, st.just(float("-inf"))), max_size=4),
    top_logprobs=st.integers(0, MAX_TOP_LOGPROBS),
    logprobs=st.booleans(),
    grammar=_TEXTS,
)
_specs = st.builds(
    GenerationSpec,
    st.lists(_U32, min_size=1, max_size=8).map(tuple),
    _sampling,
    st.none() | st.integers(1, 2**32 - 1),
    st.frozensets(_U32, max_size=4),
    st.sampled_from(Speculation),
)
_expectations = st.one_of(
    st.builds(
        CacheExpectation, st.sampled_from([m for m in CacheMode if m is not CacheMode.FORK]), _U32
    ),
    st.builds(CacheExpectation, st.just(CacheMode.FORK), st.integers(1, 2**32 - 1), _keys),
)


@st.composite
def tensors(draw: st.DrawFn, rows: int | None = None) -> EngineTensor:
    """Any tensor of up to a few hundred bytes; with ``rows`` as its first extent if given."""
    dtype = draw(st.sampled_from(DType))
    shape = (
        *((rows,) if rows is not None else draw(st.lists(st.integers(0, 3), max_size=2))),
        draw(st.integers(0, 2)) * (32 if dtype is DType.Q8_0 else 1),
    )
    elements = 1
    for extent in shape:
        elements *= extent
    size = dtype.byte_length(elements)
    data = draw(st.binary(min_size=size, max_size=size))
    return EngineTensor(draw(_NAMES), dtype, shape, data)


@st.composite
def bundles(draw: st.DrawFn, rows: int | None = None) -> BoundaryBundle:
    """Any bundle of up to three tensors."""
    made = draw(st.lists(tensors(rows), min_size=1, max_size=3, unique_by=lambda t: t.name))
    return BoundaryBundle(tuple(made), draw(_TOKENS))


@st.composite
def _prefills(draw: st.DrawFn) -> PrefillChunk:
    rows = draw(st.integers(1, 6))
    count = draw(st.integers(1, 2**32 - 1))
    chunk = ChunkInfo(
        draw(st.integers(0, count - 1)), count, rows, draw(st.integers(rows, 2**32 - 1))
    )
    return PrefillChunk(
        draw(_U32),
        draw(_keys),
        chunk,
        draw(_U32),
        draw(_U64),
        draw(_expectations),
        draw(bundles(rows)),
    )


@st.composite
def _decode_step(draw: st.DrawFn) -> DecodeStep:
    dtype, width = draw(st.sampled_from(DType)), 32 * draw(st.integers(1, 4))
    proposed = draw(st.lists(_U32, max_size=3).map(tuple))
    rows = 1 + len(proposed)
    size = dtype.byte_length(rows * width)
    tensor = EngineTensor(
        RESIDUAL, dtype, (rows, width), draw(st.binary(min_size=size, max_size=size))
    )
    return DecodeStep(
        draw(_U32),
        draw(_U32),
        draw(_U64),
        tensor,
        proposed=proposed,
        truncate=draw(st.booleans()),
    )


_decode_steps = _decode_step()
_timings = st.lists(
    st.builds(
        HopTimings, _NAMES.map(NodeId), _layers, _U32, _U64, _U32, *[_U64] * 8, _U32, _U32, _U64
    ),
    max_size=2,
).map(tuple)
_failures = st.builds(
    StructuredStatus,
    st.sampled_from([code for code in StatusCode if code is not StatusCode.OK]),
    st.booleans(),
    _TEXTS,
    st.dictionaries(_TEXTS, _TEXTS, max_size=3),
)
_logprobs = st.floats(allow_nan=False)
_generated = st.builds(
    GeneratedToken,
    _U32,
    _U32,
    st.none() | _logprobs,
    st.lists(st.builds(TokenLogprob, _U32, _logprobs), max_size=3).map(tuple),
)

_secrets = st.binary(min_size=16, max_size=64)
_return_paths = st.none() | st.builds(
    ReturnPath, _NAMES.map(Address), _secrets, st.none() | _NAMES.map(NodeId)
)
_token_replies = st.builds(TokenReply, _U32, _U64, _generated)

_openers = st.none() | st.builds(SeamEnd, _NAMES.map(NodeId), st.none() | _layers)


@st.composite
def seam_works(draw: st.DrawFn, most: int = MOST - 1) -> SeamWork:
    """Numbers of a receipt."""
    number = st.integers(0, most)
    first, end = sorted((draw(number), draw(number)))
    began, ended = sorted((draw(number), draw(number)))
    engine = draw(st.integers(0, ended - began))
    rows, down, up = draw(st.tuples(number, number, number))
    return SeamWork(rows, draw(number), first, end, down, up, engine, began, ended)


_some_bytes = st.binary(min_size=1, max_size=256).map(bytes.hex)
_signed = st.builds(SignedWork, _U32, st.builds(Statement, seam_works(), _some_bytes, _some_bytes))

requests: st.SearchStrategy[SeamRequest] = st.one_of(
    _signed,
    st.builds(Generate, _U32, _terms, _specs, _U32, _openers),
    st.builds(
        OpenSession,
        _U32,
        _terms,
        _sampling,
        _TOKENS,
        _flows,
        return_path=_return_paths,
        opener=_openers,
    ),
    _prefills(),
    st.builds(DecodeFrame, st.lists(_decode_steps, min_size=1, max_size=4).map(tuple)),
    st.builds(GrantTokens, _U32, _U32),
    st.builds(Cancel, _U32, _TEXTS),
    st.builds(Release, _U32),
    st.builds(AttachReturn, _U32, _keys, _secrets),
    st.builds(ReturnedTokens, st.lists(_token_replies, min_size=1, max_size=3).map(tuple)),
)
replies: st.SearchStrategy[SeamReply] = st.one_of(
    _signed,
    st.builds(SessionOpened, _U32, _flows, _U32),
    st.builds(StepAck, _U32, _U64, st.booleans(), st.builds(CacheResult, st.booleans(), _U32)),
    _token_replies,
    st.builds(SessionFailed, _U32, _failures),
    st.builds(SessionReleased, _U32, _timings),
    st.builds(GenerationDone, _U32, st.sampled_from(FinishReason), _timings),
)
