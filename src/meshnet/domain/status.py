"""The status vocabulary that engines, nodes, the wire and the gateway share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class StatusCode(Enum):
    """What happened, in one word; each surface (gRPC, HTTP, exit code) has one total mapping."""

    OK = "ok"
    INVALID_ARGUMENT = "invalid_argument"
    MALFORMED_FRAME = "malformed_frame"
    MODEL_FILE_INVALID = "model_file_invalid"
    MODEL_UNSUPPORTED = "model_unsupported"
    MODEL_NOT_FOUND = "model_not_found"
    LAYER_RANGE_INVALID = "layer_range_invalid"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    TEMPLATE_FAILED = "template_failed"
    CACHE_MISS = "cache_miss"
    STALE_EPOCH = "stale_epoch"
    FINGERPRINT_MISMATCH = "fingerprint_mismatch"
    SESSION_NOT_FOUND = "session_not_found"
    CANCELLED = "cancelled"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    UNAUTHENTICATED = "unauthenticated"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    NODE_UNREACHABLE = "node_unreachable"
    NODE_LOST = "node_lost"
    NODE_NOT_READY = "node_not_ready"
    ENGINE_FAILED = "engine_failed"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class StructuredStatus:
    """A status that can cross a process border: a code, whether a retry helps, text and details."""

    code: StatusCode
    retryable: bool = False
    message: str = ""
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True for :attr:`StatusCode.OK` alone."""
        return self.code is StatusCode.OK


OK = StructuredStatus(StatusCode.OK)
