"""The schema keeps its promises: no field goes away, none changes its number or its type."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb

FIELDS = """
Ack.handle = 1 uint32
Ack.idempotency_step = 2 uint64
Ack.duplicate = 3 bool
Ack.cache_result = 4 CacheResult
AttachReturn.handle = 1 uint32
AttachReturn.route_session_id = 2 string
AttachReturn.route_epoch = 3 uint64
AttachReturn.key = 4 bytes
CacheExpectation.mode = 1 CacheMode
CacheExpectation.expected_past_len = 2 uint32
CacheExpectation.source_session_id = 3 string
CacheExpectation.source_epoch = 4 uint64
CacheResult.hit = 1 bool
CacheResult.past_len = 2 uint32
CancelRequest.route_session_id = 1 string
CancelRequest.route_epoch = 2 uint64
CancelRequest.reason = 3 string
CancelSignal.handle = 1 uint32
CancelSignal.reason = 2 string
Capability.schema_version = 1 SchemaVersion
Capability.node_id = 2 string
Capability.layers = 3 LayerRange
Capability.total_layers = 4 uint32
Capability.fingerprint = 5 Fingerprint
Capability.slice_digest = 6 string
Capability.architecture = 7 string
Capability.context_length = 8 uint32
Capability.flow = 9 FlowControl
Capability.dtypes = 10 repeated TensorDtype
Capability.compressions = 11 repeated Compression
Capability.next_address = 12 string
Capability.grammars = 13 bool
ChunkInfo.index = 1 uint32
ChunkInfo.count = 2 uint32
ChunkInfo.token_count = 3 uint32
ChunkInfo.total_tokens = 4 uint32
DecodeFrame.steps = 1 repeated DecodeStep
DecodeStep.handle = 1 uint32
DecodeStep.position = 2 uint32
DecodeStep.idempotency_step = 3 uint64
DecodeStep.expected_past_len = 4 uint32
DecodeStep.checksum = 5 fixed32
DecodeStep.data = 6 bytes
DecodeStep.dtype = 7 TensorDtype
DecodeStep.proposed = 8 repeated uint32
DecodeStep.truncate = 9 bool
Envelope.schema_version = 1 SchemaVersion
Envelope.work_id = 2 string
Envelope.route_session_id = 3 string
Envelope.route_epoch = 4 uint64
Envelope.fingerprint = 5 Fingerprint
Envelope.layers = 6 LayerRange
Envelope.effective_start_layer = 7 uint32
Envelope.phase = 8 Phase
Envelope.position = 9 uint32
Envelope.idempotency_step = 10 uint64
Envelope.cache_expectation = 11 CacheExpectation
Envelope.compression = 12 Compression
Envelope.checksum = 13 fixed32
Envelope.deadline_unix_nanos = 14 int64
Envelope.traceparent = 15 string
ErrorDetail.key = 1 string
ErrorDetail.value = 2 string
Fingerprint.model_artifact_digest = 1 string
Fingerprint.runtime_recipe_digest = 2 string
Fingerprint.recipe_id = 3 string
Fingerprint.recipe_version = 4 uint32
Fingerprint.catalogue_version = 5 uint32
FlowControl.credits = 1 uint32
FlowControl.max_chunk_bytes = 2 uint64
FlowControl.max_queued_work = 3 uint32
FlowControl.max_sessions = 4 uint32
FlowControl.max_positions = 5 uint64
Generate.handle = 1 uint32
Generate.envelope = 2 Envelope
Generate.hops = 3 repeated Hop
Generate.spec = 4 GenerationSpec
Generate.token_credits = 5 uint32
Generate.opener = 6 SeamEnd
GeneratedToken.position = 1 uint32
GeneratedToken.token_id = 2 uint32
GeneratedToken.logprob = 3 double
GeneratedToken.top_logprobs = 4 repeated TokenLogprob
GenerationDone.handle = 1 uint32
GenerationDone.finish_reason = 2 FinishReason
GenerationDone.timings = 3 repeated HopTimings
GenerationSpec.prompt = 1 repeated uint32
GenerationSpec.sampling = 2 SamplingParams
GenerationSpec.max_new_tokens = 3 uint32
GenerationSpec.end_ids = 4 repeated uint32
GenerationSpec.speculation = 5 Speculation
GenerationSpec.generated = 6 uint32
GetCapabilityRequest.padding = 1 bytes
GetCapabilityResponse.capability = 1 Capability
GrantTokens.handle = 1 uint32
GrantTokens.tokens = 2 uint32
HealthResponse.state = 1 LifecycleState
HealthResponse.error = 2 ShardError
HealthResponse.open_sessions = 3 uint32
HealthResponse.steps_done = 4 uint64
Hop.node_id = 1 string
Hop.address = 2 string
Hop.layers = 3 LayerRange
HopTimings.node_id = 1 string
HopTimings.layers = 2 LayerRange
HopTimings.prefill_tokens = 3 uint32
HopTimings.prefill_engine_nanos = 4 uint64
HopTimings.decode_steps = 5 uint32
HopTimings.decode_engine_nanos = 6 uint64
HopTimings.decode_queue_nanos = 7 uint64
HopTimings.decode_downstream_nanos = 8 uint64
HopTimings.prefill_queue_nanos = 9 uint64
HopTimings.prefill_codec_nanos = 10 uint64
HopTimings.prefill_began_nanos = 11 uint64
HopTimings.prefill_span_nanos = 12 uint64
HopTimings.decode_codec_nanos = 13 uint64
HopTimings.proposed_tokens = 14 uint32
HopTimings.accepted_tokens = 15 uint32
HopTimings.boundary_bytes = 16 uint64
LayerRange.start = 1 uint32
LayerRange.end = 2 uint32
LogitBias.token_id = 1 uint32
LogitBias.bias = 2 double
NamedTensor.name = 1 string
NamedTensor.shape = 2 repeated int64
NamedTensor.dtype = 3 TensorDtype
NamedTensor.byte_order = 4 ByteOrder
NamedTensor.total_bytes = 5 uint64
NamedTensor.checksum = 6 fixed32
NamedTensor.fragments = 7 repeated TensorFragment
OpenSession.handle = 1 uint32
OpenSession.envelope = 2 Envelope
OpenSession.hops = 3 repeated Hop
OpenSession.sampling = 4 SamplingParams
OpenSession.history = 5 repeated uint32
OpenSession.flow = 6 FlowControl
OpenSession.return_path = 7 ReturnPath
OpenSession.positions = 8 uint32
OpenSession.begin = 9 CacheExpectation
OpenSession.generated = 10 uint32
OpenSession.opener = 11 SeamEnd
PrefillChunk.handle = 1 uint32
PrefillChunk.envelope = 2 Envelope
PrefillChunk.chunk = 3 ChunkInfo
PrefillChunk.bundle = 4 TensorBundle
ReleaseRequest.route_session_id = 1 string
ReleaseRequest.route_epoch = 2 uint64
ReleaseSignal.handle = 1 uint32
ReleaseSignal.keep = 2 bool
ReturnPath.address = 1 string
ReturnPath.key = 2 bytes
ReturnPath.node_id = 3 string
SamplingParams.temperature = 1 double
SamplingParams.top_k = 2 uint32
SamplingParams.top_p = 3 double
SamplingParams.min_p = 4 double
SamplingParams.repeat_penalty = 5 double
SamplingParams.presence_penalty = 6 double
SamplingParams.frequency_penalty = 7 double
SamplingParams.penalty_last_n = 8 int32
SamplingParams.seed = 9 uint64
SamplingParams.logit_biases = 10 repeated LogitBias
SamplingParams.top_logprobs = 11 uint32
SamplingParams.logprobs = 12 bool
SamplingParams.grammar = 13 string
SchemaVersion.number = 1 uint32
SeamEnd.node_id = 1 string
SeamEnd.layers = 2 LayerRange
SeamWork.prefill_rows = 1 uint64
SeamWork.decode_rows = 2 uint64
SeamWork.first_position = 3 uint64
SeamWork.end_position = 4 uint64
SeamWork.bytes_down = 5 uint64
SeamWork.bytes_up = 6 uint64
SeamWork.engine_nanos = 7 uint64
SeamWork.began_unix_nanos = 8 uint64
SeamWork.ended_unix_nanos = 9 uint64
SessionFailed.handle = 1 uint32
SessionFailed.error = 2 ShardError
SessionOpened.handle = 1 uint32
SessionOpened.flow = 2 FlowControl
SessionOpened.step_tokens = 3 uint32
SessionOpened.least_piece = 4 uint32
SessionOpened.most_piece = 5 uint32
SessionOpened.cached_tokens = 6 uint32
SessionOpened.replayed_tokens = 7 uint32
SessionReleased.handle = 1 uint32
SessionReleased.timings = 2 repeated HopTimings
SessionRequest.generate = 1 Generate
SessionRequest.open = 2 OpenSession
SessionRequest.prefill = 3 PrefillChunk
SessionRequest.decode = 4 DecodeFrame
SessionRequest.grant = 5 GrantTokens
SessionRequest.cancel = 6 CancelSignal
SessionRequest.release = 7 ReleaseSignal
SessionRequest.attach_return = 8 AttachReturn
SessionRequest.returned = 9 TokenFrame
SessionRequest.receipt = 10 SignedWork
SessionResponse.opened = 1 SessionOpened
SessionResponse.ack = 2 Ack
SessionResponse.tokens = 3 TokenFrame
SessionResponse.failed = 4 SessionFailed
SessionResponse.released = 5 SessionReleased
SessionResponse.done = 6 GenerationDone
SessionResponse.receipt = 7 SignedWork
ShardError.code = 1 ErrorCode
ShardError.retryable = 2 bool
ShardError.message = 3 string
ShardError.details = 4 repeated ErrorDetail
SignedWork.handle = 1 uint32
SignedWork.work = 2 SeamWork
SignedWork.public_key = 3 bytes
SignedWork.signature = 4 bytes
TensorBundle.version = 1 uint32
TensorBundle.tensors = 2 repeated NamedTensor
TensorBundle.token_id_sideband = 3 repeated uint32
TensorFragment.index = 1 uint32
TensorFragment.offset = 2 uint64
TensorFragment.data = 3 bytes
TokenFrame.replies = 1 repeated TokenReply
TokenLogprob.token_id = 1 uint32
TokenLogprob.logprob = 2 double
TokenReply.handle = 1 uint32
TokenReply.idempotency_step = 2 uint64
TokenReply.token = 3 GeneratedToken
"""

RPCS = {
    "GetCapability": (False, False),
    "Health": (False, False),
    "Session": (True, True),
    "Release": (False, False),
    "Cancel": (False, False),
}

_TYPE_NAMES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}


def _line(message: str, field: FieldDescriptor) -> str:
    if field.message_type is not None:
        kind = field.message_type.name
    elif field.enum_type is not None:
        kind = field.enum_type.name
    else:
        kind = _TYPE_NAMES[field.type]
    repeated = "repeated " if field.is_repeated else ""
    return f"{message}.{field.name} = {field.number} {repeated}{kind}"


def test_the_fields_are_those_that_were_promised() -> None:
    found = {
        _line(name, field)
        for name, message in pb.DESCRIPTOR.message_types_by_name.items()
        for field in message.fields
    }
    promised = set(FIELDS.split("\n")) - {""}
    assert not promised - found, "gone or changed, which breaks older peers"
    assert not found - promised, "new; add it here, and from then on it is a promise"


def test_fields_that_can_be_absent_stay_so() -> None:
    optional = {
        f"{name}.{field.name}"
        for name, message in pb.DESCRIPTOR.message_types_by_name.items()
        for field in message.fields
        if field.has_presence and field.message_type is None
    }
    assert optional == {
        "Envelope.effective_start_layer",
        "GeneratedToken.logprob",
        "SamplingParams.penalty_last_n",
        "SamplingParams.repeat_penalty",
        "SamplingParams.temperature",
        "SamplingParams.top_p",
    }


def test_the_number_of_a_removed_field_stays_reserved() -> None:
    proto = DescriptorProto()
    pb.TensorFragment.DESCRIPTOR.CopyToProto(proto)
    assert [(taken.start, taken.end) for taken in proto.reserved_range] == [(5, 6)]
    assert list(proto.reserved_name) == ["uncompressed_size"]


def test_the_calls_are_those_that_were_promised() -> None:
    service = pb.DESCRIPTOR.services_by_name["ShardRuntime"]
    assert service.full_name == "meshnet.wire.v1.ShardRuntime"
    found = {
        method.name: (method.client_streaming, method.server_streaming)
        for method in service.methods
    }
    assert found == RPCS


def test_the_first_value_of_every_enum_is_unspecified() -> None:
    for name, enum in pb.DESCRIPTOR.enum_types_by_name.items():
        first = enum.values_by_number[0].name
        assert first.endswith("_UNSPECIFIED"), name


def test_no_message_has_a_map() -> None:
    """A map's order isn't fixed, and equal messages must have equal bytes in every language."""
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        assert not message.nested_types, message.name
