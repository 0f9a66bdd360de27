import pytest

from meshnet.domain import errors
from meshnet.domain.status import StatusCode, StructuredStatus
from meshnet.gateway.errors import HTTP_STATUS, failure_of


def test_every_status_code_has_an_http_status() -> None:
    assert set(HTTP_STATUS) == set(StatusCode)
    failures = {HTTP_STATUS[code] for code in StatusCode if code is not StatusCode.OK}
    assert all(400 <= status < 600 for status in failures)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "param"),
    [
        (
            errors.InvalidArgumentError("top_p", "2 is too much"),
            400,
            "invalid_request_error",
            "invalid_argument",
            "top_p",
        ),
        (
            errors.ContextLengthError("too long"),
            400,
            "invalid_request_error",
            "context_length_exceeded",
            None,
        ),
        (
            errors.TemplateError("roles must alternate"),
            400,
            "invalid_request_error",
            "template_failed",
            "messages",
        ),
        (
            errors.ModelNotFoundError("no model 'x'"),
            404,
            "invalid_request_error",
            "model_not_found",
            "model",
        ),
        (
            errors.ResourceExhaustedError("full"),
            429,
            "rate_limit_error",
            "resource_exhausted",
            None,
        ),
        (errors.NodeLostError("gone"), 502, "server_error", "node_lost", None),
        (errors.NodeUnreachableError("away"), 503, "server_error", "node_unreachable", None),
        (errors.DeadlineExceededError("late"), 504, "server_error", "deadline_exceeded", None),
        (
            errors.MalformedFrameError("step", "negative"),
            502,
            "server_error",
            "malformed_frame",
            None,
        ),
    ],
)
def test_an_error_becomes_openais_error_object(
    error: errors.MeshnetError, status: int, kind: str, code: str, param: str | None
) -> None:
    failure = failure_of(error)
    assert failure.http_status == status
    assert failure.body() == {
        "error": {"message": error.message, "type": kind, "param": param, "code": code}
    }


def test_a_foreign_exception_tells_the_client_nothing_of_itself() -> None:
    failure = failure_of(RuntimeError("secret path /etc/x"))
    assert failure.http_status == 500
    assert "secret" not in str(failure.body())


def test_clients_are_told_whether_to_ask_again() -> None:
    full = failure_of(errors.ResourceExhaustedError("full")).headers()
    assert full == {"x-should-retry": "true", "retry-after": "1"}
    assert failure_of(errors.EngineError("broken")).headers() == {"x-should-retry": "false"}


@pytest.mark.parametrize(
    ("told", "header"),
    [
        ("7.2", "8"),
        ("0.01", "1"),
        ("86400", "86400"),
        ("soon\r\nx: y", "1"),
        ("-5", "1"),
        ("", "1"),
    ],
)
def test_when_to_come_back_is_told_in_whole_seconds_whatever_a_node_says(
    told: str, header: str
) -> None:
    full = failure_of(errors.ResourceExhaustedError("full", retry_after_seconds=told))
    assert full.headers()["retry-after"] == header


def test_an_error_that_came_over_the_wire_maps_like_the_original() -> None:
    original = errors.InvalidArgumentError("seed", "too big")
    carried = errors.error_from(
        StructuredStatus(original.code, False, original.message, dict(original.details))
    )
    assert failure_of(carried) == failure_of(original)
