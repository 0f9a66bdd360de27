"""Requests that go down a seam, and their messages, in pairs.

See :mod:`meshnet.wire.convert_values` for what is raised.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshnet.domain.errors import InvalidArgumentError, MalformedFrameError
from meshnet.domain.frames import (
    AttachReturn,
    ChunkInfo,
    DecodeFrame,
    DecodeStep,
    Generate,
    OpenSession,
    PrefillChunk,
    ReturnPath,
    SessionTerms,
)
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.recipe import MAX_CHUNK_TOKENS
from meshnet.domain.tensors import RESIDUAL, DType, EngineTensor
from meshnet.domain.tracing import parse_traceparent
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.checksum import crc32c
from meshnet.wire.codec import (
    DTYPE_TO_PROTO,
    as_bytes,
    decode_bundle,
    payload_checksum,
    write_bundle,
)
from meshnet.wire.compression import COMPRESSION_TO_PROTO, Compression, compression_from_proto
from meshnet.wire.convert_nodes import flow_from_proto, flow_to_proto, hop_from_proto, hop_to_proto
from meshnet.wire.convert_receipts import opener_from_proto, opener_to_proto
from meshnet.wire.convert_values import (
    SCHEMA_VERSION,
    expectation_from_proto,
    expectation_to_proto,
    fingerprint_from_proto,
    fingerprint_to_proto,
    key_from_envelope,
    key_from_fields,
    layers_to_proto,
    named,
    require,
    sampling_from_proto,
    sampling_to_proto,
    spec_from_proto,
    spec_to_proto,
)
from meshnet.wire.unknown import put_unknown, unknown_of

_DECODE_DTYPES = {**DTYPE_TO_PROTO, DType.FLOAT32: pb.TENSOR_DTYPE_UNSPECIFIED}
"""A decode step leaves the usual type out."""

_DECODE_BLOCKS = {
    pb.TENSOR_DTYPE_UNSPECIFIED: (DType.FLOAT32, 1, 4),
    pb.TENSOR_DTYPE_FLOAT32: (DType.FLOAT32, 1, 4),
    pb.TENSOR_DTYPE_FLOAT16: (DType.FLOAT16, 1, 2),
    pb.TENSOR_DTYPE_BFLOAT16: (DType.BFLOAT16, 1, 2),
    pb.TENSOR_DTYPE_Q8_0: (DType.Q8_0, 32, 34),
}
"""For each type on the wire, values in a block and bytes they take."""


def terms_to_envelope(value: SessionTerms) -> pb.Envelope:
    """The envelope of a message that opens a session; the hops travel beside it."""
    layers = value.hops[0].layers
    return pb.Envelope(
        schema_version=pb.SchemaVersion(number=SCHEMA_VERSION),
        route_session_id=value.key.session_id,
        route_epoch=value.key.route_epoch,
        fingerprint=fingerprint_to_proto(value.fingerprint),
        layers=layers_to_proto(layers),
        effective_start_layer=layers.start,
        deadline_unix_nanos=value.deadline_unix_nanos,
        traceparent="" if value.trace is None else value.trace.traceparent,
    )


def terms_from_envelope(envelope: pb.Envelope, hops: Iterable[pb.Hop]) -> SessionTerms:
    """Terms of a session; where the envelope states the receiver's layers, the hops must agree."""
    require(envelope, "fingerprint")
    terms = SessionTerms(
        key=key_from_envelope(envelope),
        fingerprint=fingerprint_from_proto(envelope.fingerprint),
        hops=tuple(hop_from_proto(hop) for hop in hops),
        deadline_unix_nanos=envelope.deadline_unix_nanos,
        trace=parse_traceparent(envelope.traceparent) if envelope.traceparent else None,
    )
    if terms.deadline_unix_nanos < 0:
        raise MalformedFrameError("deadline_unix_nanos", f"{terms.deadline_unix_nanos} is negative")
    if envelope.HasField("layers"):
        _check_first_hop(envelope, terms)
    return terms


def _check_first_hop(envelope: pb.Envelope, terms: SessionTerms) -> None:
    stated, used = envelope.layers, terms.hops[0].layers
    start = stated.start
    if envelope.HasField("effective_start_layer"):
        start = envelope.effective_start_layer
    if start < stated.start or (start, stated.end) != (used.start, used.end):
        raise MalformedFrameError(
            "layers",
            f"from {start} of [{stated.start}, {stated.end}), but the first hop says {used}",
        )


