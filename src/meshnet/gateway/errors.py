"""The one mapping from Meshnet's errors to HTTP statuses and OpenAI's error bodies."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from meshnet.domain.errors import MeshnetError
from meshnet.domain.status import StatusCode
from meshnet.gateway.limits import Limit, Refusal

HTTP_STATUS: Mapping[StatusCode, int] = {
    StatusCode.OK: 200,
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.CONTEXT_LENGTH_EXCEEDED: 400,
    StatusCode.TEMPLATE_FAILED: 400,
    StatusCode.MODEL_NOT_FOUND: 404,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    # Not a standard status, but nginx's word for it. A 5xx would make clients ask again.
    StatusCode.CANCELLED: 499,
    StatusCode.MODEL_FILE_INVALID: 500,
    StatusCode.MODEL_UNSUPPORTED: 500,
    StatusCode.LAYER_RANGE_INVALID: 500,
    StatusCode.ENGINE_FAILED: 500,
    StatusCode.INTERNAL: 500,
    StatusCode.MALFORMED_FRAME: 502,
    StatusCode.FINGERPRINT_MISMATCH: 502,
    StatusCode.NODE_LOST: 502,
    # The gateway's own certificate is at fault, not the client's key.
    StatusCode.UNAUTHENTICATED: 502,
    StatusCode.CACHE_MISS: 503,
    StatusCode.STALE_EPOCH: 503,
    StatusCode.SESSION_NOT_FOUND: 503,
    StatusCode.NODE_UNREACHABLE: 503,
    StatusCode.NODE_NOT_READY: 503,
    StatusCode.DEADLINE_EXCEEDED: 504,
}

HTTP_CODE: Mapping[int, str] = {
    401: "invalid_api_key",
    403: "host_not_allowed",
    404: "unknown_url",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
}
"""The ``code`` of refusals that are about HTTP alone."""

_WAIT = re.compile(r"\d{1,6}(\.\d{1,6})?")
"""An error's details may come from a node, which may write anything."""

_PARAM = {StatusCode.TEMPLATE_FAILED: "messages", StatusCode.MODEL_NOT_FOUND: "model"}


@dataclass(frozen=True, slots=True)
class Failure:
    """What a client is told: an HTTP status and the members of OpenAI's error object."""

    http_status: int
    message: str
    code: str
    param: str | None = None
    retry: bool = False
    """Whether the same request can succeed later."""
    retry_after_seconds: float = 1.0
    """When, of one that can."""

    @property
    def kind(self) -> str:
        """OpenAI's coarse ``type`` of the error."""
        if self.http_status == 429:
            return self.code if self.code == "insufficient_quota" else "rate_limit_error"
        return "server_error" if self.http_status >= 500 else "invalid_request_error"

    def body(self) -> dict[str, object]:
        """The JSON body, also the payload of an error event in a stream."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        """Headers beside the body; ``x-should-retry`` is what OpenAI's own clients obey."""
        headers = {"x-should-retry": "true" if self.retry else "false"}
        if self.http_status == 429 or (self.http_status == 503 and self.retry):
            headers["retry-after"] = str(max(math.ceil(self.retry_after_seconds), 1))
        if self.http_status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


def failure_of(error: Exception) -> Failure:
    """What to tell a client about ``error``; of a foreign exception, only that there was one."""
    if not isinstance(error, MeshnetError):
        return Failure(
            500,
            "the gateway failed; its log has the reason under this request's x-request-id",
            StatusCode.INTERNAL.value,
        )
    status = HTTP_STATUS[error.code]
    # Below 500 a field is the client's own parameter; above, it is a detail of some node.
    param = error.details.get("field", _PARAM.get(error.code)) if status < 500 else None
    wait = _WAIT.fullmatch(error.details.get("retry_after_seconds", ""))
    return Failure(
        status,
        error.message,
        error.code.value,
        param,
        error.retryable,
        1.0 if wait is None else float(wait[0]),
    )


def http_failure(http_status: int, message: str) -> Failure:
    """A refusal that is about HTTP alone, such as an unknown path."""
    return Failure(http_status, message, HTTP_CODE.get(http_status, "http_error"))


def limit_failure(refusal: Refusal) -> Failure:
    """The refusal of a key that has reached a limit of its own."""
    quota = refusal.limit is Limit.TOKENS
    return Failure(
        429,
        refusal.message,
        "insufficient_quota" if quota else "rate_limit_exceeded",
        retry=not quota,
        retry_after_seconds=refusal.retry_after_seconds,
    )
