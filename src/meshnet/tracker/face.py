"""The tracker's HTTP routes. Nothing but joining answers a peer without a certificate.

| route | who may | what |
|---|---|---|
| ``GET /authority`` | everybody | the authority's certificate, which is public |
| ``POST /join`` | who has a token | a certificate for a new machine |
| ``POST /renew`` | a node | another certificate for its key |
| ``POST /heartbeat`` | a node | what it has and does; gives what it is to do |
| ``GET /status`` | everybody certified | machines, models, what is missing |
| ``POST /nodes/{id}/drain``, ``undrain``, ``remove`` | an admin; a node for itself | |
| ``POST /tokens``, ``DELETE /tokens/{id}`` | an admin | join tokens |
| ``GET /models/{digest}/manifest``, ``/files/{name}`` | everybody certified | weights, by Range |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from meshnet.domain.errors import (
    InputError,
    InternalError,
    InvalidArgumentError,
    MeshnetError,
    ModelNotFoundError,
    NodeError,
    ResourceExhaustedError,
    StaleEpochError,
    UnauthenticatedError,
)
from meshnet.domain.ids import Digest, NodeId
from meshnet.tracker import messages as msg
from meshnet.tracker.service import TrackerService
from meshnet.transport.certificates import PeerIdentity, Role
from meshnet.transport.tls import AUTHORITY_PATH

LOGGER = logging.getLogger(__name__)
BODY_SECONDS = 10.0
PEER = "meshnet_peer"
"""Under this name the connection's :class:`PeerIdentity` is found in the request's state."""
_ALL_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

MessageT = TypeVar("MessageT", bound=msg.Message)
Endpoint = Callable[[Request], Awaitable[Response]]


class Weights(Protocol):
    """Where the models' files are; made outside, since how they are cut is no tracker's business.

    Both raise :class:`ModelNotFoundError`.
    """

    def manifest(self, digest: Digest) -> bytes:
        """What a machine checks fetched bytes with."""

    def path(self, digest: Digest, name: str) -> Path:
        """The file of one of the model's parts, by the name that the manifest has for it."""


def create_face(service: TrackerService, weights: Weights, authority_pem: bytes) -> Starlette:
    """The ASGI application; ``face_server`` runs it, and says who the peer is."""
    routes = _Routes(service, weights, authority_pem)
    certified = routes.certified
    return Starlette(
        routes=[
            Route(AUTHORITY_PATH, routes.authority, methods=["GET"]),
            Route(msg.PATH_JOIN, routes.join, methods=["POST"]),
            Route(msg.PATH_RENEW, certified(routes.renew), methods=["POST"]),
            Route(msg.PATH_HEARTBEAT, certified(routes.heartbeat), methods=["POST"]),
            Route(msg.PATH_STATUS, certified(routes.status), methods=["GET"]),
            Route("/nodes/{node}/{verb}", certified(routes.node), methods=["POST"]),
            Route(msg.PATH_TOKENS, certified(routes.issue), methods=["POST"]),
            Route(msg.PATH_TOKENS + "/{token}", certified(routes.revoke), methods=["DELETE"]),
            Route("/models/{digest}/manifest", certified(routes.manifest), methods=["GET"]),
            Route("/models/{digest}/files/{name}", certified(routes.file), methods=["GET"]),
            # Last: whoever has no certificate isn't told what else there is.
            Route("/{rest:path}", certified(_unknown), methods=_ALL_METHODS),
        ],
        exception_handlers={MeshnetError: _tell, HTTPException: _tell_http},
    )