def generate_to_proto(value: Generate) -> pb.Generate:
    """See :class:`Generate`."""
    return pb.Generate(
        handle=value.handle,
        envelope=terms_to_envelope(value.terms),
        hops=[hop_to_proto(hop) for hop in value.terms.hops],
        spec=spec_to_proto(value.spec),
        token_credits=value.token_credits,
        opener=opener_to_proto(value.opener),
    )


def generate_from_proto(message: pb.Generate) -> Generate:
    """See :class:`Generate`."""
    require(message, "envelope")
    require(message, "spec")
    return Generate(
        handle=message.handle,
        terms=terms_from_envelope(message.envelope, message.hops),
        spec=spec_from_proto(message.spec),
        token_credits=message.token_credits,
        opener=opener_from_proto(message),
    )


def open_to_proto(value: OpenSession) -> pb.OpenSession:
    """See :class:`OpenSession`."""
    message = pb.OpenSession(
        handle=value.handle,
        envelope=terms_to_envelope(value.terms),
        hops=[hop_to_proto(hop) for hop in value.terms.hops],
        sampling=sampling_to_proto(value.sampling),
        history=value.history,
        flow=flow_to_proto(value.flow),
        positions=value.positions,
        begin=None if value.begin is None else expectation_to_proto(value.begin),
        generated=value.generated,
        opener=opener_to_proto(value.opener),
    )
    if value.return_path is not None:
        message.return_path.address = value.return_path.address
        message.return_path.key = value.return_path.key
        message.return_path.node_id = value.return_path.node_id or ""
    put_unknown(value.unknown, message, message.envelope)
    return message


def open_from_proto(message: pb.OpenSession) -> OpenSession:
    """See :class:`OpenSession`."""
    require(message, "envelope")
    return OpenSession(
        handle=message.handle,
        terms=terms_from_envelope(message.envelope, message.hops),
        sampling=sampling_from_proto(message.sampling),
        history=tuple(message.history),
        flow=flow_from_proto(message.flow),
        unknown=unknown_of(message, message.envelope),
        return_path=_return_path(message),
        positions=message.positions,
        begin=_begin(message),
        generated=message.generated,
        opener=opener_from_proto(message),
    )


def _begin(message: pb.OpenSession) -> CacheExpectation | None:
    if not message.HasField("begin"):
        return None
    begin = expectation_from_proto(message.begin)
    return begin if begin.mode is CacheMode.FORK else None


def _return_path(message: pb.OpenSession) -> ReturnPath | None:
    if not message.HasField("return_path"):
        return None
    path = message.return_path
    address = Address(named(path.address, "return_path.address"))
    node_id = NodeId(named(path.node_id, "return_path.node_id")) if path.node_id else None
    return ReturnPath(address, path.key, node_id)


def attach_to_proto(value: AttachReturn) -> pb.AttachReturn:
    """See :class:`AttachReturn`."""
    return pb.AttachReturn(
        handle=value.handle,
        route_session_id=value.key.session_id,
        route_epoch=value.key.route_epoch,
        key=value.secret,
    )


def attach_from_proto(message: pb.AttachReturn) -> AttachReturn:
    """See :class:`AttachReturn`."""
    key = key_from_fields(message.route_session_id, message.route_epoch)
    return AttachReturn(message.handle, key, message.key)


def chunk_to_proto(value: ChunkInfo) -> pb.ChunkInfo:
    """See :class:`ChunkInfo`."""
    return pb.ChunkInfo(
        index=value.index,
        count=value.count,
        token_count=value.token_count,
        total_tokens=value.total_tokens,
    )


def chunk_from_proto(message: pb.ChunkInfo) -> ChunkInfo:
    """See :class:`ChunkInfo`."""
    if message.index >= message.count:
        raise MalformedFrameError("chunk.index", f"{message.index} of {message.count} chunks")
    if not 1 <= message.token_count <= MAX_CHUNK_TOKENS:
        raise MalformedFrameError(
            "chunk.token_count", f"{message.token_count} isn't 1 to {MAX_CHUNK_TOKENS}"
        )
    if message.total_tokens < message.token_count:
        raise MalformedFrameError(
            "chunk.total_tokens", f"{message.total_tokens} are fewer than the chunk's tokens"
        )
    return ChunkInfo(message.index, message.count, message.token_count, message.total_tokens)


