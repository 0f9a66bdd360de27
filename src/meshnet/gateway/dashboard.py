"""The dashboard's routes: its files, its events, and what its buttons ask of the network."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict
from importlib.resources import files
from typing import Final
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from meshnet.gateway.body import read_body
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.flights import Flights
from meshnet.gateway.machines import Machines
from meshnet.gateway.patience import patient
from meshnet.gateway.viewers import Viewers
from meshnet.gateway.whatif import question_object, read_question

PAGE: Final = "/dashboard"
STATIC: Final = f"{PAGE}/static/"
_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS: Final[Mapping[str, str]] = {
    # Nothing from another host, nothing inline: text of a model can't become a program here.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def keyless(path: str) -> bool:
    """Whether a path is one of the page's own files, which hold no secret and ask for the key."""
    return path == PAGE or path.startswith(STATIC)


def operators_only(path: str) -> bool:
    """Whether a path shows or does what an operator's key is needed for."""
    return path.startswith(f"{PAGE}/") and not keyless(path)


def add_dashboard(
    app: FastAPI, machines: Machines, flights: Flights, config: GatewayConfig
) -> None:
    """Offer the dashboard of a network; ``app.state.stopping`` ends its events."""
    routes = _Routes(machines, Viewers(machines, flights, app.state.stopping), config)
    for method, path, endpoint in (
        ("GET", PAGE, routes.page),
        ("GET", STATIC + "{name}", routes.file),
        ("GET", f"{PAGE}/events", routes.events),
        ("GET", f"{PAGE}/plan", routes.plan),
        ("POST", f"{PAGE}/plan", routes.what_if),
        ("POST", f"{PAGE}/join", routes.join),
        ("POST", f"{PAGE}/nodes/{{node_id}}/drain", routes.drain),
        ("POST", f"{PAGE}/nodes/{{node_id}}/undrain", routes.undrain),
        ("POST", f"{PAGE}/nodes/{{node_id}}/remove", routes.remove),
    ):
        app.add_api_route(path, endpoint, methods=[method], response_model=None)


class _Routes:
    def __init__(self, machines: Machines, viewers: Viewers, config: GatewayConfig) -> None:
        self._machines = machines
        self._viewers = viewers
        self._config = config
        self._files = _page_files()

    async def page(self) -> Response:
        return self._files["index.html"]

    async def file(self, name: str) -> Response:
        if name not in self._files:
            raise HTTPException(404)
        return self._files[name]

    async def events(self, request: Request) -> Response:
        _require_own_page(request)
        frames = self._viewers.frames()
        # Before the answer begins, so that a refusal has a status of its own.
        first = await anext(frames, b"")
        return _Events(first, frames, self._config.client_timeout_seconds)

    async def plan(self) -> Response:
        return JSONResponse(question_object(await self._machines.plan()))

    async def what_if(self, request: Request) -> Response:
        question = read_question(await self._body(request))
        return JSONResponse(asdict(await self._machines.what_if(question)))

    async def join(self, request: Request) -> Response:
        await self._body(request)
        return JSONResponse({"line": await self._machines.join_line()})

    async def drain(self, request: Request, node_id: str) -> Response:
        await self._body(request)
        await self._machines.drain(node_id)
        return JSONResponse({"id": node_id, "draining": True})

    async def undrain(self, request: Request, node_id: str) -> Response:
        await self._body(request)
        await self._machines.undrain(node_id)
        return JSONResponse({"id": node_id, "draining": False})

    async def remove(self, request: Request, node_id: str) -> Response:
        await self._body(request)
        await self._machines.remove(node_id)
        return JSONResponse({"id": node_id, "removed": True})

    async def _body(self, request: Request) -> bytes:
        _require_own_page(request)
        return await read_body(request, self._config)


class _Events(StreamingResponse):
    """Events for one viewer, for as long as it takes them."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, frames: AsyncGenerator[bytes, None], seconds: float) -> None:
        self._first = first
        self._frames = frames
        self._seconds = seconds
        # Some proxies collect an answer before they pass it on unless they are told.
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(self._all(), headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the viewer leaves or the gateway stops."""
        async with aclosing(self._frames):
            await super().__call__(scope, receive, patient(send, self._seconds))

    async def _all(self) -> AsyncGenerator[bytes, None]:
        yield self._first
        async for frame in self._frames:
            yield frame


def _require_own_page(request: Request) -> None:
    """Refuse what a page of another site makes a browser ask; other programs say neither header."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign or site not in ("same-origin", "none"):
        raise HTTPException(403, "a page of another site asked for this")


def _page_files() -> dict[str, Response]:
    folder = files("meshnet.gateway") / "static"
    return {
        entry.name: Response(
            entry.read_bytes(), headers=_HEADERS, media_type=_TYPES[entry.name.rpartition(".")[2]]
        )
        for entry in folder.iterdir()
        if entry.name.rpartition(".")[2] in _TYPES
    }
