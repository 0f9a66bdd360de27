"""The tracker's HTTP routes. Nothing but joining and pairing answers a peer without a certificate.

| route | who may | what |
|---|---|---|
| ``GET /authority`` | everybody | the authority's certificate, which is public |
| ``POST /join`` | who has a token | a certificate for a new machine |
| ``POST /pair``, ``/pair/prove`` | who has the pairing code | a token, for a machine of the LAN |
| ``POST /renew`` | a node | another certificate for its key |
| ``POST /heartbeat`` | a node | what it has and does; gives what it is to do |
| ``GET /status`` | everybody certified | machines, models, what is missing |
| ``POST /routes`` | a gateway | how chains did; gives one for the next generation |
| ``POST /relay`` | an admin | who waits at the relay; gives who may |
| ``POST /receipts`` | a node or a gateway | what sessions took, as both sides signed it |
| ``POST /logs`` | a node | lines of its log, which somebody wants |
| ``POST /nodes/{id}/logs`` | an admin | these lines |
| ``POST /nodes/{id}/drain``, ``undrain``, ``remove`` | an admin; a node for itself | |
| ``POST /tokens``, ``DELETE /tokens/{id}`` | an admin | join tokens |
| ``POST /pair/code`` | an admin | a new pairing code |
| ``POST /probe`` | a node | nothing: so it times its link |
| ``GET /models`` | everybody certified | which models are served, and how |
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
from meshnet.tracker import asking, desk
from meshnet.tracker import logmessages as lm
from meshnet.tracker import messages as msg
from meshnet.tracker import pairing_messages as pm
from meshnet.tracker import receiptmessages as rm
from meshnet.tracker.fields import Message
from meshnet.tracker.measurements import MAX_PROBE_BYTES, PATH_PROBE, Probe
from meshnet.tracker.offers import PATH_MODELS, models_of
from meshnet.tracker.pace import Pace
from meshnet.tracker.service import TrackerService
from meshnet.transport.certificates import PeerIdentity, Role
from meshnet.transport.tls import AUTHORITY_PATH

LOGGER = logging.getLogger(__name__)
BODY_SECONDS = 10.0
PAIR_SECONDS = 1.0
"""From a pairing's beginning to its answer, whatever it is: how long computing with the code took
would tell something of it."""
PEER = "meshnet_peer"
"""Under this name the connection's :class:`PeerIdentity` is found in the request's state."""
_ALL_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

MessageT = TypeVar("MessageT", bound=Message)
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
            Route(pm.PATH_PAIR, routes.pair, methods=["POST"]),
            Route(pm.PATH_PROVE, routes.prove, methods=["POST"]),
            Route(pm.PATH_CODE, certified(routes.code), methods=["POST"]),
            Route(msg.PATH_RENEW, certified(routes.renew), methods=["POST"]),
            Route(msg.PATH_HEARTBEAT, certified(routes.heartbeat), methods=["POST"]),
            Route(msg.PATH_STATUS, certified(routes.status), methods=["GET"]),
            Route(asking.PATH_ROUTES, certified(routes.route), methods=["POST"]),
            Route(asking.PATH_RELAY, certified(routes.relay), methods=["POST"]),
            Route(lm.PATH_LOGS, certified(routes.take_logs), methods=["POST"]),
            Route(rm.PATH_RECEIPTS, certified(routes.receipts), methods=["POST"]),
            Route("/nodes/{node}/logs", certified(routes.logs), methods=["POST"]),
            Route("/nodes/{node}/{verb}", certified(routes.node), methods=["POST"]),
            Route(msg.PATH_TOKENS, certified(routes.issue), methods=["POST"]),
            Route(msg.PATH_TOKENS + "/{token}", certified(routes.revoke), methods=["DELETE"]),
            Route(PATH_PROBE, certified(routes.probe), methods=["POST"]),
            Route(PATH_MODELS, certified(routes.models), methods=["GET"]),
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
        self._probes = Pace()

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

    async def pair(self, request: Request) -> Response:
        body = await _read(request, pm.PairRequest, pm.MAX_BODY_BYTES)
        clock = asyncio.get_running_loop().time
        due = clock() + PAIR_SECONDS
        try:
            return _json(self._service.pairing.begin(_host(request), body))
        finally:
            await asyncio.sleep(due - clock())

    async def prove(self, request: Request) -> Response:
        body = await _read(request, pm.ProofRequest, pm.MAX_BODY_BYTES)
        return _json(self._service.pairing.prove(_host(request), body))

    async def code(self, request: Request) -> Response:
        _peer(request, Role.ADMIN)
        body = await _read(request, pm.CodeRequest)
        return _json(self._service.pairing.renew(body))

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

    async def route(self, request: Request) -> Response:
        _peer(request, Role.GATEWAY)
        body = await _read(request, asking.RouteRequest, asking.MAX_BODY_BYTES)
        return _json(desk.answer_route(self._service, body))

    async def relay(self, request: Request) -> Response:
        _peer(request, Role.ADMIN)
        body = await _read(request, asking.RelayRequest, asking.MAX_BODY_BYTES)
        return _json(desk.answer_relay(self._service, body))

    async def receipts(self, request: Request) -> Response:
        peer = _peer(request)
        if peer.role not in (Role.NODE, Role.GATEWAY):
            raise HTTPException(403, "nodes and gateways have receipts")
        body = await _read(request, rm.ReceiptsReport)
        return _json(await self._service.take_receipts(peer.node_id, body))

    async def take_logs(self, request: Request) -> Response:
        peer = _peer(request, Role.NODE)
        body = await _read(request, lm.LogChunk)
        self._service.logs.take(peer.node_id, body)
        return Response(status_code=204)

    async def logs(self, request: Request) -> Response:
        _peer(request, Role.ADMIN)
        body = await _read(request, lm.LogsRequest)
        node_id = NodeId(request.path_params["node"])
        self._service.require_member(node_id)
        return _json(self._service.logs.want(node_id, body.after, self._service.now))

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

    async def models(self, _request: Request) -> Response:
        return _json(models_of(self._service.state))

    async def probe(self, request: Request) -> Response:
        now = self._service.now
        self._probes.sweep(now)
        self._probes.require(_peer(request, Role.NODE).node_id, now)
        await _read(request, Probe, MAX_PROBE_BYTES + 100)
        return _json(Probe())

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


def _host(request: Request) -> str:
    return "" if request.client is None else request.client.host


async def _read(request: Request, kind: type[MessageT], most: int = msg.MAX_BODY_BYTES) -> MessageT:
    """The body; raises ``InvalidArgumentError`` naming the first field that is wrong."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise HTTPException(413, f"the body has more than {most} bytes")
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


def _json(message: Message) -> Response:
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