class _Routes:
    def __init__(self, service: TrackerService, weights: Weights, authority_pem: bytes) -> None:
        self._service = service
        self._weights = weights
        self._authority_pem = authority_pem

    def certified(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint, for peers with a certificate of a machine that wasn't removed."""

        async def guarded(request: Request) -> Response:
            self._service.require_known(_peer(request).node_id)
            return await endpoint(request)

        return guarded

    async def authority(self, _request: Request) -> Response:
        return Response(self._authority_pem, media_type="application/x-pem-file")

    async def join(self, request: Request) -> Response:
        body = await _read(request, msg.JoinRequest)
        return _json(self._service.join(body))

    async def renew(self, request: Request) -> Response:
        peer = _peer(request, Role.NODE)
        body = await _read(request, msg.RenewRequest)
        return _json(self._service.renew(peer.node_id, body))

    async def heartbeat(self, request: Request) -> Response:
        peer = _peer(request, Role.NODE)
        body = await _read(request, msg.HeartbeatRequest)
        return _json(self._service.heartbeat(peer.node_id, body))

    async def status(self, _request: Request) -> Response:
        return _json(self._service.status())

    async def node(self, request: Request) -> Response:
        peer, node = _peer(request), NodeId(request.path_params["node"])
        if peer.role is not Role.ADMIN and peer.node_id != node:
            raise HTTPException(403, "a machine may do this to itself only; else it takes an admin")
        verbs = {
            "drain": self._service.drain,
            "undrain": self._service.undrain,
            "remove": self._service.remove,
        }
        verb = verbs.get(request.path_params["verb"])
        if verb is None:
            raise HTTPException(404, f"a machine can be told {', '.join(verbs)}")
        verb(node)
        return _json(self._service.status())

    async def issue(self, request: Request) -> Response:
        _peer(request, Role.ADMIN)
        body = await _read(request, msg.TokenRequest)
        return _json(self._service.issue_token(body))

    async def revoke(self, request: Request) -> Response:
        _peer(request, Role.ADMIN)
        self._service.revoke_token(request.path_params["token"])
        return Response(status_code=204)

    async def manifest(self, request: Request) -> Response:
        found = self._weights.manifest(Digest(request.path_params["digest"]))
        return Response(found, media_type="application/json")

    async def file(self, request: Request) -> Response:
        digest, name = Digest(request.path_params["digest"]), request.path_params["name"]
        return FileResponse(self._weights.path(digest, name), media_type="application/octet-stream")


async def _unknown(request: Request) -> Response:
    raise HTTPException(404, f"{request.method} {request.url.path} isn't offered here")


def _peer(request: Request, role: Role | None = None) -> PeerIdentity:
    peer = getattr(request.state, PEER, None)
    if not isinstance(peer, PeerIdentity):
        raise HTTPException(401, "this needs the certificate that `meshnet join` gets a machine")
    if role is not None and peer.role is not role:
        raise HTTPException(403, f"this needs a certificate of the role {role.value}")
    return peer


async def _read(request: Request, kind: type[MessageT]) -> MessageT:
    """The body; raises ``InvalidArgumentError`` naming the first field that is wrong."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > msg.MAX_BODY_BYTES:
                    raise HTTPException(413, f"the body has more than {msg.MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise HTTPException(408, f"the body didn't arrive within {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the client left") from None
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise InvalidArgumentError(where, first["msg"]) from None


def _json(message: msg.Message) -> Response:
    return Response(message.model_dump_json(), media_type="application/json")


async def _tell(request: Request, error: Exception) -> Response:
    if not isinstance(error, MeshnetError):
        raise error
    status = status_of_error(error)
    if status >= 500:
        LOGGER.warning("%s %s: %s", request.method, request.url.path, error.message)
    return _failure(status, error.code.value, error.message, error.details.get("field"))


async def _tell_http(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return _failure(error.status_code, "http", error.detail, None)


_STATUSES: tuple[tuple[type[MeshnetError], int], ...] = (
    (UnauthenticatedError, 403),
    (StaleEpochError, 409),
    (ModelNotFoundError, 404),
    (ResourceExhaustedError, 429),
    (InputError, 400),
    (InternalError, 500),
    (NodeError, 503),
)


def status_of_error(error: MeshnetError) -> int:
    """The HTTP status that tells of an error here."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def _failure(status: int, code: str, message: str, field: str | None) -> Response:
    body = msg.Failure(code=code, message=message, field=field)
    return JSONResponse(body.model_dump(), status)
