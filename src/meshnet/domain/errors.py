"""Every error Meshnet raises.

::

    MeshnetError
    ├── InputError                 what was asked for is wrong; the same request fails again
    │   ├── InvalidArgumentError   a parameter or configuration value; names the field
    │   ├── ModelFileError         not a GGUF, truncated, or a header that lies
    │   ├── ModelUnsupportedError  a model or cut that isn't proven to give right answers
    │   ├── ModelNotFoundError     no model of that name here
    │   ├── LayerRangeError        a range out of bounds, or a chain with a gap
    │   ├── ContextLengthError     more tokens than the context holds
    │   └── TemplateError          the model's chat template refuses or fails
    ├── MalformedFrameError        bytes that don't obey the wire contract; names the field
    ├── SessionError               this session can't go on as asked
    │   ├── CacheMissError         the cache isn't where the step expects it
    │   ├── StaleEpochError        a step of a chain that has since changed
    │   ├── FingerprintMismatchError  two nodes that would compute different numbers
    │   ├── SessionNotFoundError   never opened here, or already released
    │   ├── CancelledError         somebody cancelled it
    │   └── DeadlineExceededError  its time ran out
    ├── UnauthenticatedError       who speaks didn't prove to be one who may
    ├── ResourceExhaustedError     full now; a retry later can succeed
    └── NodeError                  a machine, not the request, is the trouble
        ├── NodeUnreachableError   no connection could be made
        ├── NodeLostError          it was there and is gone
        ├── NodeNotReadyError      still loading, or draining
        ├── EngineError            the engine failed on a valid step
        └── InternalError          a fault in Meshnet itself

Each class has one :class:`~meshnet.domain.status.StatusCode` (its stable reason) and says whether a
retry helps. :func:`status_of` and :func:`error_from` carry an error across a process border.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from meshnet.domain.status import StatusCode, StructuredStatus


class MeshnetError(Exception):
    """Root of the tree. ``details`` holds facts a program may read, all of them text."""

    code: ClassVar[StatusCode] = StatusCode.INTERNAL
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **details: str) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, str] = details


class InputError(MeshnetError):
    """What was asked for is wrong; the same request fails again."""

    code = StatusCode.INVALID_ARGUMENT


class InvalidArgumentError(InputError):
    """A parameter has a value it can't have. ``details['field']`` names it."""

    def __init__(self, field: str, problem: str, **details: str) -> None:
        super().__init__(f"{field}: {problem}", field=field, **details)


class ModelFileError(InputError):
    """A file that isn't a GGUF, ends early, or whose header contradicts itself or the file."""

    code = StatusCode.MODEL_FILE_INVALID


class ModelUnsupportedError(InputError):
    """A model or a cut of it that isn't proven to give right answers."""

    code = StatusCode.MODEL_UNSUPPORTED


class ModelNotFoundError(InputError):
    """No model of that name or at that path."""

    code = StatusCode.MODEL_NOT_FOUND


class LayerRangeError(InputError):
    """A layer range out of bounds, or a chain whose ranges don't join."""

    code = StatusCode.LAYER_RANGE_INVALID


class ContextLengthError(InputError):
    """A prompt with more tokens than the context holds."""

    code = StatusCode.CONTEXT_LENGTH_EXCEEDED


class TemplateError(InputError):
    """The model's chat template is absent, refuses the conversation, or fails."""

    code = StatusCode.TEMPLATE_FAILED


class MalformedFrameError(MeshnetError):
    """Bytes from a peer that don't obey the wire contract. ``details['field']`` names the field."""

    code = StatusCode.MALFORMED_FRAME

    def __init__(self, field: str, problem: str, **details: str) -> None:
        super().__init__(f"{field}: {problem}", field=field, **details)


class SessionError(MeshnetError):
    """This session can't go on as asked."""

    code = StatusCode.SESSION_NOT_FOUND


