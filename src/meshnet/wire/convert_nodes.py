"""Domain values to messages and back, in pairs: what nodes say about themselves and each other.

See :mod:`meshnet.wire.convert_values` for what is raised.
"""

from __future__ import annotations

from meshnet.domain.errors import MalformedFrameError
from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.domain.lifecycle import LifecycleState
from meshnet.domain.nodes import Capability, FlowControl, HealthReport, Hop, HopTimings
from meshnet.domain.status import OK
from meshnet.domain.tensors import DType
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.codec import DTYPE_TO_PROTO
from meshnet.wire.compression import COMPRESSION_TO_PROTO
from meshnet.wire.convert_values import (
    SCHEMA_VERSION,
    check_schema,
    fingerprint_from_proto,
    fingerprint_to_proto,
    known,
    layers_from_proto,
    layers_to_proto,
    named,
    require,
)
from meshnet.wire.status import status_from_proto, status_to_proto

_STATES = {
    LifecycleState.LOADING: pb.LIFECYCLE_STATE_LOADING,
    LifecycleState.READY: pb.LIFECYCLE_STATE_READY,
    LifecycleState.DRAINING: pb.LIFECYCLE_STATE_DRAINING,
    LifecycleState.FAILED: pb.LIFECYCLE_STATE_FAILED,
}


def hop_to_proto(value: Hop) -> pb.Hop:
    """See :class:`Hop`."""
    return pb.Hop(
        node_id=value.node_id, address=value.address, layers=layers_to_proto(value.layers)
    )


def hop_from_proto(message: pb.Hop) -> Hop:
    """See :class:`Hop`."""
    return Hop(
        NodeId(named(message.node_id, "hops.node_id")),
        Address(named(message.address, "hops.address")),
        layers_from_proto(message.layers),
    )


def flow_to_proto(value: FlowControl) -> pb.FlowControl:
    """See :class:`FlowControl`."""
    return pb.FlowControl(
        credits=value.chunk_credits,
        max_chunk_bytes=value.max_chunk_bytes,
        max_queued_work=value.max_queued_work,
        max_sessions=value.max_sessions,
        max_positions=value.max_positions,
    )


def flow_from_proto(message: pb.FlowControl) -> FlowControl:
    """See :class:`FlowControl`; a bound of 0 has its default."""
    default = FlowControl()
    return FlowControl(
        message.credits or default.chunk_credits,
        message.max_chunk_bytes or default.max_chunk_bytes,
        message.max_queued_work or default.max_queued_work,
        message.max_sessions or default.max_sessions,
        message.max_positions,
    )


def timings_to_proto(value: HopTimings) -> pb.HopTimings:
    """See :class:`HopTimings`."""
    return pb.HopTimings(
        node_id=value.node_id,
        layers=layers_to_proto(value.layers),
        prefill_tokens=value.prefill_tokens,
        prefill_engine_nanos=value.prefill_engine_nanos,
        decode_steps=value.decode_steps,
        decode_engine_nanos=value.decode_engine_nanos,
        decode_queue_nanos=value.decode_queue_nanos,
        decode_downstream_nanos=value.decode_downstream_nanos,
        proposed_tokens=value.proposed_tokens,
        accepted_tokens=value.accepted_tokens,
        prefill_queue_nanos=value.prefill_queue_nanos,
        prefill_codec_nanos=value.prefill_codec_nanos,
        prefill_began_nanos=value.prefill_began_nanos,
        prefill_span_nanos=value.prefill_span_nanos,
        decode_codec_nanos=value.decode_codec_nanos,
        boundary_bytes=value.boundary_bytes,
    )


def timings_from_proto(message: pb.HopTimings) -> HopTimings:
    """See :class:`HopTimings`."""
    return HopTimings(
        node_id=NodeId(named(message.node_id, "timings.node_id")),
        layers=layers_from_proto(message.layers),
        prefill_tokens=message.prefill_tokens,
        prefill_engine_nanos=message.prefill_engine_nanos,
        decode_steps=message.decode_steps,
        decode_engine_nanos=message.decode_engine_nanos,
        decode_queue_nanos=message.decode_queue_nanos,
        decode_downstream_nanos=message.decode_downstream_nanos,
        proposed_tokens=message.proposed_tokens,
        accepted_tokens=message.accepted_tokens,
        prefill_queue_nanos=message.prefill_queue_nanos,
        prefill_codec_nanos=message.prefill_codec_nanos,
        prefill_began_nanos=message.prefill_began_nanos,
        prefill_span_nanos=message.prefill_span_nanos,
        decode_codec_nanos=message.decode_codec_nanos,
        boundary_bytes=message.boundary_bytes,
    )


def capability_to_proto(value: Capability) -> pb.Capability:
    """See :class:`Capability`; the packings listed are those this codec reads."""
    return pb.Capability(
        schema_version=pb.SchemaVersion(number=SCHEMA_VERSION),
        node_id=value.node_id,
        layers=layers_to_proto(value.layers),
        total_layers=value.total_layers,
        fingerprint=fingerprint_to_proto(value.fingerprint),
        slice_digest=value.slice_digest,
        architecture=value.architecture,
        context_length=value.context_length,
        flow=flow_to_proto(value.flow),
        dtypes=[DTYPE_TO_PROTO[dtype] for dtype in value.dtypes],
        compressions=COMPRESSION_TO_PROTO.values(),
        next_address=value.next_address or "",
        grammars=value.grammars,
    )


def capability_from_proto(message: pb.Capability) -> Capability:
    """See :class:`Capability`."""
    check_schema(message.schema_version)
    require(message, "layers")
    require(message, "fingerprint")
    if message.context_length == 0:
        raise MalformedFrameError("context_length", "it is 0")
    return Capability(
        node_id=NodeId(named(message.node_id, "node_id")),
        layers=layers_from_proto(message.layers).within(message.total_layers),
        total_layers=message.total_layers,
        fingerprint=fingerprint_from_proto(message.fingerprint),
        slice_digest=Digest(message.slice_digest),
        architecture=message.architecture,
        context_length=message.context_length,
        flow=flow_from_proto(message.flow),
        dtypes=tuple(known(DTYPE_TO_PROTO, dtype, "dtypes") for dtype in message.dtypes)
        or (DType.FLOAT32,),
        next_address=Address(message.next_address) if message.next_address else None,
        grammars=message.grammars,
    )


def health_to_proto(value: HealthReport) -> pb.HealthResponse:
    """See :class:`HealthReport`; an OK status without a text is left out."""
    return pb.HealthResponse(
        state=_STATES[value.state],
        error=None if value.status == OK else status_to_proto(value.status),
        open_sessions=value.open_sessions,
        steps_done=value.steps_done,
    )


def health_from_proto(message: pb.HealthResponse) -> HealthReport:
    """See :class:`HealthReport`."""
    return HealthReport(
        state=known(_STATES, message.state, "state"),
        status=status_from_proto(message.error),
        open_sessions=message.open_sessions,
        steps_done=message.steps_done,
    )
