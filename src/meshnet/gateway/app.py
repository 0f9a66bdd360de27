"""The gateway's routes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from meshnet.domain.errors import InvalidArgumentError, MeshnetError
from meshnet.gateway import health
from meshnet.gateway.answer import Answer
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.door import Door, failure_response
from meshnet.gateway.errors import failure_of, http_failure
from meshnet.gateway.openai import (
    Call,
    Defaults,
    Models,
    model_named,
    read_chat,
    read_completion,
)
from meshnet.gateway.replies import (
    ChatReply,
    CompletionReply,
    Reply,
    ReplyTerms,
    model_object,
)
from meshnet.gateway.requestlog import log_failure
from meshnet.session.service import ModelService


def create_app(models: Sequence[ModelService], config: GatewayConfig) -> FastAPI:
    """The ASGI application that serves ``models``; ``serve`` runs it.

    Setting the event ``app.state.stopping`` ends every generation with an error.
    Raises :class:`InvalidArgumentError` for no models, or two with one name.
    """
    named = {model.name: model for model in models}
    if not models or len(named) != len(models):
        raise InvalidArgumentError("models", "at least one is needed, each with its own name")
    # The generated documentation pages load scripts from elsewhere; there are none.
    app = FastAPI(title="Meshnet", openapi_url=None, redirect_slashes=False)
    app.state.stopping = asyncio.Event()
    app.add_middleware(Door, config=config)
    app.add_exception_handler(MeshnetError, _tell_failure)
    app.add_exception_handler(HTTPException, _tell_http_failure)
    routes = _Routes(named, config, app.state.stopping)
    for method, path, endpoint in (
        ("POST", "/v1/chat/completions", routes.chat),
        ("POST", "/v1/completions", routes.completion),
        ("GET", "/v1/models", routes.list_models),
        ("GET", "/v1/models/{name:path}", routes.show_model),
        ("GET", "/health", routes.health),
    ):
        app.add_api_route(path, endpoint, methods=[method], response_model=None)
    return app


class _Routes:
    def __init__(self, models: Models, config: GatewayConfig, stopping: asyncio.Event) -> None:
        self._models = models
        self._config = config
        self._stopping = stopping

    async def chat(self, request: Request) -> Response:
        call = await self._call(request, read_chat)
        return self._answer(call, ChatReply, "chatcmpl")

    async def completion(self, request: Request) -> Response:
        call = await self._call(request, read_completion)
        return self._answer(call, CompletionReply, "cmpl")

    async def list_models(self) -> Response:
        data = [model_object(model) for model in self._models.values()]
        return JSONResponse({"object": "list", "data": data})

    async def show_model(self, name: str) -> Response:
        return JSONResponse(model_object(model_named(self._models, name)))

    async def health(self) -> Response:
        ready, body = await health.check(self._models.values(), self._config.health_timeout_seconds)
        return JSONResponse(body, 200 if ready else 503)

    async def _call(
        self, request: Request, read: Callable[[bytes, Models, Defaults], Call]
    ) -> Call:
        body = await _read_body(request, self._config)
        defaults = Defaults(secrets.randbits(64), self._config.generation_timeout_seconds)
        # Templates and tokenisers take their time over a long prompt; other answers flow on.
        return await asyncio.to_thread(read, body, self._models, defaults)

    def _answer(self, call: Call, kind: type[Reply], prefix: str) -> Answer:
        terms = ReplyTerms(
            reply_id=f"{prefix}-{secrets.token_hex(12)}",
            created_unix=int(time.time()),
            model=call.model.name,
            tokenizer=call.model.tokenizer,
            logprobs=call.request.sampling.logprobs,
            include_usage=call.include_usage,
        )
        return Answer(
            call,
            kind(terms),
            stopping=self._stopping,
            client_timeout_seconds=self._config.client_timeout_seconds,
        )


async def _read_body(request: Request, config: GatewayConfig) -> bytes:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        # A page on the web may post any other type to another site without asking that site.
        raise HTTPException(415, "send the body with the header 'Content-Type: application/json'")
    body = bytearray()
    try:
        async with asyncio.timeout(config.client_timeout_seconds):
            async for part in request.stream():
                body += part
                if len(body) > config.max_body_bytes:
                    raise HTTPException(
                        413, f"the body has more than {config.max_body_bytes} bytes"
                    )
    except TimeoutError as error:
        raise HTTPException(
            408, f"the body didn't arrive within {config.client_timeout_seconds:g} s"
        ) from error
    return bytes(body)


async def _tell_failure(_request: Request, error: Exception) -> Response:
    failure = failure_of(error)
    log_failure(error, failure)
    return failure_response(failure)


async def _tell_http_failure(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise TypeError(f"not an HTTP refusal: {error!r}")
    message = error.detail
    if error.status_code in (404, 405):
        message = f"{request.method} {request.url.path} isn't offered here"
    response = failure_response(http_failure(error.status_code, message))
    response.headers.update(error.headers or {})
    return response
