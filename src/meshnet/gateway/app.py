"""The gateway's routes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from meshnet.domain.errors import InvalidArgumentError, MeshnetError
from meshnet.domain.tracing import NO_TRACER, Tracer
from meshnet.gateway import health
from meshnet.gateway.answer import Answer
from meshnet.gateway.apidoc import document, offered_paths
from meshnet.gateway.chatreply import ChatReply
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.door import Door, failure_response
from meshnet.gateway.errors import Failure, failure_of, http_failure
from meshnet.gateway.exposition import metrics_response
from meshnet.gateway.metrics import GatewayFigures
from meshnet.gateway.observer import Observer
from meshnet.gateway.openai import (
    Call,
    Defaults,
    Models,
    model_named,
    read_chat,
    read_completion,
)
from meshnet.gateway.replies import CompletionReply, Reply, ReplyTerms, model_object
from meshnet.gateway.requestlog import log_failure
from meshnet.gateway.responsereply import ResponseReply
from meshnet.gateway.responses import read_responses
from meshnet.gateway.running import Running
from meshnet.gateway.tokens import detokenize, tokenize
from meshnet.session.service import ModelService


def create_app(
    models: Sequence[ModelService],
    config: GatewayConfig,
    figures: GatewayFigures | None = None,
    tracer: Tracer = NO_TRACER,
) -> FastAPI:
    """The ASGI application that serves ``models``; ``serve`` runs it.

    ``figures`` is what ``/metrics`` tells, ``tracer`` records a span a request.

    Setting the event ``app.state.stopping`` ends every generation with an error.
    Raises :class:`InvalidArgumentError` for no models, or two with one name.
    """
    named = {model.name: model for model in models}
    if not models or len(named) != len(models):
        raise InvalidArgumentError("models", "at least one is needed, each with its own name")
    # The generated documentation pages load scripts from elsewhere; there are none.
    app = FastAPI(title="Meshnet", openapi_url=None, redirect_slashes=False)
    app.state.stopping = asyncio.Event()
    figures = figures or GatewayFigures()
    app.add_middleware(Door, config=config)
    app.add_middleware(Observer, routes=app.routes, figures=figures, tracer=tracer)
    app.add_exception_handler(MeshnetError, _tell_failure)
    app.add_exception_handler(HTTPException, _tell_http_failure)
    routes = _Routes(named, config, app.state.stopping, figures)
    for method, path, endpoint in (
        ("POST", "/v1/chat/completions", routes.chat),
        ("POST", "/v1/completions", routes.completion),
        ("POST", "/v1/responses", routes.respond),
        ("DELETE", "/v1/requests/{name}", routes.cancel),
        ("POST", "/tokenize", routes.tokenize),
        ("POST", "/detokenize", routes.detokenize),
        ("GET", "/v1/models", routes.list_models),
        ("GET", "/v1/models/{name:path}", routes.show_model),
        ("GET", "/health", routes.health),
        ("GET", "/metrics", routes.metrics),
        ("GET", "/openapi.json", routes.describe),
    ):
        app.add_api_route(path, endpoint, methods=[method], response_model=None)
    return app


class _Routes:
    def __init__(
        self,
        models: Models,
        config: GatewayConfig,
        stopping: asyncio.Event,
        figures: GatewayFigures,
    ) -> None:
        self._figures = figures
        self._models = models
        self._config = config
        self._stopping = stopping
        self._running = Running()

    async def chat(self, request: Request) -> Response:
        call = await self._call(request, read_chat)
        return self._answer(call, "chatcmpl-", lambda terms: ChatReply(terms, call.output))

    async def completion(self, request: Request) -> Response:
        call = await self._call(request, read_completion)
        return self._answer(call, "cmpl-", CompletionReply)

    async def respond(self, request: Request) -> Response:
        call = await self._call(request, read_responses)
        return self._answer(
            call, "resp_", lambda terms: ResponseReply(terms, call.output, call.echo)
        )

    async def cancel(self, name: str) -> Response:
        found = self._running.cancel(name)
        if not found:
            message = f"no request with the id {name!r} is running"
            return failure_response(Failure(404, message, "request_not_found"))
        return JSONResponse({"id": name, "object": "request", "cancelled": True})

    async def tokenize(self, request: Request) -> Response:
        body = await _read_body(request, self._config)
        return JSONResponse(await asyncio.to_thread(tokenize, body, self._models))

    async def detokenize(self, request: Request) -> Response:
        body = await _read_body(request, self._config)
        return JSONResponse(await asyncio.to_thread(detokenize, body, self._models))

    async def list_models(self) -> Response:
        data = [model_object(model) for model in self._models.values()]
        return JSONResponse({"object": "list", "data": data})

    async def show_model(self, name: str) -> Response:
        return JSONResponse(model_object(model_named(self._models, name)))

    async def health(self) -> Response:
        ready, body = await health.check(self._models.values(), self._config.health_timeout_seconds)
        return JSONResponse(body, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        return await metrics_response(request, self._figures.read)

    async def describe(self) -> Response:
        return JSONResponse(document(version("meshnet")))

    async def _call(
        self, request: Request, read: Callable[[bytes, Models, Defaults], Call]
    ) -> Call:
        body = await _read_body(request, self._config)
        defaults = Defaults(secrets.randbits(64), self._config.generation_timeout_seconds)
        # Templates and tokenisers take their time over a long prompt; other answers flow on.
        return await asyncio.to_thread(read, body, self._models, defaults)

    def _answer(self, call: Call, prefix: str, reply: Callable[[ReplyTerms], Reply]) -> Answer:
        terms = ReplyTerms(
            reply_id=f"{prefix}{secrets.token_hex(12)}",
            created_unix=int(time.time()),
            model=call.model.name,
            tokenizer=call.model.tokenizer,
            logprobs=call.requests[0].sampling.logprobs,
            include_usage=call.include_usage,
            choices=len(call.requests),
            n=call.n,
        )
        return Answer(
            call,
            reply(terms),
            self._figures,
            running=self._running,
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
        message = (
            f"{request.method} {request.url.path} isn't offered here; what is: {offered_paths()}"
        )
    response = failure_response(http_failure(error.status_code, message))
    response.headers.update(error.headers or {})
    return response
