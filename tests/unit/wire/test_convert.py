"""Frames as bytes: nothing is lost on the way, and nothing malformed gets in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError, MalformedFrameError
from meshnet.domain.frames import (
    Cancel,
    DecodeFrame,
    DecodeStep,
    GrantTokens,
    OpenSession,
    Release,
    ReturnedTokens,
    SeamReply,
    SeamRequest,
    SessionOpened,
    TokenReply,
)
from meshnet.domain.generation import GeneratedToken
from meshnet.domain.nodes import FlowControl
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.tensors import RESIDUAL, DType, EngineTensor
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.checksum import crc32c
from meshnet.wire.compression import Compression
from meshnet.wire.convert import (
    MERGEABLE,
    decode_replies,
    decode_request,
    encode_reply,
    encode_request,
)
from tests.support.frames import (
    REPLIES,
    REQUESTS,
    decode_step,
    prefill_chunk,
    replies,
    requests,
    residual,
    unhurried,
)

BOUND = 2**20


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda frame: type(frame).__name__)
@pytest.mark.parametrize("compression", Compression)
def test_every_request_survives_the_wire(request_: SeamRequest, compression: Compression) -> None:
    assert decode_request(encode_request(request_, compression), BOUND) == request_


@pytest.mark.parametrize("reply", REPLIES, ids=lambda frame: type(frame).__name__)
def test_every_reply_survives_the_wire(reply: SeamReply) -> None:
    assert decode_replies(encode_reply(reply)) == (reply,)


@unhurried
@given(requests, st.sampled_from(Compression))
def test_any_request_survives_the_wire(request_: SeamRequest, compression: Compression) -> None:
    data = encode_request(request_, compression)
    assert decode_request(data, BOUND) == request_
    assert encode_request(request_, compression) == data


@unhurried
@given(replies)
def test_any_reply_survives_the_wire(reply: SeamReply) -> None:
    assert decode_replies(encode_reply(reply)) == (reply,)


@st.composite
def _mutated(draw: st.DrawFn, frames: st.SearchStrategy[bytes]) -> bytes:
    data = bytearray(draw(frames))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["change", "insert", "remove"])):
            case "change" if place < len(data):
                data[place] = draw(st.integers(0, 255))
            case "insert":
                data[place:place] = draw(st.binary(min_size=1, max_size=4))
            case _:
                del data[place : place + draw(st.integers(1, 4))]
    return bytes(data)


@unhurried
@given(
    _mutated(st.builds(encode_request, requests, st.sampled_from(Compression)))
    | st.binary(max_size=64)
)
def test_a_damaged_request_is_malformed_or_another_request(data: bytes) -> None:
    try:
        request_ = decode_request(data, BOUND)
    except MalformedFrameError as error:
        assert error.details["field"]
    else:
        assert decode_request(encode_request(request_), BOUND) == request_


@unhurried
@given(_mutated(st.builds(encode_reply, replies)) | st.binary(max_size=64))
def test_a_damaged_reply_is_malformed_or_another_reply(data: bytes) -> None:
    try:
        found = decode_replies(data)
    except MalformedFrameError as error:
        assert error.details["field"]
    else:
        assert decode_replies(b"".join(map(encode_reply, found))) == found


@pytest.mark.parametrize("width", [576, 4096, 16384])
def test_a_decode_step_costs_little_more_than_its_tensor(width: int) -> None:
    """Handles, positions and step numbers as a long-lived stream of a large model has them."""
    steps = tuple(
        DecodeStep(100_000 + i, 100_000 + i, 120_000 + i, residual(1, width)) for i in range(8)
    )
    alone = len(encode_request(DecodeFrame(steps[:1])))
    together = len(encode_request(DecodeFrame(steps)))
    assert alone - width * 4 <= 40
    assert together - 8 * width * 4 <= 8 * 40


def test_a_float32_decode_step_does_not_say_its_type() -> None:
    message = _message(DecodeFrame((decode_step(1, 300),)))
    assert message.decode.steps[0].dtype == pb.TENSOR_DTYPE_UNSPECIFIED
    message.decode.steps[0].dtype = pb.TENSOR_DTYPE_FLOAT32
    said = decode_request(message.SerializeToString(), BOUND)
    assert said == DecodeFrame((decode_step(1, 300),))


def test_a_decode_step_is_much_smaller_than_a_chunk_of_one_row() -> None:
    width = 8
    step = len(encode_request(DecodeFrame((decode_step(1, 300, width),)))) - width * 4
    chunk = len(encode_request(prefill_chunk(rows=1, width=width))) - width * 4
    assert step * 3 < chunk


@unhurried
@given(
    st.lists(
        st.builds(
            TokenReply,
            st.integers(0, 9),
            st.integers(0, 9),
            st.builds(GeneratedToken, st.just(1), st.just(2)),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_token_replies_one_behind_the_other_are_one_frame(tokens: list[TokenReply]) -> None:
    assert decode_replies(b"".join(encode_reply(token) for token in tokens)) == tuple(tokens)


def test_decode_frames_one_behind_the_other_are_one_frame() -> None:
    first = DecodeFrame((decode_step(1, 10), decode_step(2, 20)))
    second = DecodeFrame((decode_step(1, 11),))
    joined = encode_request(first) + encode_request(second)
    assert decode_request(joined, BOUND) == DecodeFrame(first.steps + second.steps)
    tokens = [ReturnedTokens((TokenReply(1, step, GeneratedToken(step, 5)),)) for step in (1, 2)]
    joined = b"".join(map(encode_request, tokens))
    both = ReturnedTokens(tokens[0].replies + tokens[1].replies)
    assert decode_request(joined, BOUND) == both
    assert (DecodeFrame, TokenReply, ReturnedTokens) == MERGEABLE


def test_a_field_of_a_newer_peer_survives_a_hop() -> None:
    newer = b"\xfa\x3f\x05later"  # field 1023, five bytes
    message = pb.SessionRequest(prefill=pb.PrefillChunk(handle=1))
    raw = message.prefill.SerializeToString() + newer
    hop = pb.PrefillChunk.FromString(raw)
    assert hop.SerializeToString() == raw
    extended = pb.SessionRequest()
    extended.MergeFromString(encode_request(Release(7)) + newer)
    assert decode_request(extended.SerializeToString(), BOUND) == Release(7)


def test_a_sparse_message_of_an_older_peer_has_defaults() -> None:
    full = _message(next(frame for frame in REQUESTS if isinstance(frame, OpenSession)))
    opened = full.open
    for field in ("sampling", "flow"):
        opened.ClearField(field)
    for field in ("schema_version", "layers", "effective_start_layer", "deadline_unix_nanos"):
        opened.envelope.ClearField(field)
    request_ = decode_request(full.SerializeToString(), BOUND)
    assert isinstance(request_, OpenSession)
    assert request_.sampling == SamplingParams()
    assert request_.flow == FlowControl()
    assert request_.terms.deadline_unix_nanos == 0
    sparse = pb.SessionResponse(opened=pb.SessionOpened(flow=pb.FlowControl(credits=9)))
    assert decode_replies(sparse.SerializeToString()) == (SessionOpened(0, FlowControl(9)),)


def _message(request_: SeamRequest) -> pb.SessionRequest:
    return pb.SessionRequest.FromString(encode_request(request_))


def _of(kind: type[SeamRequest]) -> pb.SessionRequest:
    return _message(next(frame for frame in REQUESTS if isinstance(frame, kind)))


def _clear(path: str) -> Callable[[Message], None]:
    *parents, field = path.split(".")

    def change(message: Message) -> None:
        for name in parents:
            message = getattr(message, name)
        message.ClearField(field)

    return change


def _put(path: str, value: object) -> Callable[[Message], None]:
    *parents, field = path.split(".")

    def change(message: Message) -> None:
        for name in parents:
            part = getattr(message, name)
            message = part[0] if name in ("hops", "steps", "logit_biases") else part
        setattr(message, field, value)

    return change


def _copy_first(path: str) -> Callable[[Message], None]:
    *parents, field = path.split(".")

    def change(message: Message) -> None:
        for name in parents:
            message = getattr(message, name)
        items = getattr(message, field)
        items.append(items[0])

    return change


MALFORMED_REQUESTS: list[tuple[str, Callable[[Message], None], str]] = [
    ("Generate", _clear("generate.envelope"), "envelope"),
    ("Generate", _clear("generate.spec"), "spec"),
    ("Generate", _clear("generate.spec.prompt"), "prompt"),
    ("Generate", _clear("generate.envelope.fingerprint"), "fingerprint"),
    ("Generate", _clear("generate.envelope.route_session_id"), "route_session_id"),
    ("Generate", _put("generate.envelope.route_session_id", "x" * 1025), "route_session_id"),
    ("Generate", _put("generate.envelope.schema_version.number", 2), "schema_version"),
    ("Generate", _put("generate.envelope.deadline_unix_nanos", -1), "deadline_unix_nanos"),
    ("Generate", _put("generate.spec.sampling.temperature", float("nan")), "temperature"),
    ("Generate", _put("generate.spec.sampling.top_p", 0.0), "top_p"),
    ("Generate", _put("generate.spec.sampling.logit_biases.bias", float("inf")), "logit_bias"),
    ("Generate", _copy_first("generate.spec.sampling.logit_biases"), "logit_biases"),
    ("OpenSession", _clear("open.hops"), "hops"),
    ("OpenSession", _put("open.hops.node_id", ""), "hops.node_id"),
    ("OpenSession", _put("open.hops.address", ""), "hops.address"),
    ("OpenSession", _put("open.hops.layers.end", 0), "layers"),
    ("OpenSession", _put("open.envelope.layers.end", 21), "layers"),
    ("OpenSession", _put("open.envelope.layers.start", 9), "layers"),
    ("OpenSession", _put("open.envelope.effective_start_layer", 9), "layers"),
    ("PrefillChunk", _clear("prefill.envelope"), "envelope"),
    ("PrefillChunk", _clear("prefill.chunk"), "chunk"),
    ("PrefillChunk", _clear("prefill.bundle"), "bundle"),
    ("PrefillChunk", _clear("prefill.envelope.phase"), "envelope.phase"),
    ("PrefillChunk", _put("prefill.envelope.checksum", 7), "envelope.checksum"),
    ("PrefillChunk", _put("prefill.envelope.compression", 77), "compression"),
    ("PrefillChunk", _put("prefill.envelope.compression", 2), "tensors[0].fragments[0].data"),
    ("PrefillChunk", _clear("prefill.envelope.cache_expectation"), "cache_expectation"),
    (
        "PrefillChunk",
        _clear("prefill.envelope.cache_expectation.mode"),
        "cache_expectation.mode",
    ),
    ("PrefillChunk", _put("prefill.chunk.index", 3), "chunk.index"),
    ("PrefillChunk", _put("prefill.chunk.token_count", 2), "chunk.token_count"),
    ("PrefillChunk", _put("prefill.chunk.token_count", 129), "chunk.token_count"),
    ("PrefillChunk", _put("prefill.chunk.total_tokens", 2), "chunk.total_tokens"),
    ("DecodeFrame", _clear("decode.steps"), "decode.steps"),
    ("DecodeFrame", _put("decode.steps.checksum", 7), "decode.checksum"),
    ("DecodeFrame", _put("decode.steps.data", b"123"), "decode.checksum"),
    ("DecodeFrame", _put("decode.steps.dtype", 99), "decode.dtype"),
    ("DecodeFrame", _put("decode.steps.dtype", pb.TENSOR_DTYPE_Q8_0), "decode.data"),
    ("Release", _clear("release"), "request"),
]


@pytest.mark.parametrize(
    ("kind", "change", "field"),
    MALFORMED_REQUESTS,
    ids=[f"{kind}-{field}-{i}" for i, (kind, _, field) in enumerate(MALFORMED_REQUESTS)],
)
def test_a_request_that_breaks_the_contract_is_refused_by_name(
    kind: str, change: Callable[[Message], None], field: str
) -> None:
    message = _message(next(frame for frame in REQUESTS if type(frame).__name__ == kind))
    change(message)
    with pytest.raises(MalformedFrameError) as caught:
        decode_request(message.SerializeToString(), BOUND)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("data", [b"", b"1", b"12345"])
def test_decode_data_must_be_a_row_of_float32(data: bytes) -> None:
    step = pb.DecodeStep(data=data, checksum=crc32c(data))
    message = pb.SessionRequest(decode=pb.DecodeFrame(steps=[step]))
    with pytest.raises(MalformedFrameError, match=r"decode\.data"):
        decode_request(message.SerializeToString(), BOUND)


def test_a_chunk_over_the_bound_is_refused() -> None:
    data = encode_request(prefill_chunk(rows=2, width=8))
    assert decode_request(data, 64)
    with pytest.raises(MalformedFrameError, match=r"bundle\.total_bytes"):
        decode_request(data, 63)


MALFORMED_REPLIES: list[tuple[pb.SessionResponse, str]] = [
    (pb.SessionResponse(), "response"),
    (pb.SessionResponse(ack=pb.Ack()), "cache_result"),
    (pb.SessionResponse(tokens=pb.TokenFrame()), "tokens.replies"),
    (pb.SessionResponse(tokens=pb.TokenFrame(replies=[pb.TokenReply()])), "token"),
    (
        pb.SessionResponse(
            tokens=pb.TokenFrame(
                replies=[pb.TokenReply(token=pb.GeneratedToken(logprob=float("nan")))]
            )
        ),
        "logprob",
    ),
    (pb.SessionResponse(failed=pb.SessionFailed(error=pb.ShardError(message="m"))), "failed.error"),
    (pb.SessionResponse(done=pb.GenerationDone()), "finish_reason"),
    (
        pb.SessionResponse(released=pb.SessionReleased(timings=[pb.HopTimings()])),
        "timings.node_id",
    ),
    (
        pb.SessionResponse(released=pb.SessionReleased(timings=[pb.HopTimings(node_id="n")])),
        "layers",
    ),
]


@pytest.mark.parametrize(
    ("message", "field"), MALFORMED_REPLIES, ids=[field for _, field in MALFORMED_REPLIES]
)
def test_a_reply_that_breaks_the_contract_is_refused_by_name(
    message: pb.SessionResponse, field: str
) -> None:
    with pytest.raises(MalformedFrameError) as caught:
        decode_replies(message.SerializeToString())
    assert caught.value.details["field"] == field


@pytest.mark.parametrize(
    "request_",
    [
        DecodeFrame(()),
        DecodeFrame((DecodeStep(0, 0, 0, residual(2, 4)),)),
        DecodeFrame((DecodeStep(0, 0, 0, residual(1, 0)),)),
        DecodeFrame((DecodeStep(0, 0, 0, EngineTensor("x", DType.FLOAT32, (1, 1), bytes(4))),)),
        DecodeFrame((DecodeStep(0, 0, 0, EngineTensor(RESIDUAL, DType.FLOAT32, (1,), b"1234")),)),
        DecodeFrame((DecodeStep(-1, 0, 0, residual(1, 4)),)),
        GrantTokens(0, 2**32),
        Cancel(2**70, ""),
        Cancel(0, "\ud800"),
        Release(-1),
    ],
    ids=repr,
)
def test_a_frame_the_wire_cannot_carry_is_the_callers_fault(request_: SeamRequest) -> None:
    with pytest.raises(InvalidArgumentError):
        encode_request(request_)
