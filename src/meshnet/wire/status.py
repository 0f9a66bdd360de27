"""One vocabulary of errors, three forms: the domain's code, the schema's, and gRPC's.

The mappings are total. What gRPC's own codes can't say travels beside them, as a serialised
``ShardError`` in the trailing metadata.
"""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from google.protobuf.message import DecodeError

from meshnet.domain.errors import MalformedFrameError
from meshnet.domain.status import OK, StatusCode, StructuredStatus
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb

ERROR_TRAILER = "meshnet-error-bin"
MAX_TRAILER_TEXT_BYTES = 2048
"""Of the message, and of all details together: gRPC peers refuse metadata over 8 KiB."""

CODE_TO_PROTO = {
    StatusCode.OK: pb.ERROR_CODE_UNSPECIFIED,
    StatusCode.INVALID_ARGUMENT: pb.ERROR_CODE_INVALID_ARGUMENT,
    StatusCode.MALFORMED_FRAME: pb.ERROR_CODE_MALFORMED_FRAME,
    StatusCode.MODEL_FILE_INVALID: pb.ERROR_CODE_MODEL_FILE_INVALID,
    StatusCode.MODEL_UNSUPPORTED: pb.ERROR_CODE_MODEL_UNSUPPORTED,
    StatusCode.MODEL_NOT_FOUND: pb.ERROR_CODE_MODEL_NOT_FOUND,
    StatusCode.LAYER_RANGE_INVALID: pb.ERROR_CODE_LAYER_RANGE_INVALID,
    StatusCode.CONTEXT_LENGTH_EXCEEDED: pb.ERROR_CODE_CONTEXT_LENGTH_EXCEEDED,
    StatusCode.TEMPLATE_FAILED: pb.ERROR_CODE_TEMPLATE_FAILED,
    StatusCode.CACHE_MISS: pb.ERROR_CODE_CACHE_MISS,
    StatusCode.STALE_EPOCH: pb.ERROR_CODE_STALE_EPOCH,
    StatusCode.FINGERPRINT_MISMATCH: pb.ERROR_CODE_FINGERPRINT_MISMATCH,
    StatusCode.SESSION_NOT_FOUND: pb.ERROR_CODE_SESSION_NOT_FOUND,
    StatusCode.CANCELLED: pb.ERROR_CODE_CANCELLED,
    StatusCode.DEADLINE_EXCEEDED: pb.ERROR_CODE_DEADLINE_EXCEEDED,
    StatusCode.UNAUTHENTICATED: pb.ERROR_CODE_UNAUTHENTICATED,
    StatusCode.RESOURCE_EXHAUSTED: pb.ERROR_CODE_RESOURCE_EXHAUSTED,
    StatusCode.NODE_UNREACHABLE: pb.ERROR_CODE_NODE_UNREACHABLE,
    StatusCode.NODE_LOST: pb.ERROR_CODE_NODE_LOST,
    StatusCode.NODE_NOT_READY: pb.ERROR_CODE_NODE_NOT_READY,
    StatusCode.ENGINE_FAILED: pb.ERROR_CODE_ENGINE_FAILED,
    StatusCode.INTERNAL: pb.ERROR_CODE_INTERNAL,
}
_CODE_FROM_PROTO = {number: code for code, number in CODE_TO_PROTO.items()}

GRPC_FROM_CODE = {
    StatusCode.OK: grpc.StatusCode.OK,
    StatusCode.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    StatusCode.MALFORMED_FRAME: grpc.StatusCode.INVALID_ARGUMENT,
    StatusCode.MODEL_FILE_INVALID: grpc.StatusCode.DATA_LOSS,
    StatusCode.MODEL_UNSUPPORTED: grpc.StatusCode.FAILED_PRECONDITION,
    StatusCode.MODEL_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    StatusCode.LAYER_RANGE_INVALID: grpc.StatusCode.OUT_OF_RANGE,
    StatusCode.CONTEXT_LENGTH_EXCEEDED: grpc.StatusCode.OUT_OF_RANGE,
    StatusCode.TEMPLATE_FAILED: grpc.StatusCode.INVALID_ARGUMENT,
    StatusCode.CACHE_MISS: grpc.StatusCode.FAILED_PRECONDITION,
    StatusCode.STALE_EPOCH: grpc.StatusCode.ABORTED,
    StatusCode.FINGERPRINT_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    StatusCode.SESSION_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    StatusCode.CANCELLED: grpc.StatusCode.CANCELLED,
    StatusCode.DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    StatusCode.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    StatusCode.RESOURCE_EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    StatusCode.NODE_UNREACHABLE: grpc.StatusCode.UNAVAILABLE,
    StatusCode.NODE_LOST: grpc.StatusCode.UNAVAILABLE,
    StatusCode.NODE_NOT_READY: grpc.StatusCode.UNAVAILABLE,
    StatusCode.ENGINE_FAILED: grpc.StatusCode.INTERNAL,
    StatusCode.INTERNAL: grpc.StatusCode.INTERNAL,
}

