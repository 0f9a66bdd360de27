"""The layer around all others: counts requests, and begins each one's span of its trace."""

from __future__ import annotations

import time
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshnet.domain.tracing import CURRENT_TRACE, Tracer, parse_traceparent
from meshnet.gateway.metrics import GatewayFigures

NO_ROUTE = "other"
"""The route of what isn't offered; clients may ask for any path, and labels must be few."""


class Observer:
    """Sees every request and changes none."""

    def __init__(
        self, app: ASGIApp, routes: Sequence[BaseRoute], figures: GatewayFigures, tracer: Tracer
    ) -> None:
        self._app = app
        self._routes = routes
        self._figures = figures
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        route = _route_of(self._routes, scope)
        status: int | None = None
        over = False

        def end() -> None:
            nonlocal over
            if not over:
                over = True
                self._figures.in_flight -= 1
                self._figures.answered(route, status, time.perf_counter() - began)
                span.end({} if status is None else {"http.response.status_code": status})

        async def seen_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                # Who has its answer finds it counted; what is written down of it afterwards isn't
                # time that anybody waited.
                end()
            await send(message)

        header = Headers(scope=scope).get("traceparent")
        span = self._tracer.begin(
            f"{scope['method']} {route}",
            parse_traceparent(header) if header is not None else None,
            {"http.request.method": scope["method"], "http.route": route},
        )
        CURRENT_TRACE.set(span.context)
        self._figures.in_flight += 1
        try:
            await self._app(scope, receive, seen_send)
        finally:
            end()


def _route_of(routes: Sequence[BaseRoute], scope: Scope) -> str:
    for route in routes:
        if isinstance(route, Route) and route.matches(scope)[0] is Match.FULL:
            return route.path
    return NO_ROUTE
