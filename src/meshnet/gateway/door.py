"""What every request passes on its way in: a request id, the host and key checks, the log line."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshnet.domain.errors import ResourceExhaustedError
from meshnet.gateway.access import CALLER, Access
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.errors import Failure, failure_of, http_failure, limit_failure
from meshnet.gateway.requestlog import REQUEST_ID, log, log_failure, request_id
from meshnet.tracker.apikeys import ApiKey


def failure_response(failure: Failure) -> JSONResponse:
    """The response that tells a client about a failure."""
    return JSONResponse(failure.body(), failure.http_status, failure.headers())


def _no_path(_path: str) -> bool:
    return False


@dataclass(slots=True)
class _Visit:
    """One request at the door."""

    counts: bool
    """Whether it has a body, for which there is work to do."""
    caller: ApiKey | None = None
    let_in: bool = False
    """Whether the limiter counts it."""


class Door:
    """The ASGI layer that ``Observer`` alone is around.

    Whatever happens inside, the client gets an answer it can read.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: GatewayConfig,
        access: Access,
        keyless: Callable[[str], bool] = _no_path,
        operators_only: Callable[[str], bool] = _no_path,
    ) -> None:
        """``keyless`` says of a path whether it may be read without a key, ``operators_only``
        whether other keys than operators' don't open it."""
        self._app = app
        self._config = config
        self._access = access
        self._keyless = keyless
        self._operators_only = operators_only
        self._inside = 0
        """Requests with a body that are being served."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        name = request_id(headers.get("x-request-id"))
        REQUEST_ID.set(name)
        began = time.monotonic()
        status: int | None = None
        visit = _Visit(counts=scope["method"] == "POST")

        async def named_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                told = MutableHeaders(scope=message)
                told["x-request-id"] = name
                for header, value in self._left_of(visit).items():
                    told[header] = value
            await send(message)

        self._inside += visit.counts
        try:
            refusal = await self._refusal(scope, headers, visit)
            if refusal is None:
                await self._app(scope, receive, named_send)
            else:
                await failure_response(refusal)(scope, receive, named_send)
        except ClientDisconnect as gone:
            log.info("left: %s", gone or "the client disconnected")
        except Exception as error:
            failure = failure_of(error)
            log_failure(error, failure)
            if status is not None:
                raise
            await failure_response(failure)(scope, receive, named_send)
        finally:
            self._inside -= visit.counts
            if visit.let_in and visit.caller is not None:
                self._access.limiter.leave(visit.caller.key_id)
            log.info(
                "%s %s %s %.3f s by %s",
                scope["method"],
                quote(scope["path"]),
                status or "unanswered",
                time.monotonic() - began,
                "nobody" if visit.caller is None else visit.caller.name,
            )

    def _left_of(self, visit: _Visit) -> dict[str, str]:
        if visit.caller is None or not visit.counts:
            return {}
        return self._access.limiter.headers(visit.caller, time.time())

    async def _refusal(self, scope: Scope, headers: Headers, visit: _Visit) -> Failure | None:
        host = headers.get("host", "")
        if not self._config.accepts_host(host):
            return http_failure(
                403, f"the Host header {host!r} names no host that this gateway answers for"
            )
        path = scope["path"]
        if scope["method"] in ("GET", "HEAD") and self._keyless(path):
            return None
        caller = await self._access.caller(headers.get("authorization", ""))
        if caller is None:
            return http_failure(
                401, "the request needs the header 'Authorization: Bearer <key>' with a valid key"
            )
        visit.caller = caller
        CALLER.set(caller)
        if self._operators_only(path) and not caller.operator:
            return Failure(403, f"{path} needs an operator's key", "operator_key_needed")
        return self._crowd(visit, caller) if visit.counts else None

    def _crowd(self, visit: _Visit, caller: ApiKey) -> Failure | None:
        """The refusal of a request with a body that comes in addition to too many others."""
        if self._inside > self._config.max_requests:
            # Before its body is read: what is refused costs no memory.
            return failure_of(
                ResourceExhaustedError(
                    f"the gateway serves {self._config.max_requests} requests already"
                )
            )
        refusal = self._access.limiter.enter(caller, time.time())
        visit.let_in = refusal is None
        return None if refusal is None else limit_failure(refusal)
