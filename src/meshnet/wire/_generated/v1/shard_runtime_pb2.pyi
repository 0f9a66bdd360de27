from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TensorDtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TENSOR_DTYPE_UNSPECIFIED: _ClassVar[TensorDtype]
    TENSOR_DTYPE_FLOAT32: _ClassVar[TensorDtype]
    TENSOR_DTYPE_FLOAT16: _ClassVar[TensorDtype]
    TENSOR_DTYPE_BFLOAT16: _ClassVar[TensorDtype]
    TENSOR_DTYPE_Q8_0: _ClassVar[TensorDtype]

class ByteOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BYTE_ORDER_UNSPECIFIED: _ClassVar[ByteOrder]
    BYTE_ORDER_LITTLE_ENDIAN: _ClassVar[ByteOrder]
    BYTE_ORDER_BIG_ENDIAN: _ClassVar[ByteOrder]

class Compression(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPRESSION_UNSPECIFIED: _ClassVar[Compression]
    COMPRESSION_NONE: _ClassVar[Compression]
    COMPRESSION_ZSTD: _ClassVar[Compression]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_PREFILL: _ClassVar[Phase]
    PHASE_DECODE: _ClassVar[Phase]

class CacheMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CACHE_MODE_UNSPECIFIED: _ClassVar[CacheMode]
    CACHE_MODE_FRESH: _ClassVar[CacheMode]
    CACHE_MODE_EXACT: _ClassVar[CacheMode]
    CACHE_MODE_TRUNCATE: _ClassVar[CacheMode]
    CACHE_MODE_FORK: _ClassVar[CacheMode]

class LifecycleState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIFECYCLE_STATE_UNSPECIFIED: _ClassVar[LifecycleState]
    LIFECYCLE_STATE_LOADING: _ClassVar[LifecycleState]
    LIFECYCLE_STATE_READY: _ClassVar[LifecycleState]
    LIFECYCLE_STATE_DRAINING: _ClassVar[LifecycleState]
    LIFECYCLE_STATE_FAILED: _ClassVar[LifecycleState]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class Speculation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPECULATION_UNSPECIFIED: _ClassVar[Speculation]
    SPECULATION_OFF: _ClassVar[Speculation]
    SPECULATION_ON: _ClassVar[Speculation]

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_ARGUMENT: _ClassVar[ErrorCode]
    ERROR_CODE_MALFORMED_FRAME: _ClassVar[ErrorCode]
    ERROR_CODE_MODEL_FILE_INVALID: _ClassVar[ErrorCode]
    ERROR_CODE_MODEL_UNSUPPORTED: _ClassVar[ErrorCode]
    ERROR_CODE_MODEL_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_LAYER_RANGE_INVALID: _ClassVar[ErrorCode]
    ERROR_CODE_CONTEXT_LENGTH_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_TEMPLATE_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_CACHE_MISS: _ClassVar[ErrorCode]
    ERROR_CODE_STALE_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_FINGERPRINT_MISMATCH: _ClassVar[ErrorCode]
    ERROR_CODE_SESSION_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_CANCELLED: _ClassVar[ErrorCode]
    ERROR_CODE_DEADLINE_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_RESOURCE_EXHAUSTED: _ClassVar[ErrorCode]
    ERROR_CODE_NODE_UNREACHABLE: _ClassVar[ErrorCode]
    ERROR_CODE_NODE_LOST: _ClassVar[ErrorCode]
    ERROR_CODE_NODE_NOT_READY: _ClassVar[ErrorCode]
    ERROR_CODE_ENGINE_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
    ERROR_CODE_UNAUTHENTICATED: _ClassVar[ErrorCode]
TENSOR_DTYPE_UNSPECIFIED: TensorDtype
TENSOR_DTYPE_FLOAT32: TensorDtype
TENSOR_DTYPE_FLOAT16: TensorDtype
TENSOR_DTYPE_BFLOAT16: TensorDtype
TENSOR_DTYPE_Q8_0: TensorDtype
BYTE_ORDER_UNSPECIFIED: ByteOrder
BYTE_ORDER_LITTLE_ENDIAN: ByteOrder
BYTE_ORDER_BIG_ENDIAN: ByteOrder
COMPRESSION_UNSPECIFIED: Compression
COMPRESSION_NONE: Compression
COMPRESSION_ZSTD: Compression
PHASE_UNSPECIFIED: Phase
PHASE_PREFILL: Phase
PHASE_DECODE: Phase
CACHE_MODE_UNSPECIFIED: CacheMode
CACHE_MODE_FRESH: CacheMode
CACHE_MODE_EXACT: CacheMode
CACHE_MODE_TRUNCATE: CacheMode
CACHE_MODE_FORK: CacheMode
LIFECYCLE_STATE_UNSPECIFIED: LifecycleState
LIFECYCLE_STATE_LOADING: LifecycleState
LIFECYCLE_STATE_READY: LifecycleState
LIFECYCLE_STATE_DRAINING: LifecycleState
LIFECYCLE_STATE_FAILED: LifecycleState
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
SPECULATION_UNSPECIFIED: Speculation
SPECULATION_OFF: Speculation
SPECULATION_ON: Speculation
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_INVALID_ARGUMENT: ErrorCode
ERROR_CODE_MALFORMED_FRAME: ErrorCode
ERROR_CODE_MODEL_FILE_INVALID: ErrorCode
ERROR_CODE_MODEL_UNSUPPORTED: ErrorCode
ERROR_CODE_MODEL_NOT_FOUND: ErrorCode
ERROR_CODE_LAYER_RANGE_INVALID: ErrorCode
ERROR_CODE_CONTEXT_LENGTH_EXCEEDED: ErrorCode
ERROR_CODE_TEMPLATE_FAILED: ErrorCode
ERROR_CODE_CACHE_MISS: ErrorCode
ERROR_CODE_STALE_EPOCH: ErrorCode
ERROR_CODE_FINGERPRINT_MISMATCH: ErrorCode
ERROR_CODE_SESSION_NOT_FOUND: ErrorCode
ERROR_CODE_CANCELLED: ErrorCode
ERROR_CODE_DEADLINE_EXCEEDED: ErrorCode
ERROR_CODE_RESOURCE_EXHAUSTED: ErrorCode
ERROR_CODE_NODE_UNREACHABLE: ErrorCode
ERROR_CODE_NODE_LOST: ErrorCode
ERROR_CODE_NODE_NOT_READY: ErrorCode
ERROR_CODE_ENGINE_FAILED: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode
ERROR_CODE_UNAUTHENTICATED: ErrorCode

class SchemaVersion(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Fingerprint(_message.Message):
    __slots__ = ("model_artifact_digest", "runtime_recipe_digest", "recipe_id", "recipe_version", "catalogue_version")
    MODEL_ARTIFACT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_RECIPE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RECIPE_ID_FIELD_NUMBER: _ClassVar[int]
    RECIPE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CATALOGUE_VERSION_FIELD_NUMBER: _ClassVar[int]
    model_artifact_digest: str
    runtime_recipe_digest: str
    recipe_id: str
    recipe_version: int
    catalogue_version: int
    def __init__(self, model_artifact_digest: _Optional[str] = ..., runtime_recipe_digest: _Optional[str] = ..., recipe_id: _Optional[str] = ..., recipe_version: _Optional[int] = ..., catalogue_version: _Optional[int] = ...) -> None: ...

class LayerRange(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Hop(_message.Message):
    __slots__ = ("node_id", "address", "layers")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    layers: LayerRange
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ..., layers: _Optional[_Union[LayerRange, _Mapping]] = ...) -> None: ...

class CacheExpectation(_message.Message):
    __slots__ = ("mode", "expected_past_len", "source_session_id", "source_epoch")
    MODE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_PAST_LEN_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    mode: CacheMode
    expected_past_len: int
    source_session_id: str
    source_epoch: int
    def __init__(self, mode: _Optional[_Union[CacheMode, str]] = ..., expected_past_len: _Optional[int] = ..., source_session_id: _Optional[str] = ..., source_epoch: _Optional[int] = ...) -> None: ...

class CacheResult(_message.Message):
    __slots__ = ("hit", "past_len")
    HIT_FIELD_NUMBER: _ClassVar[int]
    PAST_LEN_FIELD_NUMBER: _ClassVar[int]
    hit: bool
    past_len: int
    def __init__(self, hit: _Optional[bool] = ..., past_len: _Optional[int] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("schema_version", "work_id", "route_session_id", "route_epoch", "fingerprint", "layers", "effective_start_layer", "phase", "position", "idempotency_step", "cache_expectation", "compression", "checksum", "deadline_unix_nanos", "traceparent")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORK_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTE_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_START_LAYER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_STEP_FIELD_NUMBER: _ClassVar[int]
    CACHE_EXPECTATION_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_UNIX_NANOS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    schema_version: SchemaVersion
    work_id: str
    route_session_id: str
    route_epoch: int
    fingerprint: Fingerprint
    layers: LayerRange
    effective_start_layer: int
    phase: Phase
    position: int
    idempotency_step: int
    cache_expectation: CacheExpectation
    compression: Compression
    checksum: int
    deadline_unix_nanos: int
    traceparent: str
    def __init__(self, schema_version: _Optional[_Union[SchemaVersion, _Mapping]] = ..., work_id: _Optional[str] = ..., route_session_id: _Optional[str] = ..., route_epoch: _Optional[int] = ..., fingerprint: _Optional[_Union[Fingerprint, _Mapping]] = ..., layers: _Optional[_Union[LayerRange, _Mapping]] = ..., effective_start_layer: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., position: _Optional[int] = ..., idempotency_step: _Optional[int] = ..., cache_expectation: _Optional[_Union[CacheExpectation, _Mapping]] = ..., compression: _Optional[_Union[Compression, str]] = ..., checksum: _Optional[int] = ..., deadline_unix_nanos: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...

class TensorFragment(_message.Message):
    __slots__ = ("index", "offset", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    offset: int
    data: bytes
    def __init__(self, index: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class NamedTensor(_message.Message):
    __slots__ = ("name", "shape", "dtype", "byte_order", "total_bytes", "checksum", "fragments")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BYTE_ORDER_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: TensorDtype
    byte_order: ByteOrder
    total_bytes: int
    checksum: int
    fragments: _containers.RepeatedCompositeFieldContainer[TensorFragment]
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Union[TensorDtype, str]] = ..., byte_order: _Optional[_Union[ByteOrder, str]] = ..., total_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., fragments: _Optional[_Iterable[_Union[TensorFragment, _Mapping]]] = ...) -> None: ...

class TensorBundle(_message.Message):
    __slots__ = ("version", "tensors", "token_id_sideband")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_SIDEBAND_FIELD_NUMBER: _ClassVar[int]
    version: int
    tensors: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    token_id_sideband: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ..., token_id_sideband: _Optional[_Iterable[int]] = ...) -> None: ...

class ChunkInfo(_message.Message):
    __slots__ = ("index", "count", "token_count", "total_tokens")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    index: int
    count: int
    token_count: int
    total_tokens: int
    def __init__(self, index: _Optional[int] = ..., count: _Optional[int] = ..., token_count: _Optional[int] = ..., total_tokens: _Optional[int] = ...) -> None: ...

class FlowControl(_message.Message):
    __slots__ = ("credits", "max_chunk_bytes", "max_queued_work", "max_sessions", "max_positions")
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_WORK_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    credits: int
    max_chunk_bytes: int
    max_queued_work: int
    max_sessions: int
    max_positions: int
    def __init__(self, credits: _Optional[int] = ..., max_chunk_bytes: _Optional[int] = ..., max_queued_work: _Optional[int] = ..., max_sessions: _Optional[int] = ..., max_positions: _Optional[int] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("token_id", "bias")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    bias: float
    def __init__(self, token_id: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "penalty_last_n", "seed", "logit_biases", "top_logprobs", "logprobs", "grammar")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPEAT_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PENALTY_LAST_N_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIASES_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_last_n: int
    seed: int
    logit_biases: _containers.RepeatedCompositeFieldContainer[LogitBias]
    top_logprobs: int
    logprobs: bool
    grammar: str
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repeat_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., penalty_last_n: _Optional[int] = ..., seed: _Optional[int] = ..., logit_biases: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., top_logprobs: _Optional[int] = ..., logprobs: _Optional[bool] = ..., grammar: _Optional[str] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class GeneratedToken(_message.Message):
    __slots__ = ("position", "token_id", "logprob", "top_logprobs")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    position: int
    token_id: int
    logprob: float
    top_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, position: _Optional[int] = ..., token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., top_logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class ShardError(_message.Message):
    __slots__ = ("code", "retryable", "message", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    retryable: bool
    message: str
    details: _containers.RepeatedCompositeFieldContainer[ErrorDetail]
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., retryable: _Optional[bool] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[ErrorDetail, _Mapping]]] = ...) -> None: ...

class SeamEnd(_message.Message):
    __slots__ = ("node_id", "layers")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    layers: LayerRange
    def __init__(self, node_id: _Optional[str] = ..., layers: _Optional[_Union[LayerRange, _Mapping]] = ...) -> None: ...

class SeamWork(_message.Message):
    __slots__ = ("prefill_rows", "decode_rows", "first_position", "end_position", "bytes_down", "bytes_up", "engine_nanos", "began_unix_nanos", "ended_unix_nanos")
    PREFILL_ROWS_FIELD_NUMBER: _ClassVar[int]
    DECODE_ROWS_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    END_POSITION_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FIELD_NUMBER: _ClassVar[int]
    BYTES_UP_FIELD_NUMBER: _ClassVar[int]
    ENGINE_NANOS_FIELD_NUMBER: _ClassVar[int]
    BEGAN_UNIX_NANOS_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_NANOS_FIELD_NUMBER: _ClassVar[int]
    prefill_rows: int
    decode_rows: int
    first_position: int
    end_position: int
    bytes_down: int
    bytes_up: int
    engine_nanos: int
    began_unix_nanos: int
    ended_unix_nanos: int
    def __init__(self, prefill_rows: _Optional[int] = ..., decode_rows: _Optional[int] = ..., first_position: _Optional[int] = ..., end_position: _Optional[int] = ..., bytes_down: _Optional[int] = ..., bytes_up: _Optional[int] = ..., engine_nanos: _Optional[int] = ..., began_unix_nanos: _Optional[int] = ..., ended_unix_nanos: _Optional[int] = ...) -> None: ...

class SignedWork(_message.Message):
    __slots__ = ("handle", "work", "public_key", "signature")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    work: SeamWork
    public_key: bytes
    signature: bytes
    def __init__(self, handle: _Optional[int] = ..., work: _Optional[_Union[SeamWork, _Mapping]] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class HopTimings(_message.Message):
    __slots__ = ("node_id", "layers", "prefill_tokens", "prefill_engine_nanos", "decode_steps", "decode_engine_nanos", "decode_queue_nanos", "decode_downstream_nanos", "prefill_queue_nanos", "prefill_codec_nanos", "prefill_began_nanos", "prefill_span_nanos", "decode_codec_nanos", "proposed_tokens", "accepted_tokens", "boundary_bytes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ENGINE_NANOS_FIELD_NUMBER: _ClassVar[int]
    DECODE_STEPS_FIELD_NUMBER: _ClassVar[int]
    DECODE_ENGINE_NANOS_FIELD_NUMBER: _ClassVar[int]
    DECODE_QUEUE_NANOS_FIELD_NUMBER: _ClassVar[int]
    DECODE_DOWNSTREAM_NANOS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_QUEUE_NANOS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_CODEC_NANOS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_BEGAN_NANOS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SPAN_NANOS_FIELD_NUMBER: _ClassVar[int]
    DECODE_CODEC_NANOS_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    layers: LayerRange
    prefill_tokens: int
    prefill_engine_nanos: int
    decode_steps: int
    decode_engine_nanos: int
    decode_queue_nanos: int
    decode_downstream_nanos: int
    prefill_queue_nanos: int
    prefill_codec_nanos: int
    prefill_began_nanos: int
    prefill_span_nanos: int
    decode_codec_nanos: int
    proposed_tokens: int
    accepted_tokens: int
    boundary_bytes: int
    def __init__(self, node_id: _Optional[str] = ..., layers: _Optional[_Union[LayerRange, _Mapping]] = ..., prefill_tokens: _Optional[int] = ..., prefill_engine_nanos: _Optional[int] = ..., decode_steps: _Optional[int] = ..., decode_engine_nanos: _Optional[int] = ..., decode_queue_nanos: _Optional[int] = ..., decode_downstream_nanos: _Optional[int] = ..., prefill_queue_nanos: _Optional[int] = ..., prefill_codec_nanos: _Optional[int] = ..., prefill_began_nanos: _Optional[int] = ..., prefill_span_nanos: _Optional[int] = ..., decode_codec_nanos: _Optional[int] = ..., proposed_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., boundary_bytes: _Optional[int] = ...) -> None: ...

class GenerationSpec(_message.Message):
    __slots__ = ("prompt", "sampling", "max_new_tokens", "end_ids", "speculation", "generated")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    END_IDS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    prompt: _containers.RepeatedScalarFieldContainer[int]
    sampling: SamplingParams
    max_new_tokens: int
    end_ids: _containers.RepeatedScalarFieldContainer[int]
    speculation: Speculation
    generated: int
    def __init__(self, prompt: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., max_new_tokens: _Optional[int] = ..., end_ids: _Optional[_Iterable[int]] = ..., speculation: _Optional[_Union[Speculation, str]] = ..., generated: _Optional[int] = ...) -> None: ...

class Generate(_message.Message):
    __slots__ = ("handle", "envelope", "hops", "spec", "token_credits", "opener")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    TOKEN_CREDITS_FIELD_NUMBER: _ClassVar[int]
    OPENER_FIELD_NUMBER: _ClassVar[int]
    handle: int
    envelope: Envelope
    hops: _containers.RepeatedCompositeFieldContainer[Hop]
    spec: GenerationSpec
    token_credits: int
    opener: SeamEnd
    def __init__(self, handle: _Optional[int] = ..., envelope: _Optional[_Union[Envelope, _Mapping]] = ..., hops: _Optional[_Iterable[_Union[Hop, _Mapping]]] = ..., spec: _Optional[_Union[GenerationSpec, _Mapping]] = ..., token_credits: _Optional[int] = ..., opener: _Optional[_Union[SeamEnd, _Mapping]] = ...) -> None: ...

class ReturnPath(_message.Message):
    __slots__ = ("address", "key", "node_id")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    address: str
    key: bytes
    node_id: str
    def __init__(self, address: _Optional[str] = ..., key: _Optional[bytes] = ..., node_id: _Optional[str] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ("handle", "envelope", "hops", "sampling", "history", "flow", "return_path", "positions", "begin", "generated", "opener")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    FLOW_FIELD_NUMBER: _ClassVar[int]
    RETURN_PATH_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    OPENER_FIELD_NUMBER: _ClassVar[int]
    handle: int
    envelope: Envelope
    hops: _containers.RepeatedCompositeFieldContainer[Hop]
    sampling: SamplingParams
    history: _containers.RepeatedScalarFieldContainer[int]
    flow: FlowControl
    return_path: ReturnPath
    positions: int
    begin: CacheExpectation
    generated: int
    opener: SeamEnd
    def __init__(self, handle: _Optional[int] = ..., envelope: _Optional[_Union[Envelope, _Mapping]] = ..., hops: _Optional[_Iterable[_Union[Hop, _Mapping]]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., history: _Optional[_Iterable[int]] = ..., flow: _Optional[_Union[FlowControl, _Mapping]] = ..., return_path: _Optional[_Union[ReturnPath, _Mapping]] = ..., positions: _Optional[int] = ..., begin: _Optional[_Union[CacheExpectation, _Mapping]] = ..., generated: _Optional[int] = ..., opener: _Optional[_Union[SeamEnd, _Mapping]] = ...) -> None: ...

class PrefillChunk(_message.Message):
    __slots__ = ("handle", "envelope", "chunk", "bundle")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    envelope: Envelope
    chunk: ChunkInfo
    bundle: TensorBundle
    def __init__(self, handle: _Optional[int] = ..., envelope: _Optional[_Union[Envelope, _Mapping]] = ..., chunk: _Optional[_Union[ChunkInfo, _Mapping]] = ..., bundle: _Optional[_Union[TensorBundle, _Mapping]] = ...) -> None: ...

class DecodeStep(_message.Message):
    __slots__ = ("handle", "position", "idempotency_step", "expected_past_len", "checksum", "data", "dtype", "proposed", "truncate")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_STEP_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_PAST_LEN_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    position: int
    idempotency_step: int
    expected_past_len: int
    checksum: int
    data: bytes
    dtype: TensorDtype
    proposed: _containers.RepeatedScalarFieldContainer[int]
    truncate: bool
    def __init__(self, handle: _Optional[int] = ..., position: _Optional[int] = ..., idempotency_step: _Optional[int] = ..., expected_past_len: _Optional[int] = ..., checksum: _Optional[int] = ..., data: _Optional[bytes] = ..., dtype: _Optional[_Union[TensorDtype, str]] = ..., proposed: _Optional[_Iterable[int]] = ..., truncate: _Optional[bool] = ...) -> None: ...

class DecodeFrame(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[DecodeStep]
    def __init__(self, steps: _Optional[_Iterable[_Union[DecodeStep, _Mapping]]] = ...) -> None: ...

class GrantTokens(_message.Message):
    __slots__ = ("handle", "tokens")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    tokens: int
    def __init__(self, handle: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class CancelSignal(_message.Message):
    __slots__ = ("handle", "reason")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    handle: int
    reason: str
    def __init__(self, handle: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ReleaseSignal(_message.Message):
    __slots__ = ("handle", "keep")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    handle: int
    keep: bool
    def __init__(self, handle: _Optional[int] = ..., keep: _Optional[bool] = ...) -> None: ...

class AttachReturn(_message.Message):
    __slots__ = ("handle", "route_session_id", "route_epoch", "key")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ROUTE_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    handle: int
    route_session_id: str
    route_epoch: int
    key: bytes
    def __init__(self, handle: _Optional[int] = ..., route_session_id: _Optional[str] = ..., route_epoch: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("generate", "open", "prefill", "decode", "grant", "cancel", "release", "attach_return", "returned", "receipt")
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    ATTACH_RETURN_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    generate: Generate
    open: OpenSession
    prefill: PrefillChunk
    decode: DecodeFrame
    grant: GrantTokens
    cancel: CancelSignal
    release: ReleaseSignal
    attach_return: AttachReturn
    returned: TokenFrame
    receipt: SignedWork
    def __init__(self, generate: _Optional[_Union[Generate, _Mapping]] = ..., open: _Optional[_Union[OpenSession, _Mapping]] = ..., prefill: _Optional[_Union[PrefillChunk, _Mapping]] = ..., decode: _Optional[_Union[DecodeFrame, _Mapping]] = ..., grant: _Optional[_Union[GrantTokens, _Mapping]] = ..., cancel: _Optional[_Union[CancelSignal, _Mapping]] = ..., release: _Optional[_Union[ReleaseSignal, _Mapping]] = ..., attach_return: _Optional[_Union[AttachReturn, _Mapping]] = ..., returned: _Optional[_Union[TokenFrame, _Mapping]] = ..., receipt: _Optional[_Union[SignedWork, _Mapping]] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("handle", "flow", "step_tokens", "least_piece", "most_piece", "cached_tokens", "replayed_tokens")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    FLOW_FIELD_NUMBER: _ClassVar[int]
    STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEAST_PIECE_FIELD_NUMBER: _ClassVar[int]
    MOST_PIECE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    flow: FlowControl
    step_tokens: int
    least_piece: int
    most_piece: int
    cached_tokens: int
    replayed_tokens: int
    def __init__(self, handle: _Optional[int] = ..., flow: _Optional[_Union[FlowControl, _Mapping]] = ..., step_tokens: _Optional[int] = ..., least_piece: _Optional[int] = ..., most_piece: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., replayed_tokens: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("handle", "idempotency_step", "duplicate", "cache_result")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_STEP_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    CACHE_RESULT_FIELD_NUMBER: _ClassVar[int]
    handle: int
    idempotency_step: int
    duplicate: bool
    cache_result: CacheResult
    def __init__(self, handle: _Optional[int] = ..., idempotency_step: _Optional[int] = ..., duplicate: _Optional[bool] = ..., cache_result: _Optional[_Union[CacheResult, _Mapping]] = ...) -> None: ...

class TokenReply(_message.Message):
    __slots__ = ("handle", "idempotency_step", "token")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_STEP_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    handle: int
    idempotency_step: int
    token: GeneratedToken
    def __init__(self, handle: _Optional[int] = ..., idempotency_step: _Optional[int] = ..., token: _Optional[_Union[GeneratedToken, _Mapping]] = ...) -> None: ...

class TokenFrame(_message.Message):
    __slots__ = ("replies",)
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[TokenReply]
    def __init__(self, replies: _Optional[_Iterable[_Union[TokenReply, _Mapping]]] = ...) -> None: ...

class SessionFailed(_message.Message):
    __slots__ = ("handle", "error")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    handle: int
    error: ShardError
    def __init__(self, handle: _Optional[int] = ..., error: _Optional[_Union[ShardError, _Mapping]] = ...) -> None: ...

class SessionReleased(_message.Message):
    __slots__ = ("handle", "timings")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    timings: _containers.RepeatedCompositeFieldContainer[HopTimings]
    def __init__(self, handle: _Optional[int] = ..., timings: _Optional[_Iterable[_Union[HopTimings, _Mapping]]] = ...) -> None: ...

class GenerationDone(_message.Message):
    __slots__ = ("handle", "finish_reason", "timings")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    finish_reason: FinishReason
    timings: _containers.RepeatedCompositeFieldContainer[HopTimings]
    def __init__(self, handle: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., timings: _Optional[_Iterable[_Union[HopTimings, _Mapping]]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("opened", "ack", "tokens", "failed", "released", "done", "receipt")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    opened: SessionOpened
    ack: Ack
    tokens: TokenFrame
    failed: SessionFailed
    released: SessionReleased
    done: GenerationDone
    receipt: SignedWork
    def __init__(self, opened: _Optional[_Union[SessionOpened, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., tokens: _Optional[_Union[TokenFrame, _Mapping]] = ..., failed: _Optional[_Union[SessionFailed, _Mapping]] = ..., released: _Optional[_Union[SessionReleased, _Mapping]] = ..., done: _Optional[_Union[GenerationDone, _Mapping]] = ..., receipt: _Optional[_Union[SignedWork, _Mapping]] = ...) -> None: ...

class Capability(_message.Message):
    __slots__ = ("schema_version", "node_id", "layers", "total_layers", "fingerprint", "slice_digest", "architecture", "context_length", "flow", "dtypes", "compressions", "next_address", "grammars")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_LAYERS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SLICE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FLOW_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    COMPRESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GRAMMARS_FIELD_NUMBER: _ClassVar[int]
    schema_version: SchemaVersion
    node_id: str
    layers: LayerRange
    total_layers: int
    fingerprint: Fingerprint
    slice_digest: str
    architecture: str
    context_length: int
    flow: FlowControl
    dtypes: _containers.RepeatedScalarFieldContainer[TensorDtype]
    compressions: _containers.RepeatedScalarFieldContainer[Compression]
    next_address: str
    grammars: bool
    def __init__(self, schema_version: _Optional[_Union[SchemaVersion, _Mapping]] = ..., node_id: _Optional[str] = ..., layers: _Optional[_Union[LayerRange, _Mapping]] = ..., total_layers: _Optional[int] = ..., fingerprint: _Optional[_Union[Fingerprint, _Mapping]] = ..., slice_digest: _Optional[str] = ..., architecture: _Optional[str] = ..., context_length: _Optional[int] = ..., flow: _Optional[_Union[FlowControl, _Mapping]] = ..., dtypes: _Optional[_Iterable[_Union[TensorDtype, str]]] = ..., compressions: _Optional[_Iterable[_Union[Compression, str]]] = ..., next_address: _Optional[str] = ..., grammars: _Optional[bool] = ...) -> None: ...

class GetCapabilityRequest(_message.Message):
    __slots__ = ("padding",)
    PADDING_FIELD_NUMBER: _ClassVar[int]
    padding: bytes
    def __init__(self, padding: _Optional[bytes] = ...) -> None: ...

class GetCapabilityResponse(_message.Message):
    __slots__ = ("capability",)
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    capability: Capability
    def __init__(self, capability: _Optional[_Union[Capability, _Mapping]] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthResponse(_message.Message):
    __slots__ = ("state", "error", "open_sessions", "steps_done")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OPEN_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    state: LifecycleState
    error: ShardError
    open_sessions: int
    steps_done: int
    def __init__(self, state: _Optional[_Union[LifecycleState, str]] = ..., error: _Optional[_Union[ShardError, _Mapping]] = ..., open_sessions: _Optional[int] = ..., steps_done: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("route_session_id", "route_epoch")
    ROUTE_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    route_session_id: str
    route_epoch: int
    def __init__(self, route_session_id: _Optional[str] = ..., route_epoch: _Optional[int] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("route_session_id", "route_epoch", "reason")
    ROUTE_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    route_session_id: str
    route_epoch: int
    reason: str
    def __init__(self, route_session_id: _Optional[str] = ..., route_epoch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