def write_prefill(message: pb.PrefillChunk, value: PrefillChunk, compression: Compression) -> None:
    """Fill an empty message in place, so that the tensors are copied once."""
    message.handle = value.handle
    message.chunk.CopyFrom(chunk_to_proto(value.chunk))
    checksum = write_bundle(message.bundle, value.boundary, compression)
    message.envelope.CopyFrom(
        pb.Envelope(
            schema_version=pb.SchemaVersion(number=SCHEMA_VERSION),
            route_session_id=value.key.session_id,
            route_epoch=value.key.route_epoch,
            phase=pb.PHASE_PREFILL,
            position=value.position,
            idempotency_step=value.step,
            cache_expectation=expectation_to_proto(value.expectation),
            compression=COMPRESSION_TO_PROTO[compression],
            checksum=checksum,
        )
    )
    put_unknown(value.unknown, message, message.envelope)


def prefill_from_proto(message: pb.PrefillChunk, max_bytes: int) -> PrefillChunk:
    """See :class:`PrefillChunk`; takes no more than ``max_bytes`` for the tensors' data."""
    for field in ("envelope", "chunk", "bundle"):
        require(message, field)
    envelope = message.envelope
    require(envelope, "cache_expectation")
    if envelope.phase != pb.PHASE_PREFILL:
        raise MalformedFrameError("envelope.phase", "a prefill chunk must say prefill")
    chunk = chunk_from_proto(message.chunk)
    compression = compression_from_proto(envelope.compression)
    boundary = decode_bundle(message.bundle, max_bytes=max_bytes, compression=compression)
    if payload_checksum(boundary, message.bundle) != envelope.checksum:
        raise MalformedFrameError("envelope.checksum", "the tensors have another sum")
    if boundary.rows != chunk.token_count:
        raise MalformedFrameError(
            "chunk.token_count", f"{chunk.token_count}, but the boundary has {boundary.rows} rows"
        )
    return PrefillChunk(
        handle=message.handle,
        key=key_from_envelope(envelope),
        chunk=chunk,
        position=envelope.position,
        step=envelope.idempotency_step,
        expectation=expectation_from_proto(envelope.cache_expectation),
        boundary=boundary,
        unknown=unknown_of(message, envelope),
    )


def write_decode(message: pb.DecodeFrame, value: DecodeFrame) -> None:
    """Fill an empty message in place; each step's tensor must be a residual of the step's rows."""
    if not value.steps:
        raise InvalidArgumentError("steps", "a decode frame holds at least one step")
    add = message.steps.add
    for step in value.steps:
        tensor = step.tensor
        shape = tensor.shape
        rows = 1 + len(step.proposed)
        if tensor.name != RESIDUAL or len(shape) != 2 or shape[0] != rows or not shape[1]:
            raise InvalidArgumentError(
                "tensor",
                f"{tensor.name} of shape {shape} isn't a {RESIDUAL} of shape ({rows}, width)",
            )
        data = as_bytes(tensor.data)
        added = add(
            handle=step.handle,
            position=step.position,
            idempotency_step=step.step,
            expected_past_len=(
                step.position if step.expected_past_len is None else step.expected_past_len
            ),
            checksum=crc32c(data),
            data=data,
            dtype=_DECODE_DTYPES[tensor.dtype],
            proposed=step.proposed,
            truncate=step.truncate,
        )
        put_unknown(step.unknown, added)


def decode_frame_from_proto(message: pb.DecodeFrame) -> DecodeFrame:
    """See :class:`DecodeFrame`."""
    if not message.steps:
        raise MalformedFrameError("decode.steps", "none are there")
    return DecodeFrame(tuple([_decode_step_from_proto(step) for step in message.steps]))


def _decode_step_from_proto(message: pb.DecodeStep) -> DecodeStep:
    data = message.data
    if crc32c(data) != message.checksum:
        raise MalformedFrameError("decode.checksum", "the data has another sum")
    position = message.position
    past_len = message.expected_past_len
    if message.dtype not in _DECODE_BLOCKS:
        raise MalformedFrameError("decode.dtype", f"no known element type: {message.dtype}")
    dtype, block_values, block_bytes = _DECODE_BLOCKS[message.dtype]
    rows = 1 + len(message.proposed)
    blocks, rest = divmod(len(data), rows * block_bytes)
    if rest or not blocks:
        raise MalformedFrameError(
            "decode.data", f"{len(data)} bytes are no {rows} row(s) of {dtype.value}"
        )
    tensor = EngineTensor(RESIDUAL, dtype, (rows, blocks * block_values), data)
    return DecodeStep(
        message.handle,
        position,
        message.idempotency_step,
        tensor,
        None if past_len == position else past_len,
        tuple(message.proposed) if rows > 1 else (),
        message.truncate,
        unknown_of(message),
    )
