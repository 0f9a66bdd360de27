"""The gateway's routes."""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Final

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from meshnet.domain.errors import MeshnetError
from meshnet.domain.tracing import NO_TRACER, Tracer
from meshnet.gateway import health
from meshnet.gateway.access import CALLER, Access, access_of
from meshnet.gateway.answer import Answer, Shared
from meshnet.gateway.apidoc import document, offered_paths
from meshnet.gateway.body import read_body
from meshnet.gateway.chatreply import ChatReply
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.dashboard import add_dashboard, keyless, operators_only
from meshnet.gateway.door import Door, failure_response
from meshnet.gateway.errors import Failure, failure_of, http_failure
from meshnet.gateway.exposition import metrics_response
from meshnet.gateway.flights import Flights
from meshnet.gateway.machines import Machines
from meshnet.gateway.metrics import GatewayFigures
from meshnet.gateway.observer import Observer
from meshnet.gateway.openai import (
    Call,
    Defaults,
    Models,
    by_name,
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
from meshnet.gateway.waiting import WaitingRoom
from meshnet.session.service import ModelService

MAX_READERS: Final = 8
"""Requests that are read at a time."""


def create_app(
    models: Sequence[ModelService],
    config: GatewayConfig,
    figures: GatewayFigures | None = None,
    tracer: Tracer = NO_TRACER,
    machines: Machines | None = None,
    access: Access | None = None,
) -> FastAPI:
    """The ASGI application that serves ``models``; ``serve`` runs it.

    ``figures`` is what ``/metrics`` tells, ``tracer`` records a span a request, and ``machines``
    is what ``/dashboard`` shows, which isn't offered without. ``access`` has the keys; without, the
    configuration's ``api_key`` is the only one.

    Setting the event ``app.state.stopping`` ends every generation with an error.
    Raises :class:`InvalidArgumentError` for no models, two with one name, or an alias that is taken
    or stands for none of them.
    """
    named = by_name(models, config.aliases)
    # The generated documentation pages load scripts from elsewhere; there are none.
    app = FastAPI(title="Meshnet", openapi_url=None, redirect_slashes=False)
    app.state.stopping = asyncio.Event()
    figures = figures or GatewayFigures()
    access = access or access_of(config.api_key)
    app.add_middleware(
        Door, config=config, access=access, keyless=keyless, operators_only=operators_only
    )
    app.add_middleware(Observer, routes=app.routes, figures=figures, tracer=tracer)
    app.add_exception_handler(MeshnetError, _tell_failure)
    app.add_exception_handler(HTTPException, _tell_http_failure)
    shared = Shared(
        figures,
        Running(),
        Flights(),
        access,
        {model.name: WaitingRoom(model.name, config.queue, figures) for model in models},
        app.state.stopping,
        config.client_timeout_seconds,
    )
    routes = _Routes(named, config, shared)
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
    if machines is not None:
        add_dashboard(app, machines, shared.flights, config)
    return app


class _Routes:
    def __init__(self, models: Models, config: GatewayConfig, shared: Shared) -> None:
        self._models = models
        self._config = config
        self._shared = shared
        self._reading = asyncio.Semaphore(MAX_READERS)

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
        caller = CALLER.get()
        found = self._shared.running.cancel(name, None if caller.operator else caller.key_id)
        if not found:
            message = f"no request with the id {name!r} is running"
            return failure_response(Failure(404, message, "request_not_found"))
        return JSONResponse({"id": name, "object": "request", "cancelled": True})

    async def tokenize(self, request: Request) -> Response:
        body = await read_body(request, self._config)
        return JSONResponse(await asyncio.to_thread(tokenize, body, self._models))

    async def detokenize(self, request: Request) -> Response:
        body = await read_body(request, self._config)
        return JSONResponse(await asyncio.to_thread(detokenize, body, self._models))

    async def list_models(self) -> Response:
        data = [model_object(name, model) for name, model in self._models.items()]
        return JSONResponse({"object": "list", "data": data})

    async def show_model(self, name: str) -> Response:
        return JSONResponse(model_object(name, model_named(self._models, name)))

    async def health(self) -> Response:
        models = [model for name, model in self._models.items() if name == model.name]
        ready, body = await health.check(models, self._config.health_timeout_seconds)
        return JSONResponse(body, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        return await metrics_response(request, self._shared.figures.read)

    async def describe(self) -> Response:
        return JSONResponse(document(version("meshnet")))

    async def _call(
        self, request: Request, read: Callable[[bytes, Models, Defaults], Call]
    ) -> Call:
        body = await read_body(request, self._config)
        defaults = Defaults(secrets.randbits(64), self._config.generation_timeout_seconds)
        # Templates, tokenisers and schemas take their time; other answers flow on, and whatever
        # else needs a thread finds one.
        run = contextvars.copy_context().run
        loop = asyncio.get_running_loop()
        async with self._reading:
            thread = ThreadPoolExecutor(1, "read-request")
            try:
                return await loop.run_in_executor(thread, run, read, body, self._models, defaults)
            finally:
                thread.shutdown(wait=False)

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
        return Answer(call, reply(terms), CALLER.get(), self._shared)


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