CODE_FROM_GRPC = {
    grpc.StatusCode.OK: StatusCode.OK,
    grpc.StatusCode.CANCELLED: StatusCode.NODE_LOST,
    grpc.StatusCode.UNKNOWN: StatusCode.INTERNAL,
    grpc.StatusCode.INVALID_ARGUMENT: StatusCode.INTERNAL,
    grpc.StatusCode.DEADLINE_EXCEEDED: StatusCode.NODE_UNREACHABLE,
    grpc.StatusCode.NOT_FOUND: StatusCode.INTERNAL,
    grpc.StatusCode.ALREADY_EXISTS: StatusCode.INTERNAL,
    grpc.StatusCode.PERMISSION_DENIED: StatusCode.NODE_UNREACHABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: StatusCode.MALFORMED_FRAME,
    grpc.StatusCode.FAILED_PRECONDITION: StatusCode.INTERNAL,
    grpc.StatusCode.ABORTED: StatusCode.INTERNAL,
    grpc.StatusCode.OUT_OF_RANGE: StatusCode.INTERNAL,
    grpc.StatusCode.UNIMPLEMENTED: StatusCode.NODE_UNREACHABLE,
    grpc.StatusCode.INTERNAL: StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE: StatusCode.NODE_UNREACHABLE,
    grpc.StatusCode.DATA_LOSS: StatusCode.INTERNAL,
    grpc.StatusCode.UNAUTHENTICATED: StatusCode.NODE_UNREACHABLE,
}
"""For a status without our trailer, which gRPC itself or something in between made.

RESOURCE_EXHAUSTED is then gRPC's word for a message over the size limit, DEADLINE_EXCEEDED for no
answer in time, UNIMPLEMENTED for an address where something else than a node listens, CANCELLED for
a node that stopped while it was answering.
"""


def status_to_proto(status: StructuredStatus) -> pb.ShardError:
    """The error message; for an OK status, one without a code."""
    return pb.ShardError(
        code=CODE_TO_PROTO[status.code],
        retryable=status.retryable,
        message=status.message,
        details=[
            pb.ErrorDetail(key=key, value=value) for key, value in sorted(status.details.items())
        ],
    )


def status_from_proto(message: pb.ShardError) -> StructuredStatus:
    """The status; a code of a newer schema is read as :attr:`StatusCode.INTERNAL`."""
    details = {detail.key: detail.value for detail in message.details}
    if len(details) != len(message.details):
        raise MalformedFrameError("error.details", "a key occurs twice")
    code = _CODE_FROM_PROTO.get(message.code, StatusCode.INTERNAL)
    status = StructuredStatus(code, message.retryable, message.message, details)
    return OK if status == OK else status


def error_trailer(status: StructuredStatus) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata that carries ``status``; texts too long for metadata are cut."""
    details: dict[str, str] = {}
    left = MAX_TRAILER_TEXT_BYTES
    for key, value in status.details.items():
        left -= len(key.encode()) + len(value.encode())
        if left >= 0:
            details[key] = value
    short = StructuredStatus(
        status.code, status.retryable, cut_text(status.message, MAX_TRAILER_TEXT_BYTES), details
    )
    return ((ERROR_TRAILER, status_to_proto(short).SerializeToString()),)


def cut_text(text: str, max_bytes: int) -> str:
    """``text``, or as much of it as ``max_bytes`` of UTF-8 hold, with an ellipsis at its end."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= max_bytes:
        return encoded.decode()
    return encoded[: max_bytes - 3].decode(errors="ignore") + "\N{HORIZONTAL ELLIPSIS}"


def status_from_trailer(
    trailers: Iterable[tuple[str, str | bytes]],
) -> StructuredStatus | None:
    """The status that a call's trailing metadata carry; None when a node didn't put one there."""
    for key, value in trailers:
        if key == ERROR_TRAILER and isinstance(value, bytes):
            try:
                status = status_from_proto(pb.ShardError.FromString(value))
            except DecodeError as error:
                raise MalformedFrameError(ERROR_TRAILER, f"not a ShardError: {error}") from error
            return None if status.ok else status
    return None