class CacheMissError(SessionError):
    """The cache doesn't hold what the step expects. Rebuilding the session from its log helps."""

    code = StatusCode.CACHE_MISS
    retryable = True


class StaleEpochError(SessionError):
    """A step of a chain that has since been replaced by a newer one."""

    code = StatusCode.STALE_EPOCH


class FingerprintMismatchError(SessionError):
    """Two nodes that would compute different numbers must not share a route."""

    code = StatusCode.FINGERPRINT_MISMATCH


class SessionNotFoundError(SessionError):
    """The session was never opened here, or was released."""


class CancelledError(SessionError):
    """Somebody cancelled the session."""

    code = StatusCode.CANCELLED


class DeadlineExceededError(SessionError):
    """The session's deadline passed."""

    code = StatusCode.DEADLINE_EXCEEDED
    retryable = True


class UnauthenticatedError(MeshnetError):
    """Who speaks didn't prove to be one who may: no certificate, or one of another role."""

    code = StatusCode.UNAUTHENTICATED


class ResourceExhaustedError(MeshnetError):
    """No session, cache or queue place is free now; a retry later can succeed."""

    code = StatusCode.RESOURCE_EXHAUSTED
    retryable = True


class NodeError(MeshnetError):
    """A machine, not the request, is the trouble."""

    code = StatusCode.INTERNAL
    retryable = True


class NodeUnreachableError(NodeError):
    """No connection to a node could be made."""

    code = StatusCode.NODE_UNREACHABLE


class NodeLostError(NodeError):
    """A node that was part of the chain is gone."""

    code = StatusCode.NODE_LOST


class NodeNotReadyError(NodeError):
    """A node that is loading, draining or failed."""

    code = StatusCode.NODE_NOT_READY


class EngineError(NodeError):
    """The engine failed on a step that was valid, or its files can't be loaded."""

    code = StatusCode.ENGINE_FAILED
    retryable = False


class InternalError(NodeError):
    """A fault in Meshnet itself; a report is welcome."""

    retryable = False


_BY_CODE: dict[StatusCode, type[MeshnetError]] = {
    StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    StatusCode.MODEL_FILE_INVALID: ModelFileError,
    StatusCode.MODEL_UNSUPPORTED: ModelUnsupportedError,
    StatusCode.MODEL_NOT_FOUND: ModelNotFoundError,
    StatusCode.LAYER_RANGE_INVALID: LayerRangeError,
    StatusCode.CONTEXT_LENGTH_EXCEEDED: ContextLengthError,
    StatusCode.TEMPLATE_FAILED: TemplateError,
    StatusCode.MALFORMED_FRAME: MalformedFrameError,
    StatusCode.CACHE_MISS: CacheMissError,
    StatusCode.STALE_EPOCH: StaleEpochError,
    StatusCode.FINGERPRINT_MISMATCH: FingerprintMismatchError,
    StatusCode.SESSION_NOT_FOUND: SessionNotFoundError,
    StatusCode.CANCELLED: CancelledError,
    StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    StatusCode.NODE_UNREACHABLE: NodeUnreachableError,
    StatusCode.NODE_LOST: NodeLostError,
    StatusCode.NODE_NOT_READY: NodeNotReadyError,
    StatusCode.ENGINE_FAILED: EngineError,
    StatusCode.INTERNAL: InternalError,
}


def status_of(error: MeshnetError) -> StructuredStatus:
    """The status that carries ``error`` across a process border."""
    return StructuredStatus(error.code, error.retryable, error.message, dict(error.details))


def error_from(status: StructuredStatus) -> MeshnetError:
    """The error a status stands for; raises ``ValueError`` for an OK status, which is no error."""
    if status.code is StatusCode.OK:
        raise ValueError("an OK status is not an error")
    kind = _BY_CODE[status.code]
    error = kind.__new__(kind)
    MeshnetError.__init__(error, status.message)
    # Not as keywords: a peer chooses the names, and one may be a parameter's.
    error.details = dict(status.details)
    return error
