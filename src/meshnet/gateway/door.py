"""What every request passes on its way in: a request id, the host and key checks, the log line."""

from __future__ import annotations

import hmac
import time
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshnet.domain.errors import ResourceExhaustedError
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.errors import Failure, failure_of, http_failure
from meshnet.gateway.requestlog import REQUEST_ID, log, log_failure, request_id


def failure_response(failure: Failure) -> JSONResponse:
    """The response that tells a client about a failure."""
    return JSONResponse(failure.body(), failure.http_status, failure.headers())


class Door:
    """The ASGI layer that ``Observer`` alone is around.

    Whatever happens inside, the client gets an answer it can read.
    """

    def __init__(self, app: ASGIApp, config: GatewayConfig) -> None:
        self._app = app
        self._config = config
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

        async def named_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = name
            await send(message)

        counts = scope["method"] == "POST"
        self._inside += counts
        try:
            refusal = self._refusal(headers)
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
            self._inside -= counts
            log.info(
                "%s %s %s %.3f s",
                scope["method"],
                quote(scope["path"]),
                status or "unanswered",
                time.monotonic() - began,
            )

    def _refusal(self, headers: Headers) -> Failure | None:
        host = headers.get("host", "")
        if not self._config.accepts_host(host):
            return http_failure(
                403, f"the Host header {host!r} names no host that this gateway answers for"
            )
        if self._config.api_key is not None:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            # Compared in constant time, so that a guess can't be improved letter by letter.
            right = hmac.compare_digest(key.strip().encode(), self._config.api_key.encode())
            if scheme.lower() != "bearer" or not right:
                return http_failure(
                    401,
                    "the request needs the header 'Authorization: Bearer <key>' with a valid key",
                )
        if self._inside > self._config.max_requests:
            # Before its body is read: what is refused costs no memory.
            return failure_of(
                ResourceExhaustedError(
                    f"the gateway serves {self._config.max_requests} requests already"
                )
            )
        return None
